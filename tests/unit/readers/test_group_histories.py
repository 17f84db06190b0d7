"""Random histories of groups on a real store: writers, scales, controllers and readers that come, go and die."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from floodmark.errors import (
    CheckpointFailed,
    CheckpointPending,
    FloodmarkError,
    GroupReset,
    ReaderExists,
    ReaderExpelled,
)
from floodmark.streams import Checkpoint, CheckpointRequest, Controller, MarkOutcome, ReadBatch, Reader, Writer, connect
from floodmark.streams import controller as _shares
from floodmark.streams.groups.state import instance_id
from floodmark.streams.layout.positions import check_cut
from floodmark.streams.local import catalog as _catalog
from floodmark.streams.readers import reader as _membership
from floodmark.testing import ManualClock
from support.examples import examples, is_full
from support.streams.group_tools import NOW, crash

SECOND = 1_000_000
READERS = ("r1", "r2", "r3")
WRITERS = ("a", "b")
OFTEN = ("write",) * 5 + ("note",) * 4 + ("step",) * 4 + ("read",) * 9 + ("tick",) * 2
RARE = (
    *("scale", "scale", "writer dies", "writer closes", "controller dies", "acknowledge", "report"),
    *("reader closes", "reader dies", "reader fails", "checkpoint", "checkpoint", "reset"),
)
ACTIONS = st.lists(
    st.tuples(st.sampled_from((*OFTEN, *RARE)), st.integers(0, 5), st.integers(-1, 3)),
    min_size=20,
    max_size=80 if is_full() else 40,
)
Place = tuple[int, int]


class NoTicker:
    """Histories say themselves when a reader gives a sign of life."""

    def __init__(self, *_: Any) -> None:
        pass

    def stop(self) -> None:
        pass

    def join(self) -> None:
        pass


@dataclass
class Writing:
    promised: int = 0
    has_mark: bool = False
    life: int = 0
    writer: Writer | None = None


@dataclass
class Reading:
    """What an application knows of one of its readers."""

    reader: Reader
    acknowledged: set[Place] = field(default_factory=set)
    held: set[Place] = field(default_factory=set)
    lower: int | None = None
    upper: int | None = None

    @property
    def who(self) -> tuple[str, str]:
        return self.reader.id, instance_id(self.reader._member.instance)


class History:
    """A stream and a group in a home that two processes have open, or so it looks to the store."""

    def __init__(self, path: Path, segments: int) -> None:
        self.clock = ManualClock(1000 * SECOND)
        self.homes = [connect(path, controller=False, clock=self.clock.now) for _ in range(2)]
        options: dict[str, Any] = {"writer_timeout": "6 seconds", "rate_floor": "1 second"}
        self.stream = self.homes[0].create_stream("s", segments=segments, **options)
        self.groups = [self.homes[0].create_group("g", "s"), self.homes[1].group("g")]
        self.writings = {name: Writing() for name in WRITERS}
        self.readings: dict[str, Reading] = {}
        self.controller = Controller(self.homes[0], ttl="2 seconds")
        self.counted: dict[int, set[tuple[str, int]]] = {}
        self.number = 0
        self.kept: dict[str, dict[str, set[Place]]] = {}
        self.request: CheckpointRequest | None = None
        self.checkpoints: list[Checkpoint] = []
        self.group_lower: int | None = None
        self.begin({0: 0, 1: 0} if segments == 2 else {0: 0})

    def begin(self, start: Any) -> None:
        """Begin a generation: nothing has been delivered since."""
        self.start = dict(start)
        self.delivered: dict[Place, tuple[str, str]] = {}
        self.last_of_key: dict[str, int] = {}
        self.group_lower = None

    def close(self) -> None:
        for home in self.homes:
            home.close()

    # ---- writers ----

    def writing(self, number: int) -> Writing:
        name = WRITERS[number % 2]
        told = self.writings[name]
        if told.writer is None:
            if name not in {view.writer for view in self.stream.why().writers}:
                told.life += 1
                told.promised, told.has_mark = 0, False
            told.writer = self.stream.writer(name)
        return told

    def write(self, which: int, number: int) -> None:
        told = self.writing(which)
        self.number += 1
        key = f"key-{self.number % 5}"
        assert told.writer is not None
        told.writer.write([told.writer.id, told.life, told.promised + max(number, 0), key, self.number], key=key)
        told.writer.flush()

    def note(self, which: int, number: int) -> None:
        told = self.writing(which)
        assert told.writer is not None
        if told.writer.note_time(told.promised + number) is MarkOutcome.ACCEPTED:
            told.promised, told.has_mark = told.promised + number, True

    def step(self) -> None:
        self.controller.step()
        for entry in self.stream.marks(after=max(self.counted, default=0)):
            self.counted[entry.seq] = {(name, self.writings[name].life) for name in entry.writers}

    # ---- readers ----

    def reading(self, number: int) -> Reading | None:
        name = READERS[number % 3]
        if name not in self.readings:
            group = self.groups[number % 2]

            def keep(checkpoint: str) -> None:
                # It is told between two batches: what it had in hand counts.
                mine = self.readings[name]
                self.kept.setdefault(checkpoint, {})[name] = mine.acknowledged | mine.held

            try:
                reader = group.reader(name, ttl="6 seconds", max_rows=2, on_checkpoint=keep)
            except ReaderExists:
                event("an id that is still alive")
                return None
            self.readings[name] = Reading(reader)
        return self.readings[name]

    def use(self, number: int, how: str) -> None:
        mine = self.reading(number)
        if mine is None:
            return
        try:
            if how == "read":
                self.look_at_window(mine)
                mine.reader._polled_at = -1.0
                batch = mine.reader.read(NOW)
                mine.acknowledged |= mine.held
                mine.held = set()
                if batch is not None:
                    self.deliver(mine, batch)
                self.look_at_window(mine)
                return
            if how == "report":
                mine.reader._member.synced_at = -1.0
            if how in ("acknowledge", "report"):
                mine.reader.acknowledge()
                mine.acknowledged |= mine.held
                mine.held = set()
                self.check_stored(mine)
            elif how == "closes":
                mine.reader.close()
                del self.readings[mine.reader.id]
        except (ReaderExpelled, GroupReset) as error:
            event(f"a reader finds out: {error.code}")
            crash(mine.reader)
            del self.readings[mine.reader.id]

    def check_stored(self, mine: Reading) -> None:
        """What was acknowledged for certain lies before the position of the group, until that is set back."""
        if self.groups[0].state.generation == mine.reader._member.generation:
            cut = self.groups[0].cut()["s"].cut
            assert all(self.is_before(place, cut) for place in mine.acknowledged)

    def look_at_window(self, mine: Reading) -> None:
        window = mine.reader.time_window()
        if window is None:
            return
        for name in ("lower", "upper"):
            before, now = getattr(mine, name), getattr(window, name)
            assert before is None or now is None or now >= before, "a window never falls for a live reader"
            setattr(mine, name, now if now is not None else before)

    def deliver(self, mine: Reading, batch: ReadBatch) -> None:
        state = self.groups[0]._backend.groups.find("g")
        part = state.progress_of("s")
        places = [(batch.segment, offset) for offset in range(batch.first, batch.end)]
        alive = {(reader.id, reader.instance_id) for reader in state.readers}
        assert all(not self.is_before(place, self.start) for place in places)
        assert batch.first >= part.position.get(batch.segment, batch.first), "what counts is not read again"
        for place in places:
            before = self.delivered.get(place)
            # Again only after the reader that had it first has gone without acknowledging it.
            assert before is None or before not in alive
            if before is not None:
                event("read again after a crash")
        earlier = (batch.segment, batch.first - 1)
        assert batch.first == 0 or self.is_before(earlier, self.start) or earlier in self.delivered, "no gaps"
        layout, ends = self.stream.layout, self.stream.ends()
        for one in layout.predecessors(batch.segment):
            for offset in range(ends[one.id]):
                assert self.is_before((one.id, offset), self.start) or (one.id, offset) in self.delivered
        place_in_log = mine.reader._windows["s", "time"].place or 0
        passed = [entry for entry in self.stream.marks() if entry.seq <= place_in_log]
        for row, place in zip(batch.batch.to_pylist(), places, strict=True):
            name, life, time, key, number = json.loads(row["payload"])
            for entry in passed:
                if entry.lower is not None and (name, life) in self.counted[entry.seq]:
                    assert time >= entry.lower, "no event that is read is below the window"
            if place not in self.delivered:
                assert self.last_of_key.get(key, 0) < number, "events of a key come in order"
                self.last_of_key[key] = number
            self.delivered[place] = mine.who
        mine.held = set(places)

    def is_before(self, place: Place, cut: Any) -> bool:
        segment, offset = place
        return bool(offset < cut[segment] if segment in cut else self.stream.layout.has_descendant(segment, cut))

    # ---- the group ----

    def checkpoint(self) -> None:
        if self.request is None:
            try:
                self.request = self.groups[0].begin_checkpoint(f"c{len(self.kept)}", timeout="30 seconds")
                self.kept.setdefault(self.request.name, {})
            except CheckpointPending:
                event("a checkpoint while another one is under way")
        self.look_at_checkpoint()

    def look_at_checkpoint(self) -> None:
        state = self.groups[1].state
        if self.request is None or (state.pending is not None and state.pending.id == self.request.id):
            return
        request, self.request = self.request, None
        try:
            done = request.result()
        except CheckpointFailed:
            event("a checkpoint was given up")
            return
        event(f"a checkpoint without {len(done.missing)}")
        self.checkpoints.append(done)
        cut = done.cut["s"].cut
        assert check_cut(self.stream.layout, cut) == cut
        for name in done.confirmed:
            kept = self.kept[done.name][name]
            who = {self.delivered[place] for place in kept if place in self.delivered}
            assert len(who) <= 1
            before = {place for place, one in self.delivered.items() if one in who and self.is_before(place, cut)}
            assert before == kept, "exactly what the reader had kept"

    def reset(self, number: int) -> None:
        if self.checkpoints:
            self.look_at_checkpoint()
            chosen = self.checkpoints[number % len(self.checkpoints)]
            self.groups[number % 2].reset(chosen)
            self.request = None
            self.begin(chosen.cut["s"].cut)
            event("a reset")

    def check_group(self) -> None:
        state = self.groups[1]._backend.groups.find("g")
        part = state.progress_of("s")
        assert check_cut(self.stream.layout, part.position) == part.position
        shares = [share for reader in state.readers for share in reader.segments]
        assert len(shares) == len(set(shares)), "a segment has one reader"
        window = self.groups[1].time_window()
        if window is not None and window.lower is not None:
            assert self.group_lower is None or window.lower >= self.group_lower
            self.group_lower = window.lower

    def play(self, kind: str, which: int, number: int) -> None:
        if kind == "write":
            self.write(which, number)
        elif kind == "note":
            self.note(which, number)
        elif kind == "step":
            self.step()
        elif kind == "tick":
            self.clock.advance(max(number, 1) * SECOND)
        elif kind in ("read", "acknowledge", "report"):
            self.use(which, kind)
        elif kind == "reader closes":
            self.use(which, "closes")
        elif kind == "reader dies" and READERS[which % 3] in self.readings:
            crash(self.readings.pop(READERS[which % 3]).reader)
        elif kind == "reader fails" and READERS[which % 3] in self.readings:
            self.readings.pop(READERS[which % 3]).reader.__exit__(OSError, OSError(), None)
        elif kind == "scale":
            current = self.stream.layout.current
            if number > 0 and len(current) > 1:
                self.stream.merge([one.id for one in current[:2]])
            elif len(current) < 5:
                self.stream.split(current[which % len(current)].id)
        elif kind in ("writer dies", "writer closes"):
            told = self.writings[WRITERS[which % 2]]
            if told.writer is not None and kind == "writer closes":
                told.writer.close()
            told.writer = None
        elif kind == "controller dies":
            self.controller = Controller(self.homes[which % 2], ttl="2 seconds")
        elif kind == "checkpoint":
            self.checkpoint()
        elif kind == "reset":
            self.reset(which)
        self.look_at_checkpoint()
        self.check_group()

    def end(self) -> None:
        """Whoever is left reads the rest: all there is was delivered, and counts."""
        self.readings.clear()
        self.clock.advance(60 * SECOND)
        mine = self.reading(2)
        assert mine is not None
        tail = self.stream.tail()
        for _ in range(500):
            if self.groups[0].cut()["s"].cut == tail:
                break
            self.use(2, "read")
            self.use(2, "report")
        assert self.groups[0].cut()["s"].cut == tail
        for segment, end in self.stream.ends().items():
            for offset in range(end):
                assert self.is_before((segment, offset), self.start) or (segment, offset) in self.delivered
        mine.reader.close()


@given(st.integers(1, 2), ACTIONS)
@settings(max_examples=examples(25), phases=[Phase.reuse, Phase.generate, Phase.shrink])
def test_every_history_of_a_group_keeps_its_promises(
    new_file: Path, segments: int, actions: list[tuple[str, int, int]]
) -> None:
    with (
        TemporaryDirectory() as directory,
        patch.object(_shares, "BUCKETS", 2),
        patch.object(_catalog, "BUCKETS", 2),
        patch.object(_membership, "Ticker", NoTicker),
    ):
        shutil.copy(new_file, directory)
        history = History(Path(directory), segments)
        try:
            for action in actions:
                history.play(*action)
            history.end()
        except FloodmarkError as error:
            raise AssertionError(str(error)) from error
        finally:
            history.close()
