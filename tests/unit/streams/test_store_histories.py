"""Random histories on a real store: writers write, note, close, die; streams are scaled; controllers pause and die."""

import shutil
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import event, given, settings
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError, LeaseLost
from floodmark.streams import Controller, EntryKind, MarkOutcome, Stream, StreamHome, Writer, connect
from floodmark.streams import controller as _shares
from floodmark.streams.layout.positions import Standing, compare_to_cut
from floodmark.streams.local import catalog as _catalog
from floodmark.streams.local.watermarks import read_inputs, store_decisions
from floodmark.testing import ManualClock
from support.examples import examples
from support.streams.reading import payloads

SECOND = 1_000_000
TIMEOUT, TTL = 6 * SECOND, 4 * SECOND
WRITERS = ("a", "b", "c")
KINDS = ("write",) * 5 + ("note",) * 5 + ("step",) * 6 + ("tick",) * 3
RARE = ("flush", "idle", "close", "open", "die", "scale", "scale", "compute", "store", "controller dies")
ACTIONS = st.lists(
    st.tuples(st.sampled_from((*KINDS, *RARE)), st.sampled_from(WRITERS), st.integers(-1, 3)), min_size=10, max_size=60
)


@dataclass
class Told:
    """What one writer knows of itself. With a new `life` it is another writer by the same name."""

    promised: int = 0
    has_mark: bool = False
    life: int = 0
    writer: Writer | None = None
    unflushed: list[list[Any]] = field(default_factory=list)


