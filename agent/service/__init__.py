"""The program: the daemon, its interfaces and its verbs."""
