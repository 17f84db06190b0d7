"""The tracker: per origin the longest gap-free prefix of parallel work, over all origins the minimum."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from floodmark._util.codec import Snapshot, new_snapshot, open_snapshot
from floodmark._util.ints import INT64_MAX, INT64_MIN, check_int64, check_number, check_watermark
from floodmark._util.names import Name
from floodmark.errors import BatchInvalid, InvalidOption, InvalidValue
from floodmark.progress.tracker.batch import BatchPlan, Reports, apply_plan, check_from, check_reports, plan_batch
from floodmark.progress.tracker.origins import OriginRegistry
from floodmark.progress.tracker.prefix import ADVANCED, NO_WATERMARK, WAITING, Prefix, ReportOutcome
from floodmark.progress.tracker.sequences import FIRST_ATTEMPT


@dataclass(frozen=True, slots=True)
class OriginStatistics:
    """Statistics of one origin.

    `prefix` is the last sequence of the gap-free prefix. `pending` counts what is kept for sequences behind gaps.
    `regressions` counts sequences with a watermark below that of one before them; it is a lower bound.
    """

    prefix: int
    watermark: int | None
    closed: bool
    incomplete: int
    pending: int
    duplicates: int
    stale: int
    conflicts: int
    regressions: int

    @classmethod
    def of(cls, prefix: Prefix, *, closed: bool) -> "OriginStatistics":
        """Return the statistics of one prefix."""
        return cls(
            prefix=prefix.next - 1,
            watermark=time_or_none(prefix.watermark),
            closed=closed,
            incomplete=len(prefix.open),
            pending=prefix.pending(),
            duplicates=prefix.duplicates,
            stale=prefix.stale,
            conflicts=prefix.conflicts,
            regressions=prefix.falls,
        )


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What a batch of reports did: the origins whose prefix grew, and how many rows were duplicates or stale."""

    advanced: tuple[Name, ...]
    duplicates: int
    stale: int


