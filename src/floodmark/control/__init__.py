"""What must survive: the home, which is one SQLite file, and what is kept in it.

| class | keeps |
|---|---|
| `Home` | the file: transactions, migrations |
| `WatermarkSteps` | watermarks that are computed for streaming queries, step by step |
| `BatchWatermarks` | under which watermark the batches of such a query judge their rows |
| `Queries` | what is known of each streaming query |

Every change is conditional on what it was built on; who comes second gets a `Conflict` and reads again. Times are
microseconds since the epoch, and always an argument.
"""

from floodmark.control._batch_watermarks import BatchOf, BatchWatermarks
from floodmark.control._home import Home
from floodmark.control._json import JsonValue
from floodmark.control._queries import Queries
from floodmark.control._query_record import QueryRecord, QueryState
from floodmark.control._watermark_steps import Incarnation, Observation, Step, WatermarkSteps

__all__ = [
    "BatchOf",
    "BatchWatermarks",
    "Home",
    "Incarnation",
    "JsonValue",
    "Observation",
    "Queries",
    "QueryRecord",
    "QueryState",
    "Step",
    "WatermarkSteps",
]
