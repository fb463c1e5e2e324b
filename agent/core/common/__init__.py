"""What every subject reads: files, marks, the kernel log, the layouts of nodes, known faults."""
