"""The one cycle: collect, diagnose, decide, execute."""
