"""A stream in memory that follows the rules: what a store would keep, for scenarios and random histories."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from floodmark.errors import UnknownWriter
from floodmark.streams import EntryKind, Layout, MarkEntry, MarkOutcome, Position, Segment
from floodmark.streams.marks.log import MarksLog
from floodmark.streams.marks.watermark import Decision, Emit, WatermarkRules, decide_watermark
from floodmark.streams.marks.writer_record import WriterRecord

Epoch = Mapping[int, tuple[float, float]]


def layout_of(epochs: Sequence[Epoch]) -> Layout:
    """Return the layout in which each epoch has these segments, numbered as they come."""
    layout = Layout(tuple(Segment(number, 0, *keys) for number, keys in epochs[0].items()), (None,) * len(epochs[0]))
    for before, epoch in pairwise(epochs):
        fresh = [keys for number, keys in epoch.items() if number not in before]
        layout = layout.replace([number for number in before if number not in epoch], fresh)
        assert {segment.id for segment in layout.current} == set(epoch)
    return layout


class PlayedStream:
    """One stream and key. The clock is `now`; each cycle is the leader looking once."""

    def __init__(self, layout: Layout, rules: WatermarkRules) -> None:
        self.layout = layout
        self.rules = rules
        self.records: dict[str, WriterRecord] = {}
        self.log = MarksLog()
        self.now = 0
        self.version = 0

    @property
    def entries(self) -> list[MarkEntry]:
        return [self.log.entry(number) for number in self.log.numbers()]

    @property
    def lowers(self) -> list[int | None]:
        return [entry.lower for entry in self.entries if entry.kind is EntryKind.WATERMARK]

    @property
    def watermark(self) -> int | None:
        return None if self.log.last is None else self.log.last.lower

    def open(self, writer: str) -> int:
        record = self.records.get(writer)
        self.records[writer] = (
            WriterRecord.open(writer, now=self.now) if record is None else record.open_again(now=self.now)
        )
        self.version += 1
        return self.records[writer].instance

    def note(self, writer: str, time: int, position: Position, instance: int | None = None) -> MarkOutcome:
        record = self.records.get(writer) or WriterRecord.open(writer, now=self.now)
        noted = record.note(
            time, position, layout=self.layout, now=self.now, watermark=self.watermark, instance=instance
        )
        if writer not in self.records or noted.record.state is not record.state:
            self.version += 1
        self.records[writer] = noted.record
        return noted.outcome

    def _known(self, writer: str) -> WriterRecord:
        if writer not in self.records:
            raise UnknownWriter(f"The writer {writer!r} is not known.", rule="It is opened first.", remedy="Open it.")
        return self.records[writer]

    def idle(self, writer: str, position: Position | None = None) -> None:
        record = self._known(writer).moved(position or {}, layout=self.layout)
        self.records[writer] = record.idle()
        self.version += 1

    def close(self, writer: str, position: Position | None = None) -> None:
        record = self._known(writer).moved(position or {}, layout=self.layout)
        self.records[writer] = record.close()
        self.version += 1

    def decide(self) -> Decision:
        return decide_watermark(
            self.records.values(),
            self.log.last,
            self.rules,
            layout=self.layout,
            now=self.now,
            writers_version=self.version,
        )

    def cycle(self, now: int | None = None) -> Decision:
        self.now = self.now if now is None else now
        decision = self.decide()
        assert self.apply(decision)
        return decision

    def apply(self, decision: Decision) -> bool:
        """Store a decision, if what it was made on still stands."""
        if (decision.after, decision.writers_version) != (len(self.log.numbers()), self.version):
            return False
        for before, after in decision.changes.updates():
            if self.records.get(before.writer) != before:
                continue
            self.version += 1
            if after is None:
                del self.records[before.writer]
            else:
                self.records[before.writer] = after
        if isinstance(decision, Emit):
            self.log.append(decision.entry)
        return True
