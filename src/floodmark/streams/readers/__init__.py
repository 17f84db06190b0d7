"""Readers and reader groups: what a program reads with.

Only `floodmark.streams.home` imports this folder. Readers reach a home through `floodmark.streams.ports`, so that
they are the same on every backend; the rules of groups are in `floodmark.streams.groups`. Start with `reader.Reader`.
"""
