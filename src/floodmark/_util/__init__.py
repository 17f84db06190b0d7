"""Small helpers that several rooms share: checks of numbers, names and times, stored values, retries.

The lowest layer: it imports `floodmark.errors` and nothing else of Floodmark, and no database.
Every room may import its modules. `floodmark.progress` may import only `ints`, `names`, `text` and `codec`,
which know no clock and no I/O. A helper that only one room needs belongs in that room.
"""
