"""The chain of watermarks of one streaming query: from the offset of one batch to that of the next.

An offset has an incarnation, a step number and the watermark promised at that step. Spark logs it before a batch
runs, so a retried batch runs under the same watermark. The statistics of a batch are stored under the step it ran
at. They may arrive after Spark has asked for the next offset, so `advance` waits for them, up to a limit. The
settings of a watermark are stored with its steps.

Decisions about origins, by option or by command, are a log in the home. `advance` carries out those that are new, and
always makes a step of it, whose snapshot has the state after them and the number of the last one. So a replay repeats
them where they were carried out, and a chain that continues from an older step carries them out again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from floodmark.control import Observation, OriginDecision, WatermarkSteps
from floodmark.errors import SnapshotInvalid, TooManyOrigins
from floodmark.progress import (
    BoundedDisorder,
    Generator,
    Idleness,
    OriginAction,
    OriginWatermarks,
    Revived,
    Snapshot,
)

MOST_ORIGINS: Final = 1 << 16
"""How many origins one batch may have."""

Late = Literal["drop", "count", "fail", "route", "copy"]
"""What happens to rows behind the watermark."""


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """The arguments of one `with_watermark` call, durations in microseconds, as they are stored with its steps.

    `schema` is the schema of the rows, as Spark's JSON, and `late_path` the directory of late rows; both are set only
    if late rows are stored. `origins` has the declared origins, each (id, name, action).
    """

    column: str
    per: tuple[str, ...]
    delay: int
    idle: int | None
    future: int | None
    assume_caught_up: bool
    late: Late = "drop"
    schema: str | None = None
    late_path: str | None = None
    origins: tuple[tuple[str, str, OriginAction], ...] = ()
    revived: Revived = "hold"
    remove_idle: int | None = None

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
        return cls(**{**values, "per": tuple(values["per"]), "origins": tuple(map(tuple, values["origins"]))})

    def begin(self, now: int) -> OriginWatermarks:
        """Return the state of a new query, without any origin."""
        return OriginWatermarks(
            self._generators(), now=now, idle=self._idleness(), revived=self.revived, after_finish="ignore"
        )

    def resume(self, snapshot: Snapshot, now: int) -> OriginWatermarks:
        """Return the state that a snapshot has saved."""
        return OriginWatermarks.restore(
            snapshot,
            self._generators(),
            now=now,
            idle=self._idleness(),
            revived=self.revived,
            after_finish="ignore",
        )

    def _generators(self) -> dict[str, Generator]:
        return {self.column: BoundedDisorder(self.delay)}

    def _idleness(self) -> Idleness:
        return Idleness(timeout=self.idle, remove_after=self.remove_idle)


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
        self._decided = 0
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
            self._carry_out(watermarks, self._steps.decisions(at.incarnation, after=self._decided))
            return self._step(at, None)
        fresh = self._await_observations(at)
        decisions = self._steps.decisions(at.incarnation, after=self._decided)
        # The watermark waits for a revived origin before it follows other rows; an origin that is to be left out is
        # left out after the rows that it has sent so far, because a row would bring it back.
        revivals = [decision for decision in decisions if decision.action == "revive"]
        self._carry_out(watermarks, revivals)
        for observation in fresh:
            self._apply(watermarks, observation)
        self._carry_out(watermarks, decisions)
        caught_up = self._settings.assume_caught_up or (
            self._last is not None and bool(self._last.statistics["caught_up"])
        )
        watermarks.tick(self._clock(), caught_up=caught_up)
        watermark = watermarks.current(self._settings.column)
        has_rows = any(observation.statistics["input_rows"] for observation in fresh)
        must_step = bool(decisions) or (self.steps_every_batch and has_rows)
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
            self._declare_origins(start.incarnation, now)
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
        self._store_settings(incarnation)
        self._declare_origins(incarnation, now)
        self._watermarks = self._settings.resume(step.snapshot, now)
        self._applied = step.snapshot["applied"]
        self._decided = step.snapshot.get("decided", 0)
        self._missed = step.snapshot["missed"]
        self._names = dict(step.snapshot["names"])
        self._at = MarkOffset(start.frame, incarnation, start.seq, start.watermark)

    def _store_settings(self, incarnation: str) -> None:
        """Store the settings of this run; late rows that an earlier run has stored stay readable."""
        settings = asdict(self._settings)
        if self._settings.schema is None:
            earlier = self._steps.incarnation(incarnation).settings
            settings |= {key: earlier.get(key) for key in ("schema", "late_path")}
        self._steps.change_settings(incarnation, settings)

    def _declare_origins(self, incarnation: str, now: int) -> None:
        """Store as decisions what the program declares about origins, unless it has declared the same before.

        A command that came after that declaration remains in force.
        """
        if self._settings.origins:
            earlier = self._steps.decisions(incarnation)
            declared = {decision.origin: decision.action for decision in earlier if decision.decided_by == "option"}
            new = [entry for entry in self._settings.origins if declared.get(entry[0]) != entry[2]]
            self._steps.decide(incarnation, new, "option", now)

    def _carry_out(self, watermarks: OriginWatermarks, decisions: Sequence[OriginDecision]) -> None:
        """Carry out the newest decision about each origin."""
        for decision in {decision.origin: decision for decision in decisions}.values():
            watermarks.decide(decision.origin, decision.action, now=self._clock())
            self._names[decision.origin] = decision.name
            self._decided = max(self._decided, decision.number)

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
        watermarks.observe_batch(self._settings.column, statistics["newest"], now=observation.at)
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
        known = self._names.keys() & set(self._watermarks.origins)
        self._names = {origin: name for origin, name in self._names.items() if origin in known}
        return self._watermarks.snapshot() | {
            "applied": self._applied,
            "decided": self._decided,
            "missed": self._missed,
            "names": self._names,
        }
