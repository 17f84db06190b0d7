"""What a sink keeps from being given up: the timestamps by which it knows what it has written."""

from collections.abc import Iterable
from typing import Final

from floodmark.bindings import Bindings
from floodmark.errors import TimestampNotValid, UnknownHold, UnknownSource
from floodmark.sinks._progress import Progress
from floodmark.sinks._sinks import holder_of
from floodmark.sinks._startup import Bounds, needed_from

_ATTEMPTS: Final = 5


class SourceHolds:
    """The holds of one sink. They only move on, and only after what they kept was written."""

    def __init__(self, bindings: Bindings, sink: str) -> None:
        """Hold sources of these bindings."""
        self._bindings = bindings
        self._holder = holder_of(sink)

    def take(self, sources: Iterable[str]) -> None:
        """Before anything is written or decided, keep all that can still be read."""
        for source in sources:
            for attempt in range(_ATTEMPTS):
                try:
                    self._move(source, self._bindings.source(source).since)
                    break
                except TimestampNotValid:
                    # It was compacted in between.
                    if attempt == _ATTEMPTS - 1:
                        raise

    def bounds(self, sources: Iterable[str]) -> dict[str, Bounds]:
        """Hold sources, and return what can be read of them, which stays so; those without bindings are left out."""
        found = {}
        for source in sources:
            try:
                self.take([source])
                found[source] = Bounds.of(self._bindings.source(source))
            except UnknownSource:
                continue
        return found

    def follow(self, progress: Progress) -> None:
        """Let go of what a sink does not need any more, now that so much is written."""
        for source in progress.ends:
            needed, since = needed_from(progress, source), self._bindings.source(source).since
            # What lies before the first timestamp that is needed must be told from it.
            self._move(source, since if needed is None else max(needed - 1, since))

    def _move(self, source: str, ts: int) -> None:
        try:
            self._bindings.advance_hold(source, self._holder, ts)
        except UnknownHold:
            self._bindings.hold(source, self._holder, ts, "sink")
