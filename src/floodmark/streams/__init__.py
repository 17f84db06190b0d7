"""Streams: segments over a key space, writers that note time, and the watermark that follows from their marks.

`connect` opens a home of streams:

| name | does |
|---|---|
| `StreamHome`, `Stream` | create, find, scale, seal and delete streams; look up times and places; say why |
| `Writer` | puts events into a stream in order, each once, and notes time |
| `TransactionalWriter` | the same, all events of a transaction or none |
| `ReaderGroup`, `Reader` | share the segments of streams among readers, with one window in time, and checkpoints |
| `Controller` | brings watermarks forward; any number of them share the streams of a home |
| `StreamLog` | what a log must do to hold the events; the embedded one keeps them in the home |

Behind it are the rules: no clock, no I/O; the time is an argument, and what is known is handed in.

| name | says |
|---|---|
| `Layout`, `Segment` | which segment a key belongs to, epoch by epoch, and which segment came out of which |
| `cut_over`, `compare` | the least cut over many positions, and where a position stands to a cut |
| `WriterRecord` | what is known of a writer, and which of its marks are accepted |
| `decide` | what to append to the marks log now, or what to wait for |
| `MarksLog`, `cut_at`, `time_at` | the place of a time, and the time at a place |
| `explain_watermark` | who holds the watermark, and until when |
| `bucket_of`, `spread` | which controller looks after which stream |
| `WindowReader` | where a reader is in time |
"""

from floodmark._util.times import Time
from floodmark.streams._buckets import bucket_of, spread
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._controller import Controller
from floodmark.streams._cuts import after_finished, check_cut, cut_over, is_cut
from floodmark.streams._entries import EntryKind, MarkEntry
from floodmark.streams._events import Events
from floodmark.streams._key_points import Key, key_point, key_points
from floodmark.streams._layout import Layout
from floodmark.streams._log import Author, Chunk, StreamLog
from floodmark.streams._marks_log import (
    Found,
    MarksIndex,
    MarksLog,
    Whereabouts,
    cut_at,
    ending_at,
    starting_at,
    time_at,
)
from floodmark.streams._positions import (
    Position,
    Standing,
    check_position,
    compare,
    furthest,
    load_position,
    save_position,
)
from floodmark.streams._rules import WatermarkRules
from floodmark.streams._segments import KeyRange, Segment
from floodmark.streams._settings import StreamSettings, TimeColumns
from floodmark.streams._stream import Stream
from floodmark.streams._stream_home import StreamHome, connect
from floodmark.streams._transaction_rows import TransactionState
from floodmark.streams._transactional_writer import Transaction, TransactionalWriter
from floodmark.streams._transactions import CommitResult
from floodmark.streams._watermarker import Changes, Decision, Emit, Wait, WaitReason, decide
from floodmark.streams._why import WatermarkExplanation, WriterView, explain_watermark
from floodmark.streams._windows import TimeWindow, WindowReader
from floodmark.streams._writer import Writer
from floodmark.streams._writers import Mark, MarkOutcome, Noted, WriterRecord, WriterState, find_writer
from floodmark.streams.readers._cut_values import Checkpoint, GroupCut, StreamCut
from floodmark.streams.readers._explanation import GroupExplanation, SegmentView
from floodmark.streams.readers._group import CheckpointRequest, ReaderGroup
from floodmark.streams.readers._reader import ReadBatch, Reader
from floodmark.streams.readers._state import GroupState, PendingCheckpoint, ReaderRecord, StreamPart

__all__ = [
    "Author",
    "Changes",
    "Checkpoint",
    "CheckpointRequest",
    "Chunk",
    "CommitResult",
    "Controller",
    "Decision",
    "Emit",
    "EntryKind",
    "Events",
    "Found",
    "GroupCut",
    "GroupExplanation",
    "GroupState",
    "Key",
    "KeyRange",
    "Layout",
    "Mark",
    "MarkEntry",
    "MarkOutcome",
    "MarksIndex",
    "MarksLog",
    "Noted",
    "PendingCheckpoint",
    "Position",
    "ReadBatch",
    "Reader",
    "ReaderGroup",
    "ReaderRecord",
    "Segment",
    "SegmentView",
    "Standing",
    "Stream",
    "StreamCut",
    "StreamHome",
    "StreamInfo",
    "StreamLog",
    "StreamPart",
    "StreamSettings",
    "Time",
    "TimeColumns",
    "TimeWindow",
    "Transaction",
    "TransactionState",
    "TransactionalWriter",
    "Wait",
    "WaitReason",
    "WatermarkExplanation",
    "WatermarkRules",
    "Whereabouts",
    "WindowReader",
    "Writer",
    "WriterRecord",
    "WriterState",
    "WriterView",
    "after_finished",
    "bucket_of",
    "check_cut",
    "check_position",
    "compare",
    "connect",
    "cut_at",
    "cut_over",
    "decide",
    "ending_at",
    "explain_watermark",
    "find_writer",
    "furthest",
    "is_cut",
    "key_point",
    "key_points",
    "load_position",
    "save_position",
    "spread",
    "starting_at",
    "time_at",
]
