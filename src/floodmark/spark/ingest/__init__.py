"""Ingestion jobs on Spark: tasks extract the cells of a plan, and land them in a table or a stream.

Start reading at `job` (`ingest_job`, and the executor that `floodmark.ingest` calls for each planned range). `files`
reads listed files as DataFrames; `tasks` reads, writes and merges rows in Spark's tasks, which import it: keep it
light. `floodmark.cli` imports `job`; nothing else imports this folder.
"""
