"""The same orders through plain Spark and through Floodmark, in three cases that hurt.

Run it with `python -m floodmark.demo`. It exits with 1 if Floodmark lost an order or miscounted a window.

A partition lags, one of two streams goes quiet, one row comes from the far future. In each case both queries
read the same files, one file a micro-batch, allow for a minute of disorder, and count orders per minute with
Spark's own windows. They differ only in where the watermark comes from. `cases` has the orders, the right answers
and the explanations; `comparison` runs the queries and prints the report. Nothing imports this room.
"""
