"""A target in which a manifest closes each batch: rows are written first, and count once a manifest names them.

Manifests form a chain. One counts if its number follows that of the last one that counted; of several with the
same number the first counts. So two processes that write at the same time never both close a batch, and all
readers of the same manifests agree which of them did. What no manifest names is not part of the sink's rows:
leftovers of killed or repeated attempts, or of a process that was fenced.

If anything fails before the manifest is added, its rows never count. If anything fails after, the next start
reads the manifest and drops the batch. To start, a process adds a manifest of its own; from then on no process
that has not seen it can add one.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from floodmark.errors import FloodmarkError, SinkProgressInvalid, TableConflict, TableFailed
from floodmark.sinks.gate import Batch, Drop, Write, WriteFrom, initial_progress, progress_after
from floodmark.sinks.progress import Progress, check_sink_name
from floodmark.sinks.startup import BoundsLookup, Start, StartupState, decide_start
from floodmark.sinks.target import (
    BEFORE_BEGIN,
    COMMITTED,
    FENCED,
    ROWS_FLUSHED,
    STARTED,
    CommitPoint,
    Failpoint,
    SinkMode,
    fenced_error,
    no_failpoint,
    not_started_error,
)

_FORMAT_VERSION: Final = 1


class ManifestPart(NamedTuple):
    """Something that an attempt has made: a file, or the rows of one task; and how many rows it has."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A record of a sink: what is closed from here on.

    >>> closing = Manifest("out", 2, "b7", "a1", (ManifestPart("a1/part-0.parquet", 7),))
    >>> Manifest.load(closing.save()) == closing
    True
    """

    sink: str
    number: int
    """Counted from 1, without gaps."""
    token: str
    """What tells it from another record of the same number."""
    attempt: str | None = None
    """The last attempt that counts; None before the first."""
    parts: tuple[ManifestPart, ...] = ()
    """What that attempt has made, if it is this record that closes it."""
    progress: Progress | None = None

    @property
    def rows(self) -> int:
        """How many rows it closes."""
        return sum(part.rows for part in self.parts)

    def fence(self, token: str) -> "Manifest":
        """Return the record with which another process takes over: it says the same of rows, and closes none."""
        return replace(self, number=self.number + 1, token=token, parts=())

    def save(self) -> bytes:
        """Return it as JSON."""
        saved = {
            "form": _FORMAT_VERSION,
            "sink": self.sink,
            "number": self.number,
            "token": self.token,
            "attempt": self.attempt,
            "parts": [list(part) for part in self.parts],
            "progress": None if self.progress is None else json.loads(self.progress.save()),
        }
        return json.dumps(saved, separators=(",", ":")).encode()

    @classmethod
    def load(cls, value: bytes | str) -> "Manifest":
        """Return what was saved."""
        try:
            saved = json.loads(value)
            if saved["form"] != _FORMAT_VERSION:
                raise ValueError(saved["form"])
            progress, attempt = saved["progress"], saved["attempt"]
            return cls(
                sink=str(saved["sink"]),
                number=int(saved["number"]),
                token=str(saved["token"]),
                attempt=None if attempt is None else str(attempt),
                parts=tuple(ManifestPart(str(name), int(rows)) for name, rows in saved["parts"]),
                progress=None if progress is None else Progress.load(json.dumps(progress)),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SinkProgressInvalid(
                f"A record of what is closed is {value!r:.200}.",
                rule=f"It is JSON in form {_FORMAT_VERSION}, as this release writes it.",
                remedy="Check who else writes there, and that all run the same release.",
            ) from error


def effective_manifests(records: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """Return, of each sink, the records that count among those that were found, in the order in which they came.

    >>> one, late, two = (Manifest("out", number, token) for number, token in ((1, "a"), (1, "b"), (2, "c")))
    >>> [record.token for record in effective_manifests([one, late, two])["out"]]
    ['a', 'c']
    """
    chains: dict[str, list[Manifest]] = {}
    for record in records:
        chain = chains.setdefault(record.sink, [])
        if record.number == len(chain) + 1:
            chain.append(record)
    return chains


AttemptWriter = Callable[[str], Sequence[ManifestPart]]
"""Writes rows for an attempt, and returns what it has made.

