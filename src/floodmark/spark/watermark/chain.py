"""The chain of watermarks of one streaming query: from the offset of one batch to that of the next.

An offset has an incarnation, a step number and the watermark promised at that step. Spark logs it before a batch
runs, so a retried batch runs under the same watermark. The statistics of a batch are stored under the step it ran
at. They may arrive after Spark has asked for the next offset, so `advance` waits for them, up to a limit. The
settings of a watermark are stored with its steps.
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
    """The arguments of one `with_watermark` call, durations in microseconds, as they are stored with its steps.

    `schema` is the schema of the rows, as Spark's JSON; it is set only for `late="route"`.
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
        """Return the settings that `to_json` has written.

        >>> settings = WatermarkSettings("t", ("partition",), 5, None, None, False)
        >>> WatermarkSettings.from_json(settings.to_json()) == settings
        True
        """
        values = json.loads(text)
        return cls(**{**values, "per": tuple(values["per"])})

    def begin(self, now: int) -> OriginWatermarks:
        """Return the state of a new query, without any origin."""
        return OriginWatermarks(self._generators(), now=now, idle=self._idleness())

    def resume(self, snapshot: Snapshot, now: int) -> OriginWatermarks:
        """Return the state that a snapshot has saved."""
        return OriginWatermarks.restore(snapshot, self._generators(), now=now, idle=self._idleness())

    def _generators(self) -> dict[str, Generator]:
        return {self.column: BoundedDisorder(self.delay)}

    def _idleness(self) -> Idleness:
        return Idleness(timeout=self.idle)


OBSERVATION_TIMEOUT: Final = 2_000_000
"""How long, in microseconds, to wait for the statistics of a finished batch."""

_POLL_INTERVAL: Final = 5_000


@dataclass(frozen=True, slots=True)
class MarkOffset:
    """A step of a chain, as Spark logs it. `frame` is the id of the DataFrame in the running program."""

    frame: str
    incarnation: str
    seq: int
    watermark: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> "MarkOffset":
        """Return the offset that `to_json` has written."""
        return cls(**values)


class WatermarkChain:
    """Computes the next offset of one reader, and stores each step in the home."""

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
        """Store steps in `steps`; `mint` makes ids of incarnations, `clock` and `sleep` use microseconds."""
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
        self._has_said_mark = False
        self.steps_every_batch = False

    def initial(self) -> MarkOffset:
        """Return the first offset of a query without a checkpoint; always the same for one reader."""
        if self._initial is None:
            self._initial = MarkOffset(self._frame, self._mint(), 0, None)
        return self._initial

    def advance(self, start: MarkOffset) -> MarkOffset:
        """Return the offset after `start`, or `start` itself if the watermark has not changed."""
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
        must_step = self.steps_every_batch and any(observation.statistics["input_rows"] for observation in fresh)
        # After a restart the offset still has the frame of the old program, and after a fork the old incarnation.
        is_own_offset = at.incarnation == start.incarnation and start.frame == self._frame
        # Spark takes an input that has said nothing since a restart for one at 0.
        must_repeat = watermark is not None and not self._has_said_mark
        if watermark != at.watermark or must_step or must_repeat or not is_own_offset:
            return self._step(at, watermark)
        return start

    def note_replay(self) -> None:
        """Note that Spark runs a batch again: its mark need not be said once more in this run."""
        self._has_said_mark = True

    def forget_before(self, end: MarkOffset, keep: int) -> None:
        """Delete the steps that Spark can no longer return to."""
        if end.seq % keep == 0:
            self._steps.prune(end.incarnation, end.seq - keep)

    def _resume(self, start: MarkOffset) -> None:
        """Continue the chain from Spark's offset, which may be older than the newest step in the home."""
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
            # The home has later steps, but Spark restarts before them: they are not part of this query's history.
            incarnation = self._mint()
            self._steps.fork(start.incarnation, start.seq, incarnation, now)
        step = self._steps.get(incarnation, start.seq)
        if step is None:
            raise SnapshotInvalid(
                f"The home has no step {start.seq} of {incarnation!r}, from which the checkpoint continues.",
                rule="A checkpoint can only be used with the home it was written with.",
                remedy="Pass that home as home=, or start the query with a new checkpoint.",
                incarnation=incarnation,
                seq=start.seq,
            )
        self._watermarks = self._settings.resume(step.snapshot, now)
        self._applied = step.snapshot["applied"]
        self._missed = step.snapshot["missed"]
        self._names = dict(step.snapshot["names"])
        self._at = MarkOffset(start.frame, incarnation, start.seq, start.watermark)

    def _await_observations(self, at: MarkOffset) -> list[Observation]:
        """Return the observations not yet applied; on the first call at a step, wait for the batch that ended there."""
        deadline = self._clock() + OBSERVATION_TIMEOUT
        while True:
            later = self._steps.observations(at.incarnation, after_batch=self._applied)
            fresh = [observation for observation in later if observation.seq <= at.seq]
            if self._waited_at == at.seq or any(observation.seq == at.seq for observation in fresh):
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
                rule="The watermark waits for every origin, so the statistics must have all of them.",
                remedy="Name fewer columns in per, or columns with fewer distinct values.",
                batch_id=observation.batch_id,
                per=self._settings.per,
            )
        # Add all new origins of the batch first, so that the watermark cannot pass them.
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
        self._has_said_mark = True
        return self._at

    def _snapshot(self) -> Snapshot:
        assert self._watermarks is not None
        counters = {"applied": self._applied, "missed": self._missed, "names": self._names}
        return self._watermarks.snapshot() | counters
