"""The command `floodmark`, which inspects and maintains a home from a shell; only `ingest run` starts Spark.

| command | what it does |
|---|---|
| `floodmark why [QUERY]` | lists the queries, or explains a query's watermark: its holder, and what would release it |
| `floodmark origins QUERY [ACTION ORIGIN]` | lists a query's origins, or decides: idle, finish, remove, revive |
| `floodmark bindings [SOURCE]` | lists the sources, or the bound timestamps of one; `--at TS` shows the cut at TS |
| `floodmark holds [SOURCE]` | lists the holds that keep old timestamps, with a warning for stalled ones |
| `floodmark release SOURCE HOLDER` | releases a hold; `--older-than AGE` releases all holds silent for that long |
| `floodmark sinks [SINK]` | lists, explains or drops the sinks that queries write to exactly once |
| `floodmark ingest plan JOB` | shows the ranges that a run would read now, and why; `run` reads them |
| `floodmark ingest status JOB`, `gaps`, `history` | shows progress, missing ranges, and past runs |
| `floodmark ingest backfill JOB`, `retry`, `edit` | schedules ranges again, or corrects the recorded coverage |
| `floodmark serve` | runs the HTTP service of a home, with a controller |
| `floodmark token`, `floodmark tokens` | creates, revokes and lists access tokens of that service |
| `floodmark version` | prints the installed releases |

No other room imports this one. Start reading with `entry`; each command group has a file, and `output` prints. Start-up
stays fast because heavy packages (rich, numpy, sqlalchemy, pyarrow) are imported only by the command that needs them.
"""

from floodmark.cli.entry import main

__all__ = ["main"]
