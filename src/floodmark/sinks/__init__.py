"""Sinks that write exactly once: the rows and the record of how far the sink has written become visible together.

`Sink` writes each batch of a query once to a target: `KafkaTarget`, `StreamTarget` or a manifest target (Delta tables,
files, topics without transactions). `GroupedSink` and `GroupedTarget` write one batch from several tasks.
Only `floodmark.spark` and `floodmark.cli` import this room. Start with `sink`, then read the pure rules: `gate` (must a
batch be written?) and `startup` (how does a sink start?). `target` is the protocol of all targets, `registry` the list
of a home's sinks; `kafka/`, `stream` and `manifest/` are the targets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from floodmark.sinks.gate import Batch, Drop, Write, WriteFrom
from floodmark.sinks.kafka.rows import TS_HEADER, OutRow, partition_of
from floodmark.sinks.progress import GroupLayout, Progress, SinkMark, group_of
from floodmark.sinks.registry import SinkInfo, Sinks
from floodmark.sinks.sink import BatchOutcome, Sink
from floodmark.sinks.startup import Begin, BeginElsewhere, Resume, Start
from floodmark.sinks.stream import KeyedRows, StreamShape, StreamTarget
from floodmark.sinks.target import CommitPoint, SinkTarget, TargetOptions

if TYPE_CHECKING:
    from floodmark.sinks.kafka.parallel import GroupedSink, GroupedTarget, GroupResult, GroupWriter
    from floodmark.sinks.kafka.target import KafkaTarget

__all__ = [
    "TS_HEADER",
    "Batch",
    "BatchOutcome",
    "Begin",
    "BeginElsewhere",
    "CommitPoint",
    "Drop",
    "GroupLayout",
    "GroupResult",
    "GroupWriter",
    "GroupedSink",
    "GroupedTarget",
    "KafkaTarget",
    "KeyedRows",
    "OutRow",
    "Progress",
    "Resume",
    "Sink",
    "SinkInfo",
    "SinkMark",
    "SinkTarget",
    "Sinks",
    "Start",
    "StreamShape",
    "StreamTarget",
    "TargetOptions",
    "Write",
    "WriteFrom",
    "group_of",
    "partition_of",
]

_LOADED_ON_FIRST_USE: Final = {
    "GroupResult": "kafka.parallel",
    "GroupWriter": "kafka.parallel",
    "GroupedSink": "kafka.parallel",
    "GroupedTarget": "kafka.parallel",
    "KafkaTarget": "kafka.target",
}


def __getattr__(name: str) -> Any:
    # Only the Kafka targets need the Kafka client.
    if name in _LOADED_ON_FIRST_USE:
        return getattr(import_module(f"floodmark.sinks.{_LOADED_ON_FIRST_USE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
