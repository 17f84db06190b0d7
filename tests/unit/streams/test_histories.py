"""Random histories: writers write, note, go idle, close, die and come back, the stream is scaled, leaders race."""

from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from floodmark.streams import EntryKind, Layout, MarkOutcome, Position
from floodmark.streams.layout.positions import Standing, check_cut, compare_to_cut, cut_over
from floodmark.streams.marks.watermark import (
    Decision,
    Emit,
    Wait,
    WaitReason,
    WatermarkRules,
    decide_watermark,
    explain_watermark,
)
from floodmark.streams.marks.writer_record import WriterState
from support.examples import examples
from support.streams.played_stream import PlayedStream
from support.streams.scaled_layouts import scaled

WRITERS = ("a", "b", "c")
# Everything on a coarse grid, so that times meet.
RULES = st.builds(
    WatermarkRules,
    timeout=st.sampled_from([0, 3, 6]),
    first_delay=st.sampled_from([0, 0, 4]),
    rate_floor=st.sampled_from([0, 0, 2]),
    forget_after=st.sampled_from([None, 8]),
)
KINDS = ("write", "write", "note", "note", "note", "look", "look", "look", "compute", "append", "tick", "tick")
RARE = ("idle", "close", "open", "scale", "takeover")
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from((*KINDS, *RARE)), st.sampled_from(WRITERS), st.integers(-1, 3), st.sampled_from([0.1, 0.4, 0.9])
    ),
    min_size=6,
    max_size=50,
)


@dataclass
class Written:
    """What one writer knows of itself. With a new `life` it is another writer by the same name."""

    promised: int = 0
    unmarked: dict[int, int] = field(default_factory=dict)
    instance: int = 1
    life: int = 0