class History:
    """A stream in a home that several processes have open, or so it looks to the store."""

    def __init__(self, path: Path, segments: int) -> None:
        self.clock = ManualClock(1000 * SECOND)
        self.path = path
        self.homes: list[StreamHome] = []
        options: dict[str, Any] = {"writer_timeout": "6 seconds", "rate_floor": "1 second"}
        self.stream: Stream = self.connect().create_stream("s", segments=segments, **options)
        self.scaler = self.connect().stream("s")
        self.told = {name: Told() for name in WRITERS}
        self.kept: list[list[Any]] = []
        self.counted: dict[int, set[tuple[str, int]]] = {}
        self.controllers = [self.controller(), self.controller()]
        self.computed: Any = None
        self.number = 0

    def connect(self) -> StreamHome:
        self.homes.append(connect(self.path, controller=False, clock=self.clock.now))
        return self.homes[-1]

    def controller(self) -> Controller:
        return Controller(self.connect(), ttl="4 seconds")

    def close(self) -> None:
        for home in self.homes:
            home.close()

    def play(self, kind: str, name: str, number: int) -> None:
        told, which = self.told[name], number % 2
        writer = told.writer
        if kind == "open" or (writer is None and kind in ("write", "note")):
            self.open(name)
        elif writer is not None and kind == "write":
            self.number += 1
            key = f"key-{self.number % 5}"
            happened = [name, told.life, told.promised + max(number, 0), key, self.number]
            writer.write(happened, key=key)
            told.unflushed.append(happened)
        elif writer is not None and kind == "note":
            outcome = writer.note_time(told.promised + number)
            self.flushed(told)
            assert (outcome is MarkOutcome.ACCEPTED) == (number >= 0 or not told.has_mark)
            if outcome is MarkOutcome.ACCEPTED:
                told.promised, told.has_mark = told.promised + number, True
        elif writer is not None and kind in ("flush", "idle", "close"):
            {"flush": writer.flush, "idle": writer.mark_idle, "close": writer.close}[kind]()
            self.flushed(told)
            told.writer = None if kind == "close" else writer
        elif kind == "die":
            told.writer, told.unflushed = None, []
        elif kind == "scale":
            current = self.scaler.layout.current
            segment = current[(number + 1) % len(current)]
            if number > 1 and len(current) > 1:
                self.scaler.merge([one.id for one in current[:2]])
            elif len(current) < 6:
                self.scaler.split(segment.id)
        elif kind == "tick":
            self.clock.advance(max(number, 1) * SECOND)
        elif kind == "step":
            self.controllers[which].step()
            self.look_at_counted()
        elif kind == "compute":
            backend, leases = self.homes[0].local, dict(self.controllers[which]._bucket_leases.leases)
            if self.stream.info.bucket in leases:
                (known,) = read_inputs(backend.home, backend.catalog, [(self.stream.info.id, "time")])
                self.computed = (known, known.decide(self.clock.now())), leases
        elif kind == "store" and self.computed is not None:
            one, leases = self.computed
            self.computed = None
            try:
                event(f"a decision stored late: {store_decisions(self.homes[0].home, [one], leases)}")
            except LeaseLost:
                event("a decision stored late: its lease was lost")
            self.look_at_counted()
        elif kind == "controller dies":
            self.controllers[which] = self.controller()

    def open(self, name: str) -> None:
        told = self.told[name]
        if name not in {view.writer for view in self.stream.why().writers}:
            told.life += 1
            told.promised, told.has_mark = 0, False
        told.writer, told.unflushed = self.stream.writer(name), []

    def flushed(self, told: Told) -> None:
        self.kept += told.unflushed
        told.unflushed = []

    def look_at_counted(self) -> None:
        for entry in self.stream.marks(after=max(self.counted, default=0)):
            self.counted[entry.seq] = {(name, self.told[name].life) for name in entry.writers}

    def check(self) -> None:
        layout, entries = self.stream.layout, self.stream.marks()
        lowers = [entry.lower for entry in entries if entry.kind is EntryKind.WATERMARK]
        assert lowers == sorted(set(lowers))  # type: ignore[type-var]
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        for before, after in pairwise(entries):
            assert compare_to_cut(layout, after.cut, before.cut) is Standing.PASSED
        places = {}
        order: dict[tuple[str, str], list[int]] = {}
        for segment in layout.segments:
            for offset, happened in enumerate(payloads(self.stream, segment.id)):
                name, life, time, key, number = happened
                places[number] = (name, life, time, segment.id, offset + 1)
                order.setdefault((name, key), []).append(number)
        found = sorted(number for numbers in order.values() for number in numbers)
        assert found == sorted(happened[4] for happened in self.kept), "each once, and nothing lost"
        assert all(numbers == sorted(numbers) for numbers in order.values())
        for entry in entries:
            for name, life, time, number, end in places.values():
                if (name, life) in self.counted[entry.seq] and entry.lower is not None and time < entry.lower:
                    is_before = (
                        entry.cut[number] >= end if number in entry.cut else layout.has_descendant(number, entry.cut)
                    )
                    assert is_before, (entry, name, time, number, end)

    def check_liveness(self) -> None:
        """With one living writer ahead, a watermark comes within one timeout and the rate floor, whatever others do."""
        keeper = self.controllers[0]
        for _ in range(6):  # who was killed is waited for
            self.clock.advance(SECOND)
            keeper.step()
        self.open("a")
        writer = self.told["a"].writer
        assert writer is not None
        last = self.stream.marks()[-1].lower if self.stream.marks() else None
        time = max(self.told["a"].promised, last or 0) + 10
        writer.note_time(time)
        for _ in range(TIMEOUT // SECOND + 2):
            keeper.step()
            self.clock.advance(SECOND)
        keeper.step()
        newest = [entry for entry in self.stream.marks() if entry.kind is EntryKind.WATERMARK][-1]
        assert newest.lower is not None
        assert last is None or newest.lower > last
        assert newest.lower <= time


@given(st.integers(1, 2), ACTIONS)
@settings(max_examples=examples(25))
def test_every_history_keeps_its_promises(new_file: Path, segments: int, actions: list[tuple[str, str, int]]) -> None:
    # Two buckets show all that many would, and are taken over sooner.
    with TemporaryDirectory() as directory, patch.object(_shares, "BUCKETS", 2), patch.object(_catalog, "BUCKETS", 2):
        shutil.copy(new_file, directory)
        history = History(Path(directory), segments)
        try:
            for action in actions:
                history.play(*action)
            history.look_at_counted()
            history.check()
            history.check_liveness()
        except FloodmarkError as error:
            raise AssertionError(str(error)) from error
        finally:
            history.close()
