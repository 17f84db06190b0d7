"""The chain of watermarks of one streaming query: from the offset of one batch to that of the next.

An offset names an incarnation, a step in it, and the watermark promised there. Spark logs it before a batch
runs, so a batch that runs again runs under the same watermark. The statistics of a batch are stored under the
step it ran at, and may arrive after Spark has asked for the next offset: `advance` waits for them, up to a
limit. The settings of a watermark are stored with its steps.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from floodmark.control import Observation, WatermarkSteps
from floodmark.errors import SnapshotInvalid, TooManyOrigins
from floodmark.progress import BoundedDisorder, Generator, Idleness, OriginWatermarks, Snapshot

MOST_ORIGINS: Final = 1 << 16
"""How many origins one batch may have."""

Late = Literal["drop", "count", "fail", "route"]
"""What happens to rows behind the watermark."""


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """The choices of one `with_watermark`, in microseconds, as they are kept with its steps.

    `schema` is that of the rows, as Spark's JSON, where late ones are kept apart.
    """

    column: str
    per: tuple[str, ...]
    delay: int
    idle: int | None
    future: int | None
    assume_caught_up: bool
    late: Late = "drop"
    schema: str | None = None

    def to_json(self) -> str:
        """Return the settings as text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "WatermarkSettings":
        """Return the settings that were written.

        >>> settings = WatermarkSettings("t", ("partition",), 5, None, None, False)
        >>> WatermarkSettings.from_json(settings.to_json()) == settings
        True
        """
        values = json.loads(text)
        return cls(**{**values, "per": tuple(values["per"])})

    def begin(self, now: int) -> OriginWatermarks:
        """Return watermarks that have seen nothing yet."""
        return OriginWatermarks(self._generators(), now=now, idle=self._idleness())

    def resume(self, snapshot: Snapshot, now: int) -> OriginWatermarks:
        """Return watermarks that go on from a snapshot."""
        return OriginWatermarks.restore(snapshot, self._generators(), now=now, idle=self._idleness())

    def _generators(self) -> dict[str, Generator]:
        return {self.column: BoundedDisorder(self.delay)}

    def _idleness(self) -> Idleness:
        return Idleness(timeout=self.idle)


OBSERVATION_TIMEOUT: Final = 2_000_000
"""How long, in microseconds, to wait for what a finished batch saw."""

_POLL_INTERVAL: Final = 5_000


@dataclass(frozen=True, slots=True)
class MarkOffset:
    """A place in a chain, as Spark keeps it. `frame` tells which DataFrame of the running program it belongs to."""

    frame: str
    incarnation: str
    seq: int
    watermark: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> "MarkOffset":
        """Return the offset that was written."""
        return cls(**values)


