"""What the tests of the stand-ins share."""

from sim_programs import library, programs

__all__ = ["library", "programs"]