@dataclass
class History:
    """A stream, the events in it, and the checks that hold after every step."""

    stream: PlayedStream
    writers: dict[str, Written] = field(default_factory=lambda: {name: Written() for name in WRITERS})
    ends: dict[int, int] = field(default_factory=dict)
    events: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    counted: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    told: list[Position] = field(default_factory=list)
    ahead_since: dict[str, int] = field(default_factory=dict)
    computed: Decision | None = None

    def play(self, kind: str, name: str, number: int, point: float) -> None:
        stream, writer = self.stream, self.writers[name]
        record = stream.records.get(name)
        if kind == "write":
            segment = next(open_one.id for open_one in stream.layout.current if open_one.low <= point < open_one.high)
            self.ends[segment] = self.ends.get(segment, 0) + 1
            writer.unmarked[segment] = self.ends[segment]
            self.events.append((name, writer.life, writer.promised + max(number, 0), segment, self.ends[segment]))
        elif kind == "note":
            self.note(name, writer.promised + number)
        elif kind in ("open", "takeover"):
            writer.instance = stream.open(name)
        elif kind in ("idle", "close") and record is not None and record.state is not WriterState.CLOSED:
            if number:
                moved, writer.unmarked = writer.unmarked, {}
            else:
                moved = {}
            stream.idle(name, moved) if kind == "idle" else stream.close(name, moved)
            self.ahead_since.pop(name, None)
        elif kind == "scale":
            stream.layout = scaled(stream.layout, number + 1, 1 + max(number, 0) % 2, [int(16 * point)])
        elif kind == "tick":
            stream.now += max(number, 1)
        elif kind == "compute":
            self.computed = stream.decide()
        elif kind == "append" and self.computed is not None:
            self.take(self.computed)
            self.computed = None
        elif kind == "look":
            self.look()

    def note(self, name: str, time: int) -> None:
        stream, writer = self.stream, self.writers[name]
        before = stream.records.get(name)
        outcome = stream.note(name, time, writer.unmarked, writer.instance if before is not None else None)
        stored = None if before is None or before.mark is None else before.mark.time
        assert outcome is not MarkOutcome.POSITION_WENT_BACK
        assert (outcome is MarkOutcome.ACCEPTED) == (stored is None or time >= stored)
        if outcome is not MarkOutcome.ACCEPTED:
            assert stream.records[name] is before
            return
        if before is None:
            writer.instance = 1
            writer.life += 1
        writer.promised = time
        self.told.append(dict(writer.unmarked))
        writer.unmarked = {}
        if stream.watermark is None or time > stream.watermark:
            self.ahead_since.setdefault(name, stream.now)

    def look(self) -> None:
        stream = self.stream
        decision = stream.decide()
        self.check_liveness(decision)
        if isinstance(decision, Wait):
            self.check_wait(decision)
        reason = explain_watermark(
            "s", "k", stream.records.values(), stream.log.last, stream.rules, layout=stream.layout, now=stream.now
        )
        assert sorted(reason.holders) == ([] if isinstance(decision, Emit) else list(decision.holders))
        assert str(reason).count("\n") == len(stream.records)
        self.take(decision)

    def take(self, decision: Decision) -> None:
        stream, last = self.stream, self.stream.log.last
        if not stream.apply(decision) or isinstance(decision, Wait):
            return
        entry = decision.entry
        event(entry.kind.value)
        self.counted[entry.seq] = {(name, self.writers[name].life) for name in entry.writers}
        assert check_cut(stream.layout, entry.cut) == entry.cut
        if last is None:
            self.ahead_since = dict.fromkeys(self.ahead_since, entry.at)
        else:
            assert compare_to_cut(stream.layout, entry.cut, last.cut) is Standing.PASSED
            assert last.upper is None or (entry.upper is not None and entry.upper >= last.upper)
            if entry.kind is last.kind:
                assert entry.kind is EntryKind.WATERMARK or (entry.kind is EntryKind.IDLE and entry.cut != last.cut)
            assert entry.at >= last.at + stream.rules.rate_floor
            if entry.kind is not EntryKind.WATERMARK:
                assert entry.lower == last.lower
        if entry.kind is EntryKind.WATERMARK:
            assert entry.writers
            assert list(entry.writers) == sorted(entry.writers)
        still = {name for name in self.ahead_since if self.writers[name].promised > (entry.lower or 0)}
        if entry.lower is not None:
            self.ahead_since = {name: max(entry.at, self.ahead_since[name]) for name in still}

    def check_liveness(self, decision: Decision) -> None:
        """With a living writer ahead, a watermark comes within one timeout and the rate floor, whatever others do."""
        stream, rules, last = self.stream, self.stream.rules, self.stream.log.last
        if not self.ahead_since:
            return
        due = min(self.ahead_since.values()) + rules.timeout
        if last is None:
            first = [r.marked_since for r in stream.records.values() if r.marked_since is not None]
            due = max(due, min(first) + rules.first_delay)
        else:
            due = max(due, last.at + rules.rate_floor)
        if stream.now >= due:
            assert isinstance(decision, Emit)
            assert decision.entry.kind is EntryKind.WATERMARK

    def check_wait(self, wait: Wait) -> None:
        """A wait ends when it says, and not before."""
        stream = self.stream

        def at(now: int) -> Decision:
            return decide_watermark(
                stream.records.values(), stream.log.last, stream.rules, layout=stream.layout, now=now
            )

        for later in range(stream.now, stream.now + 12 if wait.until is None else wait.until):
            assert isinstance(at(later), Wait)
        if wait.until is not None:
            assert wait.until > stream.now
            then = at(wait.until)
            is_sure = wait.reason in (WaitReason.HELD, WaitReason.RATE_FLOOR, WaitReason.FIRST_DELAY)
            assert isinstance(then, Emit) if is_sure else isinstance(then, Emit) or then.reason is not wait.reason

    def check_promises(self) -> None:
        """No counted writer's event with a time below an entry's lower lies after its cut."""
        lowers = self.stream.lowers
        assert lowers == sorted(set(lowers))  # type: ignore[type-var]
        for entry in self.stream.entries:
            if entry.kind is not EntryKind.WATERMARK:
                continue
            for name, life, time, segment, end in self.events:
                if (name, life) in self.counted[entry.seq] and entry.lower is not None and time < entry.lower:
                    assert self.is_before(segment, end, entry.cut), (entry, name, time, segment, end)

    def is_before(self, segment: int, end: int, cut: Position) -> bool:
        return cut[segment] >= end if segment in cut else self.stream.layout.has_descendant(segment, cut)


@given(RULES, st.integers(1, 2), ACTIONS)
@settings(max_examples=examples(500))
def test_every_history_keeps_its_promises(
    rules: WatermarkRules, segments: int, actions: list[tuple[str, str, int, float]]
) -> None:
    history = History(PlayedStream(Layout.create(segments), rules))
    for action in actions:
        history.play(*action)
    history.check_promises()
    quieten(history)


def quieten(history: History) -> None:
    """Let everybody be idle: the log comes to the highest time there was, to every position, and to rest."""
    stream = history.stream
    for name, record in list(stream.records.items()):
        if record.state is not WriterState.CLOSED:
            stream.idle(name)
    history.ahead_since = {}
    tops = [record.mark.time for record in stream.records.values() if record.mark is not None]
    for _ in range(8):
        stream.now += 5
        history.look()
    last = stream.log.last
    if not tops:
        return
    assert last is not None
    assert last.lower is not None
    assert last.lower >= max(tops)
    are_idle = any(record.state is WriterState.IDLE for record in stream.records.values())
    assert last.kind is (EntryKind.IDLE if are_idle else EntryKind.UNKNOWN)
    # What was told is in the log, or waits in the record of a writer that closed behind its end.
    cut = cut_over(stream.layout, [record.position for record in stream.records.values()], last.cut)
    assert cut == last.cut or not are_idle
    for position in history.told:
        for segment, end in position.items():
            assert history.is_before(segment, end, cut)
    history.check_promises()
