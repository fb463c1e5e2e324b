"""The one cycle: collect, diagnose, decide, execute.

The daemon, the simulated node of tests/stories, `gpu-gate access --prevent` and the doctor run it.
What differs comes in from outside (ports.py): the host, the executor, the clock, the watches.
"""
