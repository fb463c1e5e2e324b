"""The values that the other packages share: what is known about a node, and what may be done to it.
No behaviour, no I/O."""
