"""Small helpers that several rooms share: checks of numbers, names and times, stored values, retries.

This is the lowest layer: it imports only `floodmark.errors`, and no database. Every room may import its modules, but
`floodmark.progress` only `ints`, `names`, `text` and `codec`, which use no clock and no I/O. A helper that only one
room needs belongs in that room. Start with `ints` and `times`.
"""
