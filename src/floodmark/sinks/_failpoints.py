"""The places in a sink at which a test may stop the process."""

from collections.abc import Callable
from typing import Final

Failpoint = Callable[[str], None]
"""Called with the name of each place when it is reached."""

FAILPOINTS: Final = (
    "sink: fenced",
    "sink: progress scanned in part",
    "sink: started",
    "sink: before the transaction",
    "sink: some rows sent",
    "sink: rows flushed",
    "sink: progress flushed",
    "sink: committed",
    "sink: hold advanced",
)
"""In the order in which they are reached."""
(
    FENCED,
    SCANNED_IN_PART,
    STARTED,
    BEFORE_BEGIN,
    SOME_ROWS_SENT,
    ROWS_FLUSHED,
    PROGRESS_FLUSHED,
    COMMITTED,
    HOLD_ADVANCED,
) = FAILPOINTS


def go_on(place: str) -> None:
    """Do nothing at a failpoint."""
