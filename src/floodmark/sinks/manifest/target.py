"""A target that closes each batch with a manifest: rows are written first, and count once a manifest names them.

Manifests form a chain. A manifest counts if its number follows that of the last one that counted; of several with the
same number the first counts. So two processes never both close a batch, and all readers of the same manifests agree.
Rows that no manifest names do not belong to the sink: leftovers of killed or repeated attempts, or of a fenced process.

After a failure before the manifest is added, its rows never count. After a failure later than that, the next start
reads the manifest and drops the batch. A starting process adds a manifest of its own, which fences all processes that
have not read it.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from floodmark._util.codec import parse_json
from floodmark.errors import FloodmarkError, SinkFenced, SinkProgressInvalid, TableConflict, TableFailed
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
    """A file of an attempt, or the rows of one of its tasks; and the number of rows."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A record that closes a batch, or fences earlier processes.

    >>> manifest = Manifest("out", 2, "b7", "a1", (ManifestPart("a1/part-0.parquet", 7),))
    >>> Manifest.load(manifest.save()) == manifest
    True
    """

    sink: str
    number: int
    """Position in the chain, from 1 without gaps."""
    token: str
    """Random id that distinguishes manifests of the same number."""
    attempt: str | None = None
    """The last attempt whose rows count; None before the first."""
    parts: tuple[ManifestPart, ...] = ()
    """What that attempt has written, if this manifest closes it."""
    progress: Progress | None = None

    @property
    def rows(self) -> int:
        """Number of rows that it closes."""
        return sum(part.rows for part in self.parts)

    def fence(self, token: str) -> "Manifest":
        """Return the manifest of a process that takes over: same progress, no rows."""
        return replace(self, number=self.number + 1, token=token, parts=())

    def save(self) -> bytes:
        """Return the manifest as JSON."""
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
        """Return a saved manifest."""
        try:
            saved = parse_json(value)
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
                f"A manifest is {value!r:.200}.",
                rule=f"A manifest is JSON in format {_FORMAT_VERSION}.",
                remedy="Stop other programs from writing there, and run the same release in all processes.",
            ) from error


def effective_manifests(records: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """Return the manifests that count, by sink, in the order given.

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
"""Writes the rows of an attempt, and returns what it has written.

It raises TableConflict if other writers removed what it has read; it must then leave no files of the attempt behind.
"""

_MAX_ATTEMPTS: Final = 20


class ManifestLog(Protocol):
    """The manifests of a sink, in order. Adding is atomic: of two manifests with the same number only one counts."""

    sink: str
    noun: str
    """The word for the target in error messages."""

    @property
    def location(self) -> str:
        """The topic or directory with the rows."""

    @property
    def address(self) -> str:
        """URL of the target, without secrets."""

    def open(self) -> str | None:
        """Return the id of the target, or None if it does not exist; raise an error if it does not fit.

        Also lists the leftovers of earlier attempts for `clean`, which must not touch those of later processes.
        """

    def create(self) -> None:
        """Create the target; another process may do so at the same time."""

    def newest(self) -> Manifest | None:
        """Return the last manifest of the sink that counts."""

    def has_rows(self) -> bool:
        """Return whether the target has any row, of any sink."""

    def add(self, record: Manifest) -> bool:
        """Add a manifest after the one read last, and return whether it counts.

        Raises TableConflict if other writers changed what the rows of the attempt were computed from: the files of the
        attempt are removed, and the caller must write them again.
        """

    def clean(self, record: Manifest) -> None:
        """Remove the leftovers listed by `open`, which no process can close any more."""

    def close(self) -> None:
        """Release resources."""


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """Options of a sink that closes its batches with manifests."""

    version: int = 1
    append: bool = False


