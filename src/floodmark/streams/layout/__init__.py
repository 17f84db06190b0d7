"""The layout of a stream: its key space, the segments that share it, and positions in them.

Pure rules: no clock, no store. Everything in `floodmark.streams` may import this folder; it imports
`floodmark.errors` and `floodmark._util` only. Start with `layout.Layout`, then `positions.cut_over`.
"""
