"""Pure rules of event-time progress: no clock, no I/O, no Spark. Time is always an argument.

| class | keeps |
|---|---|
| `Coalescer` | per key, the minimum over inputs; inputs may be idle, revived or finished |
| `GroupedCoalescer` | the same on two levels: inputs of a group, then groups |
| `OriginWatermarks` | watermarks made from the rows of each origin by a `Generator`, merged |
| `Tracker` | per origin, the longest gap-free prefix of parallel, repeated work and its watermark |
| `Alignment` | how far ahead of the slowest input a fast one may read |

Every room may import this one; it imports only `errors` and `_util`. Start with `coalescer`, then `origin_watermarks`.
"""

from floodmark._util.codec import Snapshot
from floodmark._util.names import Name
from floodmark.progress.alignment import Alignment
from floodmark.progress.coalescer import Coalescer, Explanation, InputView, KeyView, NotRising
from floodmark.progress.coalescer_state import Revived
from floodmark.progress.generators import (
    BatchGenerator,
    BoundedDisorder,
    Generator,
    GeneratorState,
    Punctuated,
    WallClockLag,
)
from floodmark.progress.grouped_coalescer import GroupedCoalescer, GroupSignals
from floodmark.progress.origin_state import IdleCause, OriginActivity
from floodmark.progress.origin_watermarks import AfterFinish, Frame, Idleness, OriginAction, OriginWatermarks
from floodmark.progress.signals import IDLE, Idle, Signal, Watermark
from floodmark.progress.tracker.prefix import ReportOutcome
from floodmark.progress.tracker.tracker import BatchOutcome, OriginStatistics, Tracker

__all__ = [
    "IDLE",
    "AfterFinish",
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
    "OriginAction",
    "OriginActivity",
    "OriginStatistics",
    "OriginWatermarks",
    "Punctuated",
    "ReportOutcome",
    "Revived",
    "Signal",
    "Snapshot",
    "Tracker",
    "WallClockLag",
    "Watermark",
]
