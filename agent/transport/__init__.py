"""Transports: systemd, the kernel, programs, sockets. They know nothing about GPUs, and each uses
one library at most."""
