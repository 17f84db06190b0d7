"""Streaming queries that write exactly once: rows and the watermark become visible once and together.

Start reading at `query` (`write_stream`). `address` parses `to=` and chooses the writer; `batch_sink` is what Spark
calls with each batch; `rows` turns rows into records; `kafka`, `streams`, `files` and `upserts` each write to one kind
of target; `closed_rows` reads targets without transactions (`read_closed`). The rules of exactly-once are in
`floodmark.sinks`. Tasks import `kafka` and `closed_rows`. Nothing else imports this folder.
"""
