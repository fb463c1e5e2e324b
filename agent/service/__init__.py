"""The program: the cycle, its faces, and its verbs."""