class WatermarkChain:
    """Computes the next offset of one reader, in the home's incarnation that its offsets name."""

    def __init__(
        self,
        steps: WatermarkSteps,
        settings: WatermarkSettings,
        frame: str,
        *,
        mint: Callable[[], str],
        clock: Callable[[], int],
        sleep: Callable[[int], None],
    ) -> None:
        """Keep the steps there, take ids from `mint`, and the time and its passing (microseconds) from the others."""
        self._steps = steps
        self._settings = settings
        self._frame = frame
        self._mint = mint
        self._clock = clock
        self._sleep = sleep
        self._initial: MarkOffset | None = None
        self._at: MarkOffset | None = None
        self._watermarks: OriginWatermarks | None = None
        self._names: dict[str, str] = {}
        self._applied = -1
        self._missed = 0
        self._last: Observation | None = None
        self._waited_at = -1
        self.steps_every_batch = False

    def initial(self) -> MarkOffset:
        """Return where a query begins that has no checkpoint: always the same for one reader."""
        if self._initial is None:
            self._initial = MarkOffset(self._frame, self._mint(), 0, None)
        return self._initial

    def advance(self, start: MarkOffset) -> MarkOffset:
        """Return the offset after `start`, or `start` itself while there is nothing new to say."""
        if self._at != start:
            self._resume(start)
        at, watermarks = self._at, self._watermarks
        assert at is not None
        assert watermarks is not None
        if start.seq == 0:
            return self._step(at, None)
        fresh = self._await_observations(at)
        for observation in fresh:
            self._apply(watermarks, observation)
        caught_up = self._settings.assume_caught_up or (
            self._last is not None and bool(self._last.statistics["caught_up"])
        )
        watermarks.tick(self._clock(), caught_up=caught_up)
        watermark = watermarks.current(self._settings.column)
        must_step = self.steps_every_batch and any(one.statistics["input_rows"] for one in fresh)
        # After a restart the offset still names the old program's frame, and after a fork the old incarnation.
        is_taken_over = at.incarnation == start.incarnation and start.frame == self._frame
        if watermark != at.watermark or must_step or not is_taken_over:
            return self._step(at, watermark)
        return start

    def forget_before(self, end: MarkOffset, keep: int) -> None:
        """Forget steps that Spark can no longer go back to."""
        if end.seq % keep == 0:
            self._steps.prune(end.incarnation, end.seq - keep)

    def _resume(self, start: MarkOffset) -> None:
        """Take up a chain where Spark left it, which is not always where the home does."""
        now = self._clock()
        if start == self._initial:
            self._steps.create(start.incarnation, asdict(self._settings), now)
            self._watermarks = self._settings.begin(now)
            self._steps.add(start.incarnation, 0, None, self._snapshot(), now)
            self._at = start
            return
        incarnation = start.incarnation
        newest = self._steps.newest(incarnation)
        if newest is not None and newest.seq > start.seq:
            # The home went on from here, but Spark did not: what came then is not this query's past.
            incarnation = self._mint()
            self._steps.fork(start.incarnation, start.seq, incarnation, now)
        step = self._steps.get(incarnation, start.seq)
        if step is None:
            raise SnapshotInvalid(
                f"The home does not have step {start.seq} of {incarnation!r}, from which the checkpoint goes on.",
                rule="A checkpoint and the home it was written with belong together.",
                remedy="Open that home, or start the query with a new checkpoint.",
                incarnation=incarnation,
                seq=start.seq,
            )
        self._watermarks = self._settings.resume(step.snapshot, now)
        self._applied = step.snapshot["applied"]
        self._missed = step.snapshot["missed"]
        self._names = dict(step.snapshot["names"])
        self._at = MarkOffset(start.frame, incarnation, start.seq, start.watermark)

    def _await_observations(self, at: MarkOffset) -> list[Observation]:
        """Return what is not applied yet; the first time at a step, wait for the batch that ended there."""
        deadline = self._clock() + OBSERVATION_TIMEOUT
        while True:
            later = self._steps.observations(at.incarnation, after_batch=self._applied)
            fresh = [one for one in later if one.seq <= at.seq]
            if self._waited_at == at.seq or any(one.seq == at.seq for one in fresh):
                break
            if self._clock() >= deadline:
                self._missed += 1
                break
            self._sleep(_POLL_INTERVAL)
        self._waited_at = at.seq
        return fresh

    def _apply(self, watermarks: OriginWatermarks, observation: Observation) -> None:
        statistics = observation.statistics
        if not statistics["has_all_origins"]:
            raise TooManyOrigins(
                f"Batch {observation.batch_id} has more than {MOST_ORIGINS:,} origins.",
                rule="The watermark waits for every origin, so each has to be known.",
                remedy="Name fewer columns in per, or such with fewer values.",
                batch_id=observation.batch_id,
                per=self._settings.per,
            )
        # All of a batch's new origins first: the others must not move on before they are waited for.
        for origin in sorted(statistics["newest"].keys() - set(watermarks.origins)):
            watermarks.add(origin, now=observation.at)
        for origin, newest in statistics["newest"].items():
            watermarks.events(origin, {self._settings.column: [newest]}, now=observation.at)
        self._names |= statistics["names"]
        self._applied = observation.batch_id
        self._last = observation

    def _step(self, at: MarkOffset, watermark: int | None) -> MarkOffset:
        self._steps.add(at.incarnation, at.seq + 1, watermark, self._snapshot(), self._clock())
        self._at = MarkOffset(self._frame, at.incarnation, at.seq + 1, watermark)
        return self._at

    def _snapshot(self) -> Snapshot:
        assert self._watermarks is not None
        mine = {"applied": self._applied, "missed": self._missed, "names": self._names}
        return self._watermarks.snapshot() | mine
