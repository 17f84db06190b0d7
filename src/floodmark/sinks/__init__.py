"""Sinks that write exactly once: rows, and the record of how far they are, become visible together.

`Sink` takes the batches of a query and writes each once to a target: `KafkaTarget`, `StreamTarget`, a manifest target
(Delta tables, files, topics without transactions), or, from several tasks at once, `GroupedSink` and `GroupedTarget`.
Only `floodmark.spark` and `floodmark.cli` import this room. Start reading with `sink`, then `gate` (is a batch to be
written?) and `startup` (how does a sink begin?): both are rules without clock and I/O. `target` is what all targets
share, `registry` the sinks that a home knows, `kafka/`, `stream` and `manifest/` are the targets.
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
    # Other targets need no Kafka client.
    if name in _LOADED_ON_FIRST_USE:
        return getattr(import_module(f"floodmark.sinks.{_LOADED_ON_FIRST_USE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
