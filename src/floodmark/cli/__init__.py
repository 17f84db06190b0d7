"""The command `floodmark`: questions to a home, answered without starting Spark.

| command | answers |
|---|---|
| `floodmark why QUERY` | where the watermark of a query stands, who holds it there, and what would release it |
| `floodmark why` | which queries there are |
| `floodmark bindings SOURCE` | which timestamps the offsets of a source have; with `--at`, the cut at one |
| `floodmark bindings` | which sources there are, and how far they have come |
| `floodmark holds` | who keeps old timestamps, and whether they move on |
| `floodmark release SOURCE HOLDER` | lets go of a hold whose owner is gone; `--older-than AGE` of all that are |
| `floodmark ingest plan JOB` | what a job has to read now, range by range, and why; `run` reads it |
| `floodmark ingest status JOB`, `gaps`, `history` | how far it has come, what is missing, what was done |
| `floodmark ingest backfill JOB`, `retry`, `edit` | nothing: what is to be read again, tried again, or counts as read |
| `floodmark serve` | nothing: it runs the HTTP service of a home, with a controller |
| `floodmark token`, `floodmark tokens` | who may use that service |
| `floodmark version` | which releases are installed |
"""

from floodmark.cli.entry import main

__all__ = ["main"]
