"""Helpers that tests share: homes, brokers, feeds, and the scripts that tests start as processes."""
