"""The gate: phases, release, readiness, and when the next cycle is due."""
