"""Helpers of tests of the HTTP service."""
