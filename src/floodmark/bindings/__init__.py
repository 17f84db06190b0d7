"""Timestamp bindings: every offset of a source gets a timestamp that is durable and the same for all readers.

`Bindings` registers sources, closes timestamps, keeps holds and compacts; `BoundStream` and `BoundTopics` bind a stream
or Kafka topics. `history`, `timestamps`, `offsets` and `topics.partitions` are pure rules; `sources`, `minting`,
`holds` and `coordination` keep state in the home's tables (`tables`). `sinks`, `spark` and `cli` import this room; it
imports `streams`, `control`, `progress`, and `kafka` only when topics are bound. Start with `history`, then `minting`.
"""

from floodmark.bindings.bindings import Bindings
from floodmark.bindings.bound_stream import BoundStream
from floodmark.bindings.history import BindingHistory, Pair
from floodmark.bindings.holds import CompactionResult, Hold
from floodmark.bindings.minting import Ends, TickResult, Watermarks
from floodmark.bindings.offsets import SourceOffset
from floodmark.bindings.sources import BindingSource
from floodmark.bindings.topics.bound_topics import BoundTopics
from floodmark.bindings.topics.partitions import PartitionStatus, TimeRule, TopicWatermark

__all__ = [
    "BindingHistory",
    "BindingSource",
    "Bindings",
    "BoundStream",
    "BoundTopics",
    "CompactionResult",
    "Ends",
    "Hold",
    "Pair",
    "PartitionStatus",
    "SourceOffset",
    "TickResult",
    "TimeRule",
    "TopicWatermark",
    "Watermarks",
]
