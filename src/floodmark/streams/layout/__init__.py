"""The layout of a stream: its key space, the segments that divide it, and positions in them.

Pure rules: no clock, no store. Any module of `floodmark.streams` may import this folder; it imports only
`floodmark.errors`, `floodmark.progress` and `floodmark._util`.
Start with `layout.Layout`, then `positions.cut_over`.
"""
