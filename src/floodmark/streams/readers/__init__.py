"""Readers and reader groups, which programs read streams with.

Only `floodmark.streams.home` and the package's `__init__` import this folder. Readers use a home only through
`floodmark.streams.ports`, so they work the same on every backend; the rules of groups are in
`floodmark.streams.groups`.
Start with `group.ReaderGroup`, then `reader.Reader`.
"""
