"""Reasoning: pure functions from what was seen to what is to be done. No clock, no file, no
task."""
