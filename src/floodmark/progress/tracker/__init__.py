"""The tracker: how far parallel, repeated, out-of-order work is complete, origin by origin.

Start with `tracker`, the public class. `prefix` has the rules of one origin, `sequences` what waits behind its gaps,
`batch` many reports at once with numpy, `origins` the list of origins. Only `floodmark.progress` imports this folder;
like all of that room it uses no clock and no I/O.
"""
