"""Writers: what a program writes events and notes time with.

Only `floodmark.streams.stream` opens them. They reach a home through `floodmark.streams.ports`, so that they are
the same on every backend. Start with `writer.Writer`; which marks are accepted is in `floodmark.streams.marks`.
"""
