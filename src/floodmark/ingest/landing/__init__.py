"""Where rows go: how they fit the table or stream that is there, and how they become part of it, once.

Nothing of Spark is here: what its tasks write, and what is committed, are functions over Arrow and over a table's log.
Imports the rest of this room but not `extract`; `floodmark.spark` imports it. Start with `table` or `stream`; `tasks`
is what they exchange with tasks, `parquet` what a task does, `fitting` and `column_types` the pure rules of types.
"""
