"""The program's faces: configuration, verbs, HTTP, the wait and the probe."""
