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

from floodmark._util.codec import JsonValue
from floodmark.control._batch_watermarks import BatchOf, BatchWatermarks
from floodmark.control._changes import bump
from floodmark.control._home import Home
from floodmark.control._leases import LEASES_TOPIC, Lease, Leases
from floodmark.control._members import MEMBERS_TOPIC, Member, Members
from floodmark.control._queries import Queries
from floodmark.control._query_record import QueryRecord, QueryState
from floodmark.control._tokens import TOKENS_TOPIC, Scope, Token, Tokens
from floodmark.control._watermark_steps import Incarnation, Observation, Step, WatermarkSteps

__all__ = [
    "LEASES_TOPIC",
    "MEMBERS_TOPIC",
    "TOKENS_TOPIC",
    "BatchOf",
    "BatchWatermarks",
    "Home",
    "Incarnation",
    "JsonValue",
    "Lease",
    "Leases",
    "Member",
    "Members",
    "Observation",
    "Queries",
    "QueryRecord",
    "QueryState",
    "Scope",
    "Step",
    "Token",
    "Tokens",
    "WatermarkSteps",
    "bump",
]
