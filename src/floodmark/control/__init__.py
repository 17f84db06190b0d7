"""The control store: the home (one SQLite file or a PostgreSQL database) and the records every room keeps in it.

| class | keeps |
|---|---|
| `Home` | the store: transactions, migrations, the shared clock, change counters |
| `Leases` | which process owns a piece of work, with tokens that fence earlier owners |
| `Members` | which processes are alive |
| `WatermarkSteps` | the computed watermarks of streaming queries, step by step, and decisions about origins |
| `BatchWatermarks` | the watermark that decides which rows of a batch are late |
| `Queries` | one record of each streaming query |
| `Tokens` | access tokens of the HTTP service |

Every room above `progress` may import it; start reading with `home`. Every change is conditional: the loser of a race
gets a `Conflict` and reads again. Times are microseconds since the epoch, from an argument or from the store's clock.
"""

from floodmark.control.home import Home
from floodmark.control.leases import Lease, Leases
from floodmark.control.members import Member, Members
from floodmark.control.queries import Queries, QueryRecord, QueryState
from floodmark.control.query_watermarks import (
    BatchWatermarks,
    DecidedBy,
    Incarnation,
    Observation,
    OriginDecision,
    QueryBatch,
    WatermarkStep,
    WatermarkSteps,
)
from floodmark.control.tokens import Scope, Token, Tokens

__all__ = [
    "BatchWatermarks",
    "DecidedBy",
    "Home",
    "Incarnation",
    "Lease",
    "Leases",
    "Member",
    "Members",
    "Observation",
    "OriginDecision",
    "Queries",
    "QueryBatch",
    "QueryRecord",
    "QueryState",
    "Scope",
    "Token",
    "Tokens",
    "WatermarkStep",
    "WatermarkSteps",
]
