"""Landing: rows are fitted to a job's target, a Delta table or a stream, and committed to it exactly once.

Works on Arrow data and on the log of the table; nothing here imports Spark. It may import the rest of `ingest` but not
`extract`; `floodmark.spark` imports it. Start with `table` or `stream`. `tasks` holds the values exchanged with
tasks, `parquet` is what a task does, `fitting` and `column_types` are the pure rules for columns and types.
"""
