"""Helpers of tests of the command line."""
