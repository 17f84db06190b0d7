"""What a query keeps from being compacted: the timestamps that Spark may ask for again."""

import logging
from collections import deque
from typing import Final

from floodmark.bindings import BindingHistory, SourceOffset
from floodmark.errors import UnknownHold
from floodmark.spark._bound import Bound

_BATCHES_KEPT: Final = 100
"""Spark keeps this many batches to go back to, unless it is told otherwise."""
_BEAT_SECONDS: Final = 10.0
_LOG: Final = logging.getLogger("floodmark.spark")


class QueryHold:
    """The hold of one query, under the incarnation that its offsets have: one that is started again goes on with it."""

    __slots__ = ("_beat_at", "_bound", "_committed", "_holder", "_ts")

    def __init__(self, bound: Bound) -> None:
        """Hold nothing yet."""
        self._bound = bound
        self._holder: str | None = None
        self._ts = 0
        self._committed: deque[int] = deque(maxlen=_BATCHES_KEPT)
        self._beat_at = 0.0

    def take(self, history: BindingHistory, start: SourceOffset, now: float) -> None:
        """Hold what the query may ask for from `start` on, and say from time to time that it is alive."""
        if history.upper == history.origin:
            return
        if self._holder == start.incarnation:
            if now >= self._beat_at:
                self._advance(now)
            return
        begun = history.origin if start.ts is None else start.ts
        if start.ts is not None and start.ts < history.since:
            _LOG.warning(
                "The bindings of %r were compacted to %d, and the query goes on from %d: rows bound up to there are "
                "judged by no watermark.",
                self._bound.source,
                history.since,
                start.ts,
            )
        self._holder = start.incarnation
        held = {hold.holder: hold.ts for hold in self._bound.bindings.holds(self._bound.source)}
        self._ts = held.get(start.incarnation, max(history.since, min(begun, history.upper - 1)))
        self._advance(now)

    def committed(self, ts: int, now: float) -> None:
        """Let go of what lies before the batches that Spark keeps, now that one more is done."""
        is_full = len(self._committed) == _BATCHES_KEPT
        if is_full and self._holder is not None and self._committed[0] > self._ts:
            self._ts = self._committed[0]
            self._advance(now)
        self._committed.append(ts)

    def _advance(self, now: float) -> None:
        self._beat_at = now + _BEAT_SECONDS
        bindings, source, holder = self._bound.bindings, self._bound.source, self._holder or ""
        try:
            bindings.advance_hold(source, holder, self._ts)
        except UnknownHold:
            # It is the first time, or somebody has released it, who took this query for dead.
            bindings.hold(source, holder, max(self._ts, bindings.source(source).since), kind="query")
