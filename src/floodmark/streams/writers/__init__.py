"""Writers, which programs write events and note time with.

Only `floodmark.streams.stream` opens them. They use a home only through `floodmark.streams.ports`, so they work the
same on every backend. The rules for marks are in `floodmark.streams.marks`.
Start with `writer.Writer`; `buffer` has the events that are not sent yet.
"""
