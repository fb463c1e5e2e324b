"""The gate: states, transitions, and when to look again."""
