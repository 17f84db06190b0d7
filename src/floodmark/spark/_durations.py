"""Durations of this room's options are those of the whole house."""

from floodmark._durations import Duration, micros_of

__all__ = ["Duration", "micros_of"]
