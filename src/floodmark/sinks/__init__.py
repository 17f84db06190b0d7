"""Sinks that write exactly once: rows, and the record of how far they are, become visible together.

| name | does |
|---|---|
| `Sink` | takes the batches of a query, and writes each once |
| `KafkaTarget` | a topic that is written in transactions |
| `StreamTarget` | a stream, whose transaction and the sink's record are decided in one step |
| `GroupedSink`, `GroupedTarget`, `GroupWriter` | the same, from several tasks at once |
| `Batch` | of each source, where a batch begins and ends |
| `Progress` | the record of what was written |
| `Sinks` | the sinks that a home knows |

Behind it are the rules, without clock and I/O: `decide` says what becomes of a batch, `cuts` where batches must end,
and `decide_start` what a sink does when it starts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from floodmark.sinks._failpoints import FAILPOINTS
from floodmark.sinks._gate import (
    Batch,
    Cut,
    Decision,
    Drop,
    Write,
    WriteFrom,
    cuts,
    decide,
    is_written,
    next_progress,
)
from floodmark.sinks._out_rows import TS_HEADER, OutRow
from floodmark.sinks._progress import GroupLayout, Progress, SinkMark
from floodmark.sinks._row_groups import GroupsStart, decide_groups, group_of, partition_of
from floodmark.sinks._sink import Outcome, Sink, Target
from floodmark.sinks._sinks import SinkInfo, Sinks
from floodmark.sinks._startup import Begin, BeginElsewhere, Bounds, Found, Resume, Start, decide_start
from floodmark.sinks._stream_shape import StreamShape
from floodmark.sinks._stream_target import KeyedRows, StreamTarget
from floodmark.sinks._target_options import Step, TargetOptions

if TYPE_CHECKING:
    from floodmark.sinks._grouped_sink import GroupedSink
    from floodmark.sinks._kafka_groups import GroupedTarget, GroupResult, GroupWriter
    from floodmark.sinks._kafka_target import KafkaTarget
    from floodmark.sinks._topic_shape import progress_topic_of

__all__ = [
    "FAILPOINTS",
    "TS_HEADER",
    "Batch",
    "Begin",
    "BeginElsewhere",
    "Bounds",
    "Cut",
    "Decision",
    "Drop",
    "Found",
    "GroupLayout",
    "GroupResult",
    "GroupWriter",
    "GroupedSink",
    "GroupedTarget",
    "GroupsStart",
    "KafkaTarget",
    "KeyedRows",
    "OutRow",
    "Outcome",
    "Progress",
    "Resume",
    "Sink",
    "SinkInfo",
    "SinkMark",
    "Sinks",
    "Start",
    "Step",
    "StreamShape",
    "StreamTarget",
    "Target",
    "TargetOptions",
    "Write",
    "WriteFrom",
    "cuts",
    "decide",
    "decide_groups",
    "decide_start",
    "group_of",
    "is_written",
    "next_progress",
    "partition_of",
    "progress_topic_of",
]

_OF_KAFKA: Final = {
    "GroupResult": "_kafka_groups",
    "GroupWriter": "_kafka_groups",
    "GroupedSink": "_grouped_sink",
    "GroupedTarget": "_kafka_groups",
    "KafkaTarget": "_kafka_target",
    "progress_topic_of": "_topic_shape",
}


def __getattr__(name: str) -> Any:
    # Whoever writes elsewhere needs no client for Kafka.
    if name in _OF_KAFKA:
        return getattr(import_module(f"floodmark.sinks.{_OF_KAFKA[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