A TableConflict says that others took away what it has read, and that nothing of the attempt is left.
"""

_MAX_ATTEMPTS: Final = 20


class ManifestLog(Protocol):
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

    def newest(self) -> Manifest | None:
        """Return the last record of the sink that counts."""

    def has_rows(self) -> bool:
        """Return whether there is any row, of whomever."""

    def add(self, record: Manifest) -> bool:
        """Add a record behind the one that was read last, and return whether it counts.

        A TableConflict says that the rows of its attempt do not hold any more, since others have changed what they were
        made from: nothing of them is left, and they are to be made anew.
        """

    def clean(self, record: Manifest) -> None:
        """Remove what was seen of attempts that do not count, now that nobody can close them."""

    def close(self) -> None:
        """Let go."""


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """How a sink writes that closes its batches by records."""

    version: int = 1
    append: bool = False


class ManifestTarget:
    """Writes batches, each once. One thread at a time; `start` comes first, and again after every error."""

    def __init__(
        self,
        log: ManifestLog,
        options: ManifestOptions = ManifestOptions(),  # noqa: B008
        *,
        mode: SinkMode = "staged",
        known: Callable[[], Progress | None] = lambda: None,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        """Write for the sink of this log; nothing is asked of it before `start`.

        `known` tells what is known of the sink elsewhere, and no record may say less.
        """
        self.log = log
        self.options = options
        self.mode: SinkMode = mode
        self._known = known
        self._failpoint = failpoint
        self._newest: Manifest | None = None
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

    def start(self, bounds: BoundsLookup) -> Start:
        """Read what was written, decide, and fence those before: by one record that follows the one that was read.

        `bounds` tells what can be read of sources; those without bindings are left out.
        """
        check_sink_name(self.sink)
        if self._ended is not None:
            raise self._ended
        self._is_started = False
        known = self._known()
        for _ in range(_MAX_ATTEMPTS):
            place_id = self.log.open()
            found = None if place_id is None else self.log.newest()
            start = self._decide(found, place_id, bounds, known)
            if place_id is None:
                self.log.make()
                continue
            record = (found or Manifest(self.sink, 0, "")).fence(secrets.token_hex(8))
            if self.log.add(record):
                break
        else:
            raise fenced_error(self.sink, f"it tried to start {_MAX_ATTEMPTS} times")
        self._failpoint(FENCED)
        self._newest, self._place_id = record, place_id
        self.log.clean(record)
        self._is_started = True
        self._failpoint(STARTED)
        return start

    def write(
        self,
        run: AttemptWriter | tuple[()],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> Progress:
        """Let `run` write the rows of a batch for an attempt, close what it says to have made, and return the progress.

        If there is nothing to be written, it is empty. A batch is closed by one record: `split` is not asked. After
        any error the target must be started again.
        """
        newest = self._started()
        self._is_started = False
        self._failpoint(BEFORE_BEGIN)
        for left in reversed(range(_MAX_ATTEMPTS)):
            try:
                record = self._close(run, newest, batch, decision, watermarks or {})
                break
            except TableConflict as error:
                if not left:
                    raise _contention_error(self.sink, self.log.place) from error
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
        run: AttemptWriter | tuple[()],
        newest: Manifest,
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
    ) -> Manifest:
        """Write rows for a new attempt, and add the record that closes it."""
        attempt = newest.attempt
        parts: tuple[ManifestPart, ...] = ()
        if run:
            attempt = secrets.token_hex(8)
            parts = self._run(run, attempt, newest)
        self._failpoint(ROWS_FLUSHED)
        record = Manifest(self.sink, newest.number + 1, secrets.token_hex(8), attempt, parts)
        record = replace(record, progress=self._next(batch, decision, record, watermarks))
        if not self.log.add(record):
            self._ended = fenced_error(self.sink, "closing a batch")
            raise self._ended
        return record

    def _run(self, run: AttemptWriter, attempt: str, newest: Manifest) -> tuple[ManifestPart, ...]:
        try:
            return tuple(run(attempt))
        except Exception as error:
            with suppress(FloodmarkError):
                self.log.open()
                found = self.log.newest()
                if found is not None and found.number > newest.number:
                    # Whoever starts removes what others are writing.
                    self._ended = fenced_error(self.sink, "writing rows")
            if self._ended is not None:
                raise self._ended from error
            raise

    def _next(
        self, batch: Batch, decision: Write | WriteFrom | Drop, record: Manifest, watermarks: Mapping[str, int]
    ) -> Progress:
        known = self.progress or initial_progress(self.sink, self.log.place, self._place_id, self.version, batch)
        progress = progress_after(known, batch, decision, rows=record.rows, watermarks=watermarks)
        return replace(progress, version=self.version, position={0: record.number})

    def _decide(
        self,
        found: Manifest | None,
        place_id: str | None,
        bounds: BoundsLookup,
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
            StartupState(
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

    def _started(self) -> Manifest:
        if self._ended is not None:
            raise self._ended
        if self._newest is None or not self._is_started:
            raise not_started_error(self.sink)
        return self._newest


def _contention_error(sink: str, place: str) -> TableFailed:
    return TableFailed(
        f"{place} was changed by others {_MAX_ATTEMPTS} times while the sink {sink!r} replaced rows in it.",
        rule="What takes the place of rows is computed from what is there, and holds as long as nobody changes that.",
        remedy="Let others write there less often, or at other times, and start again: nothing of the batch is seen.",
        table=place,
        sink=sink,
    )
