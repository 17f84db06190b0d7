"""What must survive: the home, which is one SQLite file or a PostgreSQL database, and what is kept in it.

| class | keeps |
|---|---|
| `Home` | the store: transactions, migrations, its clock, counters of changes |
| `Leases` | which process does a piece of work, with tokens that fence off who has lost it |
| `Members` | which processes are alive |
| `WatermarkSteps` | watermarks that are computed for streaming queries, step by step |
| `BatchWatermarks` | under which watermark the batches of such a query judge their rows |
| `Queries` | what is known of each streaming query |
| `Tokens` | who may do what, when the home is reached through a service |

Every change is conditional on what it was built on; who comes second gets a `Conflict` and reads again. Times are
microseconds since the epoch: an argument, or, where processes must agree on them, the store's.
"""

from floodmark.control.home import Home
from floodmark.control.leases import Lease, Leases
from floodmark.control.members import Member, Members
from floodmark.control.queries import Queries, QueryRecord, QueryState
from floodmark.control.query_watermarks import (
    BatchWatermarks,
    Incarnation,
    Observation,
    QueryBatch,
    WatermarkStep,
    WatermarkSteps,
)
from floodmark.control.tokens import Scope, Token, Tokens

__all__ = [
    "BatchWatermarks",
    "Home",
    "Incarnation",
    "Lease",
    "Leases",
    "Member",
    "Members",
    "Observation",
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
