"""Transports: systemd, the kernel, programs, sockets. No word about GPUs, one library each."""