class ManifestTarget:
    """Writes batches, each once. Not thread-safe. Call `start` first, and again after every error."""

    def __init__(
        self,
        log: ManifestLog,
        options: ManifestOptions = ManifestOptions(),  # noqa: B008
        *,
        mode: SinkMode = "staged",
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        """Write for the sink of this log; the log is not used before `start`."""
        self.log = log
        self.options = options
        self.mode: SinkMode = mode
        self._failpoint = failpoint
        self._newest: Manifest | None = None
        self._location_id = ""
        self._ended: FloodmarkError | None = None
        self._is_started = False

    @property
    def sink(self) -> str:
        """Name of the sink."""
        return self.log.sink

    @property
    def address(self) -> str:
        """URL of the target, without secrets."""
        return self.log.address

    @property
    def version(self) -> int:
        """Version of the program."""
        return self.options.version

    @property
    def progress(self) -> Progress | None:
        """The progress that this process last wrote or read."""
        return None if self._newest is None else self._newest.progress

    def start(self, bounds: BoundsLookup, known: Progress | None = None) -> Start:
        """Read the newest manifest, decide how to start, and fence earlier processes with the next manifest."""
        check_sink_name(self.sink)
        if self._ended is not None:
            raise self._ended
        self._is_started = False
        for _ in range(_MAX_ATTEMPTS):
            location_id = self.log.open()
            newest = None if location_id is None else self.log.newest()
            start = self._decide(newest, location_id, bounds, known)
            if location_id is None:
                self.log.create()
                continue
            record = (newest or Manifest(self.sink, 0, "")).fence(secrets.token_hex(8))
            if self.log.add(record):
                break
        else:
            raise fenced_error(self.sink, f"it tried to start {_MAX_ATTEMPTS} times")
        self._failpoint(FENCED)
        self._newest, self._location_id = record, location_id
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
        """Let `run` write the rows of a batch as a new attempt, close it with a manifest, and return the progress.

        `run` is empty if nothing is to be written. `split` is not used: one manifest closes a batch.
        """
        newest = self._require_started()
        self._is_started = False
        self._failpoint(BEFORE_BEGIN)
        for left in reversed(range(_MAX_ATTEMPTS)):
            try:
                record = self._close(run, newest, batch, decision, watermarks or {})
                break
            except TableConflict as error:
                if not left:
                    raise _contention_error(self.sink, self.log.location) from error
        self._newest, self._is_started = record, True
        self._failpoint(COMMITTED)
        assert record.progress is not None
        return record.progress

    def forget_fence(self) -> None:
        """Let the target start again after a process that started earlier has fenced it."""
        if isinstance(self._ended, SinkFenced):
            self._ended = None

    def close(self) -> None:
        """Release the log."""
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
        """Write rows as a new attempt, and add the manifest that closes it."""
        attempt = newest.attempt
        parts: tuple[ManifestPart, ...] = ()
        if run:
            attempt = secrets.token_hex(8)
            parts = self._run_attempt(run, attempt, newest)
        self._failpoint(ROWS_FLUSHED)
        record = Manifest(self.sink, newest.number + 1, secrets.token_hex(8), attempt, parts)
        record = replace(record, progress=self._progress_after(batch, decision, record, watermarks))
        if not self.log.add(record):
            self._ended = fenced_error(self.sink, "closing a batch")
            raise self._ended
        return record

    def _run_attempt(self, run: AttemptWriter, attempt: str, newest: Manifest) -> tuple[ManifestPart, ...]:
        try:
            return tuple(run(attempt))
        except Exception as error:
            with suppress(FloodmarkError):
                self.log.open()
                current = self.log.newest()
                if current is not None and current.number > newest.number:
                    # The process that fenced this one removes its files, which may have caused the error.
                    self._ended = fenced_error(self.sink, "writing rows")
            if self._ended is not None:
                raise self._ended from error
            raise

    def _progress_after(
        self, batch: Batch, decision: Write | WriteFrom | Drop, record: Manifest, watermarks: Mapping[str, int]
    ) -> Progress:
        before = self.progress or initial_progress(self.sink, self.log.location, self._location_id, self.version, batch)
        progress = progress_after(before, batch, decision, rows=record.rows, watermarks=watermarks)
        return replace(progress, version=self.version, position={0: record.number})

    def _decide(
        self,
        newest: Manifest | None,
        location_id: str | None,
        bounds: BoundsLookup,
        known: Progress | None,
    ) -> Start:
        progress = None if newest is None else newest.progress
        if known is not None and known.topic_id == location_id:
            total = 0 if progress is None else progress.total
            if progress is None or total < known.total:
                raise SinkProgressInvalid(
                    f"The sink {self.sink!r} has written {known.total} rows to {self.log.location}, but its manifests "
                    f"record {total}.",
                    rule="Committed manifests must stay; without them the sink would lose rows or write them twice.",
                    remedy="Restore the newest copy of the target, or start over with a new sink and target.",
                    sink=self.sink,
                )
        elif progress is None:
            # Rows and manifests were deleted together; the progress recorded elsewhere shows that there were some.
            progress = known
        return decide_start(
            StartupState(
                self.sink,
                self.version,
                self.log.location,
                location_id,
                # A sink with a manifest here was allowed to append when it first started.
                location_id is not None and newest is None and self.log.has_rows(),
                progress,
                {} if progress is None else bounds(progress.ends),
                self.log.noun,
            ),
            append=self.options.append,
        )

    def _require_started(self) -> Manifest:
        if self._ended is not None:
            raise self._ended
        if self._newest is None or not self._is_started:
            raise not_started_error(self.sink)
        return self._newest


def _contention_error(sink: str, location: str) -> TableFailed:
    return TableFailed(
        f"{location} was changed by other writers {_MAX_ATTEMPTS} times while the sink {sink!r} replaced rows in it.",
        rule="Replaced rows are computed from the table's current rows, and must be committed before these change.",
        remedy="Let the other writers commit less often, then start the query again; nothing of the batch was written.",
        table=location,
        sink=sink,
    )
