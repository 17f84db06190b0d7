"""Helpers of tests of sinks, and the processes that they kill."""
