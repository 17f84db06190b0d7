"""Streaming queries that write exactly once: rows, and what is known of time, become visible once and together.

Start with `query` (`write_stream`). `address` says what `to=` can be and which writer it needs; `batch_sink` is
what Spark calls with each batch; `rows` makes records of rows; `kafka`, `streams`, `files` and `upserts` write
to one kind of target each; `closed_rows` reads what targets without transactions hold. The rules of exactly-once
are in `floodmark.sinks`. Tasks import `kafka` and `closed_rows`. Nothing else imports this folder.
"""
