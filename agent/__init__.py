"""gpu-gate: a node agent that says when GPU work may start, and which link is broken when it may
not."""

__version__ = "0.1.0"
