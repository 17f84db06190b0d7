"""Ingestion jobs on Spark: its tasks extract the cells of a plan, and land them in a table or a stream.

Start with `job` (`ingest_job`, and the executor that `floodmark.ingest` calls for each row of a plan). `files`
reads listed files as DataFrames; `tasks` runs the reading, writing and merging in Spark's tasks, which import
it: keep it light. `floodmark.cli` imports `job`; nothing else imports this folder.
"""
