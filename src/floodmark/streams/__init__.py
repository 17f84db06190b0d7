"""Streams: segmented event logs whose writers note time, and whose watermark is derived from these marks.

A program calls `connect` and uses `StreamHome`, `Stream`, `Writer`, `TransactionalWriter`, `ReaderGroup` and `Reader`;
these and the values they return are exported here. Rooms above this one may import the modules.

| where | what |
|---|---|
| `home`, `stream` | start reading here: `connect`, and the methods of a stream |
| `writers/`, `readers/` | the writers and readers of a program; they use a home only through `ports` |
| `definition`, `events` | the definition of a stream, and its events as Arrow batches |
| `layout/`, `marks/`, `groups/` | the rules: pure functions, with the current time as an argument |
| `controller` | advances watermarks; any number of controllers share the streams of a home |
| `backend` | a home opened in this process: `local/` (the store and the embedded log) and `kafka/` (Kafka as the log) |
| `remote/` | a home behind a service, over HTTP |
"""

from floodmark._util.times import Time
from floodmark.streams.controller import Controller
from floodmark.streams.definition import StreamInfo, StreamSettings, TimeColumns
from floodmark.streams.groups.state import Checkpoint, GroupCut, GroupState, StreamCut
from floodmark.streams.home import StreamHome, connect
from floodmark.streams.layout.layout import Key, KeyRange, Layout, Segment
from floodmark.streams.layout.positions import Position
from floodmark.streams.marks.log import EntryKind, LookupStatus, MarkEntry, MarksLookup
from floodmark.streams.marks.watermark import WatermarkExplanation, WriterView
from floodmark.streams.marks.windows import TimeWindow
from floodmark.streams.marks.writer_record import MarkOutcome
from floodmark.streams.ports import Chunk, CommitResult, TransactionState
from floodmark.streams.readers.group import CheckpointRequest, GroupExplanation, ReaderGroup, SegmentView
from floodmark.streams.readers.reader import ReadBatch, Reader
from floodmark.streams.stream import Stream
from floodmark.streams.writers.writer import Transaction, TransactionalWriter, Writer

__all__ = [
    "Checkpoint",
    "CheckpointRequest",
    "Chunk",
    "CommitResult",
    "Controller",
    "EntryKind",
    "GroupCut",
    "GroupExplanation",
    "GroupState",
    "Key",
    "KeyRange",
    "Layout",
    "LookupStatus",
    "MarkEntry",
    "MarkOutcome",
    "MarksLookup",
    "Position",
    "ReadBatch",
    "Reader",
    "ReaderGroup",
    "Segment",
    "SegmentView",
    "Stream",
    "StreamCut",
    "StreamHome",
    "StreamInfo",
    "StreamSettings",
    "Time",
    "TimeColumns",
    "TimeWindow",
    "Transaction",
    "TransactionState",
    "TransactionalWriter",
    "WatermarkExplanation",
    "Writer",
    "WriterView",
    "connect",
]
