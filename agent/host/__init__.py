"""The live node: the host answers questions about it, the executor changes it."""
