"""Helpers of tests of streams and readers."""
