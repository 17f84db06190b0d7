"""A target in which a record closes each batch: rows are written first, and count once the record is there.

Whatever happens before the record is there, its rows never count. Whatever happens after, the next start reads the
record, and drops the batch. To start, a process adds a record of its own, and from then on nobody can add one who has
not seen it.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from floodmark.errors import FloodmarkError, SinkProgressInvalid, TableConflict, TableFailed
from floodmark.sinks._closings import Closing, Part
from floodmark.sinks._failpoints import BEFORE_BEGIN, COMMITTED, FENCED, ROWS_FLUSHED, STARTED, Failpoint, go_on
from floodmark.sinks._gate import Batch, Drop, Write, WriteFrom
from floodmark.sinks._next_record import first_progress, progress_after
from floodmark.sinks._progress import Progress, check_sink_name
from floodmark.sinks._sink_errors import fenced_off, not_started
from floodmark.sinks._sinks import Mode
from floodmark.sinks._startup import BoundsOf, Found, Start, decide_start
from floodmark.sinks._target_options import Step

Run = Callable[[str], Sequence[Part]]
"""Writes rows for an attempt, and returns what it has made.

A TableConflict says that others took away what it has read, and that nothing of the attempt is left.
"""

_ATTEMPTS: Final = 20


class ClosingLog(Protocol):
    """Where the records of a sink are, one after the other. Of two that would follow the same one, one is added."""

    sink: str
    noun: str
    """What the target is, to a person."""

    @property
    def place(self) -> str:
        """Where the rows are: a topic, or a directory."""

    @property
    def address(self) -> str:
        """What names the target."""

    def open(self) -> str | None:
        """Refuse a target that does not fit; return what tells it from a later one, and None if there is none.

        Also see what attempts have left: whoever starts later has others, and they are not ours to remove.
        """

    def make(self) -> None:
        """Make the target; somebody else may do so at the same time."""

    def newest(self) -> Closing | None:
        """Return the last record of the sink that counts."""

    def has_rows(self) -> bool:
        """Return whether there is any row, of whomever."""

    def add(self, record: Closing) -> bool:
        """Add a record behind the one that was read last, and return whether it counts.

        A TableConflict says that the rows of its attempt do not hold any more, since others have changed what they were
        made from: nothing of them is left, and they are to be made anew.
        """

    def clean(self, record: Closing) -> None:
        """Remove what was seen of attempts that do not count, now that nobody can close them."""

    def close(self) -> None:
        """Let go."""


@dataclass(frozen=True, slots=True)
class ClosingOptions:
    """How a sink writes that closes its batches by records."""

    version: int = 1
    append: bool = False


class ClosingTarget:
    """Writes batches, each once. One thread at a time; `start` comes first, and again after every error."""

    def __init__(
        self,
        log: ClosingLog,
        options: ClosingOptions = ClosingOptions(),  # noqa: B008
        *,
        mode: Mode = "staged",
        known: Callable[[], Progress | None] = lambda: None,
        failpoint: Failpoint = go_on,
    ) -> None:
        """Write for the sink of this log; nothing is asked of it before `start`.

        `known` tells what is known of the sink elsewhere, and no record may say less.
        """
        self.log = log
        self.options = options
        self.mode: Mode = mode
        self._known = known
        self._failpoint = failpoint
        self._newest: Closing | None = None
        self._place_id = ""
        self._ended: FloodmarkError | None = None
        self._is_started = False

    @property
    def sink(self) -> str:
        """The name of the sink."""
        return self.log.sink

    @property
    def address(self) -> str:
        """What names the target."""
        return self.log.address

    @property
    def version(self) -> int:
        """The version of the program."""
        return self.options.version

    @property
    def progress(self) -> Progress | None:
        """What was written, as far as this process knows."""
        return None if self._newest is None else self._newest.progress

    def start(self, bounds: BoundsOf) -> Start:
        """Read what was written, decide, and fence those before: by one record that follows the one that was read.

        `bounds` tells what can be read of sources; those without bindings are left out.
        """
        check_sink_name(self.sink)
        if self._ended is not None:
            raise self._ended
        self._is_started = False
        known = self._known()
        for _ in range(_ATTEMPTS):
            place_id = self.log.open()
            found = None if place_id is None else self.log.newest()
            start = self._decide(found, place_id, bounds, known)
            if place_id is None:
                self.log.make()
                continue
            record = (found or Closing(self.sink, 0, "")).fence(secrets.token_hex(8))
            if self.log.add(record):
                break
        else:
            raise fenced_off(self.sink, f"it tried to start {_ATTEMPTS} times")
        self._failpoint(FENCED)
        self._newest, self._place_id = record, place_id
        self.log.clean(record)
        self._is_started = True
        self._failpoint(STARTED)
        return start

    def write(
        self,
        run: Run | tuple[()],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], Step] | None = None,
    ) -> Progress:
        """Let `run` write the rows of a batch for an attempt, close what it says to have made, and return the progress.

        If there is nothing to be written, it is empty. A batch is closed by one record: `split` is not asked. After
        any error the target must be started again.
        """
        newest = self._started()
        self._is_started = False
        self._failpoint(BEFORE_BEGIN)
        for left in reversed(range(_ATTEMPTS)):
            try:
                record = self._close(run, newest, batch, decision, watermarks or {})
                break
            except TableConflict as error:
                if not left:
                    raise _never_alone(self.sink, self.log.place) from error
        self._newest, self._is_started = record, True
        self._failpoint(COMMITTED)
        assert record.progress is not None
        return record.progress

    def close(self) -> None:
        """Let go."""
        self._is_started = False
        self.log.close()

    def _close(
        self,
        run: Run | tuple[()],
        newest: Closing,
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
    ) -> Closing:
        """Write rows for a new attempt, and add the record that closes it."""
        attempt = newest.attempt
        parts: tuple[Part, ...] = ()
        if run:
            attempt = secrets.token_hex(8)
            parts = self._run(run, attempt, newest)
        self._failpoint(ROWS_FLUSHED)
        record = Closing(self.sink, newest.number + 1, secrets.token_hex(8), attempt, parts)
        record = replace(record, progress=self._next(batch, decision, record, watermarks))
        if not self.log.add(record):
            self._ended = fenced_off(self.sink, "closing a batch")
            raise self._ended
        return record

    def _run(self, run: Run, attempt: str, newest: Closing) -> tuple[Part, ...]:
        try:
            return tuple(run(attempt))
        except Exception as error:
            with suppress(FloodmarkError):
                self.log.open()
                found = self.log.newest()
                if found is not None and found.number > newest.number:
                    # Whoever starts removes what others are writing.
                    self._ended = fenced_off(self.sink, "writing rows")
            if self._ended is not None:
                raise self._ended from error
            raise

    def _next(
        self, batch: Batch, decision: Write | WriteFrom | Drop, record: Closing, watermarks: Mapping[str, int]
    ) -> Progress:
        known = self.progress or first_progress(self.sink, self.log.place, self._place_id, self.version, batch)
        progress = progress_after(known, batch, decision, rows=record.rows, watermarks=watermarks)
        return replace(progress, version=self.version, position={0: record.number})

    def _decide(
        self,
        found: Closing | None,
        place_id: str | None,
        bounds: BoundsOf,
        known: Progress | None,
    ) -> Start:
        progress = None if found is None else found.progress
        if known is not None and known.topic_id == place_id:
            told = 0 if progress is None else progress.total
            if progress is None or told < known.total:
                raise SinkProgressInvalid(
                    f"The sink {self.sink!r} has written {known.total} rows to {self.log.place}; {told} are told of.",
                    rule="What was committed stays.",
                    remedy="See who has put an older copy there; if it went on, rows would be there twice, or missing.",
                    sink=self.sink,
                )
        elif progress is None:
            # Rows and records are in one place, and can be deleted together. What was known before tells of it.
            progress = known
        return decide_start(
            Found(
                self.sink,
                self.version,
                self.log.place,
                place_id,
                # Whoever has a record here was let in before.
                place_id is not None and found is None and self.log.has_rows(),
                progress,
                {} if progress is None else bounds(progress.ends),
                self.log.noun,
            ),
            append=self.options.append,
        )

    def _started(self) -> Closing:
        if self._ended is not None:
            raise self._ended
        if self._newest is None or not self._is_started:
            raise not_started(self.sink)
        return self._newest


def _never_alone(sink: str, place: str) -> TableFailed:
    return TableFailed(
        f"{place} was changed by others {_ATTEMPTS} times while the sink {sink!r} replaced rows in it.",
        rule="What takes the place of rows is computed from what is there, and holds as long as nobody changes that.",
        remedy="Let others write there less often, or at other times, and start again: nothing of the batch is seen.",
        table=place,
        sink=sink,
    )
