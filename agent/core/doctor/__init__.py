"""What the doctor concludes beyond the gate: causes, the timeline of a boot."""
