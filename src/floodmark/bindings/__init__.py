"""Timestamp bindings: every offset of a source gets a timestamp, the same for everybody and after every restart.

`Bindings` keeps them in a home:

| name | does |
|---|---|
| `Bindings` | registers sources, closes timestamps, keeps holds, compacts |
| `BindingSource` | a source: what it is, how often it ticks, how far it has come |
| `BindingHistory` | which offsets belong to which timestamp, and the watermarks at these places |
| `Hold` | who keeps old timestamps from being given up, and whether it still moves |
| `Proposals` | timestamps that may be used in this process before they are stored |

A source has an open timestamp, its `upper`. A tick closes it: whatever has been seen of each partition is bound to it,
and the next one opens. What is bound is durable, and can be read in [since, upper).

Behind it are the rules, without clock and I/O: `next_ts` and its neighbours say which timestamp comes when, and
`since_after` which ones may be given up.
"""

from floodmark.bindings._aligned_readers import AlignedReaders
from floodmark.bindings._batches import BoundRange, Limits, bound_ranges, next_offset, offset_at
from floodmark.bindings._bindings import Bindings
from floodmark.bindings._bound_stream import BoundStream
from floodmark.bindings._bound_topics import BoundTopics
from floodmark.bindings._compaction import Compaction, since_after
from floodmark.bindings._history import BindingHistory, Pair
from floodmark.bindings._holds import Hold
from floodmark.bindings._minting import FAILPOINTS, Ends, Ticked, Watermarks
from floodmark.bindings._partition_times import PartitionView, TimeRule, TopicTime
from floodmark.bindings._places import Place, Stop, before_stop, compare
from floodmark.bindings._proposals import Proposal, Proposals
from floodmark.bindings._query_readers import QueryReader, QueryReaders, QueryStops
from floodmark.bindings._source import BindingSource
from floodmark.bindings._source_offset import SourceOffset
from floodmark.bindings._ticks import is_due, next_boundary, next_ts, open_ts, own_clock

__all__ = [
    "FAILPOINTS",
    "AlignedReaders",
    "BindingHistory",
    "BindingSource",
    "Bindings",
    "BoundRange",
    "BoundStream",
    "BoundTopics",
    "Compaction",
    "Ends",
    "Hold",
    "Limits",
    "Pair",
    "PartitionView",
    "Place",
    "Proposal",
    "Proposals",
    "QueryReader",
    "QueryReaders",
    "QueryStops",
    "SourceOffset",
    "Stop",
    "Ticked",
    "TimeRule",
    "TopicTime",
    "Watermarks",
    "before_stop",
    "bound_ranges",
    "compare",
    "is_due",
    "next_boundary",
    "next_offset",
    "next_ts",
    "offset_at",
    "open_ts",
    "own_clock",
    "since_after",
]
