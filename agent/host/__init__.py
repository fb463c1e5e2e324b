"""The node's two faces: what can be asked of it (Host), and what may be done to it (hands)."""
