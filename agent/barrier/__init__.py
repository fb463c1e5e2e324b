"""The scheduling barrier: what the agent says, told to the API server (docs/barrier.md)."""
