"""Words: what a node can be seen to be, and what may be done about it. No behaviour, no I/O."""
