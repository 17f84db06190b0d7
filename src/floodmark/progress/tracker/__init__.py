"""The tracker: how far parallel, repeated, out-of-order work has really come, origin by origin.

Start with `tracker`, the public class. `prefix` has the rules of one origin, `sequences` what waits behind its
gaps, `batch` the way for many reports at once (numpy), `origins` which origins there are and which are closed.
Only `floodmark.progress` imports from here; like all of that room it knows no clock and no I/O.
"""
