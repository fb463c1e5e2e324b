"""The scheduling barrier: publishes the agent's readiness on the Node (docs/barrier.md)."""
