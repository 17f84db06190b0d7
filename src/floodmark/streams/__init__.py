"""Streams: segments over a key space, writers that note time, and the watermark that follows from their marks.

A program calls `connect` and works with `StreamHome`, `Stream`, `Writer`, `TransactionalWriter`, `ReaderGroup`,
`Reader` and `Controller`; they and the values they return are exported here. Rooms above may import the modules.

| where | what |
|---|---|
| `home`, `stream` | start reading here: `connect`, and what a stream can do |
| `writers/`, `readers/` | what a program holds; they reach a home through `ports` only |
| `definition`, `events`, `ddl` | what a stream is, and what its events look like |
| `layout/`, `marks/`, `groups/` | the rules: pure functions, the time is an argument |
| `controller` | brings watermarks forward; any number of controllers share the streams of a home |
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
from floodmark.streams.marks.log import EntryKind, Found, MarkEntry, Whereabouts
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
    "Found",
    "GroupCut",
    "GroupExplanation",
    "GroupState",
    "Key",
    "KeyRange",
    "Layout",
    "MarkEntry",
    "MarkOutcome",
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
    "Whereabouts",
    "Writer",
    "WriterView",
    "connect",
]
