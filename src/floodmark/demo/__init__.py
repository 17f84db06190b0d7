"""The demo: the same orders through plain Spark and through Floodmark, in three cases in which Spark goes wrong.

Run it with `python -m floodmark.demo`. It exits with 1 if Floodmark lost an order or miscounted a window.

A partition lags, one of two streams goes quiet, one row has a time in the far future. In each case both queries read
the same files, one file per micro-batch, allow for a minute of disorder, and count orders per minute with Spark's own
windows. They differ only in the watermark. Start with `cases`: the orders, the expected counts and the explanations.
`comparison` runs the queries and prints the report. No other room imports this one.
"""