class Tracker:
    """Per origin the longest gap-free prefix of sequences and its watermark; over all origins the minimum.

    Work is numbered before it is handed out: an origin numbers its sequences 1, 2, 3, ... and a sequence may be split
    into chunks, the last of which is marked. Each finished chunk is reported, in any order and any number of times. A
    sequence counts when all its chunks were reported and every sequence before it counts.

    >>> tracker = Tracker(["p0", "p1"])
    >>> tracker.update("p0", 1, 0, True, 100)
    <ReportOutcome.ADVANCED: 'advanced'>
    >>> tracker.update("p0", 3, 0, True, 300)
    <ReportOutcome.WAITING: 'waiting'>
    >>> tracker.local("p0"), tracker.gaps("p0"), tracker.watermark
    (100, [(2, 2)], None)
    >>> tracker.update("p1", 1, 0, True, 70)
    <ReportOutcome.ADVANCED: 'advanced'>
    >>> tracker.watermark
    70

    Not thread-safe: use a lock, or one tracker per thread and merge them.
    """

    __slots__ = ("_chunk_base", "_first", "_max_pending", "_origins")

    def __init__(
        self, origins: Iterable[Name] = (), *, first: int = 1, chunk_base: int = 0, max_pending: int = 1_000_000
    ) -> None:
        """Track `origins`, whose sequences start at `first` and whose chunks start at `chunk_base`.

        `max_pending` limits, per origin, the runs of complete sequences and the chunks of incomplete ones that may wait
        behind gaps; a report beyond it raises PendingLimitReached.
        """
        self._first = check_int64(first, "first sequence")
        self._chunk_base = check_int64(chunk_base, "chunk base")
        if self._chunk_base < 0:
            raise InvalidOption(
                f"chunk_base is {chunk_base}.",
                rule="chunk_base must be at least 0.",
                remedy="Omit chunk_base to count chunks from 0, or set it to 1 to count from 1.",
                chunk_base=chunk_base,
            )
        self._max_pending = check_int64(max_pending, "max_pending")
        if self._max_pending < 1:
            raise InvalidOption(
                f"max_pending is {max_pending}.",
                rule="max_pending must be at least 1.",
                remedy="Omit max_pending, or set it to 1 or more.",
                max_pending=max_pending,
            )
        self._origins = OriginRegistry()
        for origin in origins:
            self.add(origin)

    def update(
        self, origin: Name, sequence: int, chunk: int, last: bool, watermark: int, attempt: int = 0
    ) -> ReportOutcome:
        """Process one report: `chunk` of `sequence` is done, with this watermark.

        A report of a higher `attempt` restarts an incomplete sequence; one of a lower attempt is ignored, also when the
        sequence is complete.

        >>> tracker = Tracker(["p0"])
        >>> tracker.update("p0", 1, 1, True, 20)
        <ReportOutcome.WAITING: 'waiting'>
        >>> tracker.update("p0", 1, 0, False, 10)
        <ReportOutcome.ADVANCED: 'advanced'>
        >>> tracker.local("p0")
        20
        """
        # The common cases are inlined here: one more call per report would cost a third of the speed.
        if type(sequence) is type(watermark) is int and INT64_MIN <= watermark < INT64_MAX:
            try:
                prefix = self._origins.open.get(origin)
            except TypeError:
                prefix = None
            if prefix is not None and (last is True or last is False):
                partial = prefix.open.get(sequence)
                if partial is not None:
                    if (
                        chunk == partial.next
                        and type(chunk) is int
                        and attempt is partial.attempt
                        and partial.is_in_order
                    ):
                        partial.next = chunk + 1
                        if watermark > partial.watermark:
                            partial.watermark = watermark
                        if last:
                            del prefix.open[sequence]
                            return prefix.complete(sequence, partial.watermark, attempt)
                        return WAITING
                # Identity is enough for this shortcut: small ints are shared, and others take the slow path below.
                elif last and chunk is self._chunk_base and attempt is FIRST_ATTEMPT:
                    if sequence == prefix.next:
                        if watermark > prefix.watermark:
                            prefix.watermark = watermark
                        elif watermark < prefix.watermark:
                            prefix.falls += 1
                        prefix.next = sequence + 1
                        if prefix.waiting or prefix.runs:
                            prefix.drain()
                        return ADVANCED
                    if prefix.next < sequence <= INT64_MAX and not prefix.runs:
                        waiting = prefix.waiting
                        if sequence not in waiting and len(waiting) < prefix.room:
                            waiting[sequence] = watermark
                            return WAITING
                if (
                    type(chunk) is type(attempt) is int
                    and self._first <= sequence <= INT64_MAX
                    and self._chunk_base <= chunk <= INT64_MAX
                ):
                    return prefix.report(sequence, chunk, last, watermark, attempt, self._chunk_base)
        return self._update_checked(origin, sequence, chunk, last, watermark, attempt)

    def _update_checked(
        self, origin: Name, sequence: object, chunk: object, last: object, watermark: object, attempt: object
    ) -> ReportOutcome:
        prefix = self._origins.prefix(origin)
        number = check_from(self._first, sequence, "sequence")
        chunk_number = check_from(self._chunk_base, chunk, "chunk")
        time, attempt_number = check_watermark(watermark), check_int64(attempt, "attempt")
        if not isinstance(last, bool | np.bool_):
            raise InvalidValue(
                f"The last flag is {last!r}.",
                rule="The last flag must be True or False.",
                remedy="Pass True with the last chunk of a sequence, else False.",
                value=last,
            )
        if not prefix.is_complete(number):
            self._origins.refuse_closed(origin)
        return prefix.report(number, chunk_number, bool(last), time, attempt_number, self._chunk_base)

    def update_batch(
        self,
        origin: Name | ArrayLike,
        sequence: ArrayLike,
        watermark: ArrayLike,
        *,
        chunk: ArrayLike | None = None,
        last: ArrayLike | None = None,
        attempt: ArrayLike | None = None,
    ) -> BatchOutcome:
        """Process many reports, as columns (numpy, Arrow or lists); on an error none is applied.

        `origin` is one name for all rows, or a column. Without `chunk` and `last`, each row is a whole sequence.

        >>> tracker = Tracker(["p0"])
        >>> tracker.update_batch("p0", [2, 1, 4], [20, 10, 40])
        BatchOutcome(advanced=('p0',), duplicates=0, stale=0)
        >>> tracker.local("p0"), tracker.gaps("p0")
        (20, [(3, 3)])
        """
        reports = check_reports(
            sequence, watermark, chunk, last, attempt, first=self._first, chunk_base=self._chunk_base
        )
        plans = [
            (name, self._origins.all[name], self._plan(name, rows)) for name, rows in self._by_origin(origin, reports)
        ]
        changes = {name: apply_plan(prefix, plan) for name, prefix, plan in plans}
        return BatchOutcome(
            advanced=tuple([name for name, change in changes.items() if change.has_grown]),
            duplicates=sum(change.duplicates for change in changes.values()),
            stale=sum(change.stale for change in changes.values()),
        )

    def update_arrow(self, table: Any) -> BatchOutcome:
        """Process an Arrow table or record batch with the columns of `update_batch`.

        >>> import pyarrow as pa
        >>> Tracker(["p0"]).update_arrow(pa.table({"origin": ["p0"], "sequence": [1], "watermark": [5]}))
        BatchOutcome(advanced=('p0',), duplicates=0, stale=0)
        """
        names = set(table.schema.names)
        required, optional = {"origin", "sequence", "watermark"}, {"chunk", "last", "attempt"}
        if not required <= names <= required | optional:
            raise BatchInvalid(
                f"The table has the columns {', '.join(sorted(names))}.",
                rule="It must have origin, sequence and watermark, and may have chunk, last and attempt.",
                remedy="Select and rename the columns to these names.",
                columns=sorted(names),
            )
        return self.update_batch(**{name: table.column(name) for name in names})

    def add(self, origin: Name, *, after: int | None = None, watermark: int | None = None) -> None:
        """Add an origin, which starts at its first sequence, or `after` one that is known to be complete.

        The tracker's watermark waits for it, but never falls because of it.

        >>> tracker = Tracker()
        >>> tracker.add("p0", after=41, watermark=1000)
        >>> tracker.prefix("p0"), tracker.watermark
        (41, 1000)
        """
        first = self._first if after is None else check_from(self._first - 1, after, "sequence") + 1
        time = NO_WATERMARK if watermark is None else check_watermark(watermark)
        self._origins.add(origin, Prefix(first, time, self._max_pending))

    def close(self, origin: Name) -> None:
        """Exclude `origin` from the minimum from now on: nothing more will come from it.

        >>> tracker = Tracker(["p0", "p1"])
        >>> _ = tracker.update("p1", 1, 0, True, 50)
        >>> tracker.close("p0")
        >>> tracker.watermark
        50
        """
        self._origins.close(origin)

    def merge(self, other: "Tracker") -> None:
        """Merge the state of `other` into this tracker: its origins, their progress, and which are closed.

        Merging is a union of what is known about the origins: order, grouping and repetition make no difference to it.
        (If trackers saw different attempts of a sequence, it is complete as soon as one attempt is, so grouping can.)

        The watermark follows from that union, and never falls. A watermark that `other` reached without the origins of
        this tracker is not taken over; one that this tracker reached before it knew an origin stays. So merge into a
        tracker that has all origins from the start. The statistics remain this tracker's.

        >>> left, right = Tracker(["p0"]), Tracker(["p0"])
        >>> _ = left.update("p0", 1, 0, True, 10), right.update("p0", 2, 0, True, 20)
        >>> left.merge(right)
        >>> left.local("p0")
        20
        """
        if (self._first, self._chunk_base) != (other._first, other._chunk_base):
            raise InvalidOption(
                f"One tracker counts from sequence {self._first} and chunk {self._chunk_base}, "
                f"the other from {other._first} and {other._chunk_base}.",
                rule="Trackers can be merged only if both start at the same numbers.",
                remedy="Create both trackers with the same first and chunk_base.",
            )
        self._origins.merge(other._origins, self._first, self._max_pending)

    @property
    def watermark(self) -> int | None:
        """The minimum over all open origins, None while one of them has no watermark; the highest when all are closed.

        It never falls: not when an origin is added or merged, and not when the last one is closed.
        """
        return time_or_none(self._origins.minimum())

    @property
    def origins(self) -> tuple[Name, ...]:
        """All origins, closed ones included, in the order they were added."""
        return tuple(self._origins.all)

    def local(self, origin: Name) -> int | None:
        """Return the watermark of the gap-free prefix of `origin`. It never falls.

        >>> Tracker(["p0"]).local("p0") is None
        True
        """
        return time_or_none(self._origins.prefix(origin).watermark)

    def prefix(self, origin: Name) -> int:
        """Return the last sequence of the gap-free prefix of `origin` (`first` - 1 before there is one).

        >>> Tracker(["p0"]).prefix("p0")
        0
        """
        return self._origins.prefix(origin).next - 1

    def gaps(self, origin: Name) -> list[tuple[int, int]]:
        """Return the incomplete sequences below the highest one reported, as inclusive ranges.

        >>> tracker = Tracker(["p0"])
        >>> _ = tracker.update_batch("p0", [1, 3, 4, 6], [1, 3, 4, 6])
        >>> tracker.gaps("p0")
        [(2, 2), (5, 5)]
        """
        return list(self._origins.prefix(origin).gaps())

    def missing_chunks(self, origin: Name, sequence: int, limit: int = 1000) -> frozenset[int]:
        """Return the chunks of `sequence` known to be missing, at most the first `limit` of them.

        Of a sequence without any report, only the first chunk is known to be missing.

        >>> tracker = Tracker(["p0"])
        >>> _ = tracker.update("p0", 1, 2, True, 10)
        >>> sorted(tracker.missing_chunks("p0", 1))
        [0, 1]
        """
        prefix = self._origins.prefix(origin)
        number = check_from(self._first, sequence, "sequence")
        most = check_number("limit", limit)
        if prefix.is_complete(number) or not most:
            return frozenset()
        partial = prefix.open.get(number)
        return frozenset({self._chunk_base}) if partial is None else partial.missing(most)

    def is_complete(self, origin: Name, sequence: int) -> bool:
        """Return whether all of `sequence` was reported, also behind a gap: a restart can skip it.

        >>> tracker = Tracker(["p0"])
        >>> _ = tracker.update("p0", 2, 0, True, 20)
        >>> tracker.is_complete("p0", 2), tracker.is_complete("p0", 1)
        (True, False)
        """
        return self._origins.prefix(origin).is_complete(check_int64(sequence, "sequence"))

    def statistics(self) -> dict[Name, OriginStatistics]:
        """Return the statistics of each origin.

        >>> tracker = Tracker(["p0"])
        >>> _ = tracker.update("p0", 1, 0, True, 10), tracker.update("p0", 1, 0, True, 10)
        >>> tracker.statistics()["p0"].duplicates
        1
        """
        origins = self._origins
        return {
            origin: OriginStatistics.of(prefix, closed=origin not in origins.open)
            for origin, prefix in origins.all.items()
        }

    def snapshot(self) -> Snapshot:
        """Return the state as JSON values; its size depends on the gaps, not on the length of the past.

        >>> tracker = Tracker(["p0"])
        >>> _ = tracker.update("p0", 1, 0, True, 10)
        >>> Tracker.restore(tracker.snapshot()).local("p0")
        10
        """
        return new_snapshot(
            "tracker",
            first=self._first,
            chunk_base=self._chunk_base,
            max_pending=self._max_pending,
            **self._origins.save(),
        )

    @classmethod
    def restore(cls, snapshot: Snapshot) -> "Tracker":
        """Return a tracker with the state of `snapshot`."""
        with open_snapshot(snapshot, "tracker") as state:
            tracker = cls(first=state["first"], chunk_base=state["chunk_base"], max_pending=state["max_pending"])
            tracker._origins.load(state, tracker._first, tracker._chunk_base, tracker._max_pending)
        return tracker

    def _plan(self, origin: Name, reports: Reports) -> BatchPlan:
        plan = plan_batch(self._origins.all[origin], reports, self._chunk_base)
        if plan.has_news:
            self._origins.refuse_closed(origin)
        return plan

    def _by_origin(self, origin: Name | ArrayLike, reports: Reports) -> Iterable[tuple[Name, Reports]]:
        if isinstance(origin, str | int | np.integer):
            name = int(origin) if isinstance(origin, np.integer) else origin
            self._origins.prefix(name)
            return [(name, reports)]
        return reports.split(self._origins.codes().encode(origin), self.origins)


def time_or_none(watermark: int) -> int | None:
    """Return a watermark for the caller: None if there is none yet."""
    return None if watermark == NO_WATERMARK else watermark
