"""Helpers of tests of bindings."""
