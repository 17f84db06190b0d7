"""Pure rules of event-time progress: no clock, no I/O, no Spark. Time is always an argument.

| class | keeps |
|---|---|
| `Coalescer` | per key, the minimum over inputs; knows idle, revived and finished |
| `GroupedCoalescer` | the same on two levels: inputs of a group, then groups |
| `OriginWatermarks` | watermarks made from the rows of each origin by a `Generator`, merged |
| `Tracker` | per origin, the longest gap-free prefix of parallel, repeated work and its watermark |
| `Alignment` | how far ahead of the slowest input a fast one may read |
"""

from floodmark._util.codec import Snapshot
from floodmark._util.ints import INT64_MAX, INT64_MIN
from floodmark._util.names import Name
from floodmark.progress._alignment import Alignment
from floodmark.progress._coalescer import Coalescer, NotRising
from floodmark.progress._explanation import Explanation, InputView, KeyView
from floodmark.progress._generators import (
    BatchGenerator,
    BoundedDisorder,
    Generator,
    GeneratorState,
    Punctuated,
    WallClockLag,
)
from floodmark.progress._groups import GroupedCoalescer, GroupSignals
from floodmark.progress._inputs import Revived
from floodmark.progress._origin_memory import IdleCause, OriginActivity
from floodmark.progress._origins import OriginWatermarks
from floodmark.progress._policies import Frame, Idleness
from floodmark.progress._prefix import Outcome
from floodmark.progress._signals import IDLE, Idle, Signal, Watermark
from floodmark.progress._statistics import BatchOutcome, OriginStatistics
from floodmark.progress._tracker import Tracker

__all__ = [
    "IDLE",
    "INT64_MAX",
    "INT64_MIN",
    "Alignment",
    "BatchGenerator",
    "BatchOutcome",
    "BoundedDisorder",
    "Coalescer",
    "Explanation",
    "Frame",
    "Generator",
    "GeneratorState",
    "GroupSignals",
    "GroupedCoalescer",
    "Idle",
    "IdleCause",
    "Idleness",
    "InputView",
    "KeyView",
    "Name",
    "NotRising",
    "OriginActivity",
    "OriginStatistics",
    "OriginWatermarks",
    "Outcome",
    "Punctuated",
    "Revived",
    "Signal",
    "Snapshot",
    "Tracker",
    "WallClockLag",
    "Watermark",
]
