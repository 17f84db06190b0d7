"""Sources of event time for topics: times that readers report in the home, and marks topics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from sqlalchemy import Connection, select

from floodmark.bindings.sources import find_source
from floodmark.bindings.tables import TOPIC_TIMES
from floodmark.bindings.topics.partitions import join_partition
from floodmark.control import Home
from floodmark.control.store.base import upsert_row
from floodmark.errors import InvalidOption, UnknownTopic

if TYPE_CHECKING:
    from floodmark.kafka import KafkaCluster, MarkRecord


@dataclass(frozen=True, slots=True)
class ReportedTime:
    """The greatest event time read of a partition, in microseconds, and the offset it was read up to."""

    newest: int | None
    read_to: int


class ReportedTimes:
    """The reported times of one source.

    >>> with Home.open() as home:
    ...     _ = Bindings(home).register("orders", kind="kafka", identity=1)
    ...     times = ReportedTimes(home, "orders")
    ...     times.report({0: ReportedTime(70, 5)})
    ...     times.report({0: ReportedTime(50, 9)})
    ...     times.read()
    {0: ReportedTime(newest=70, read_to=9)}

    Readers report what they have read. Reports are merged by maximum, so a repeated report changes nothing.
    """

    __slots__ = ("_home", "_source")

    def __init__(self, home: Home, source: str) -> None:
        """Read and write the times of this source in `home`."""
        self._home = home
        self._source = source

    def read(self) -> dict[int, ReportedTime]:
        """Return the reported time of each partition."""
        with self._home.read() as connection:
            return _load_reported(connection, find_source(connection, self._source).source_id)

    def report(self, times: Mapping[int, ReportedTime]) -> None:
        """Merge times that a reader has seen into the stored ones."""
        if not times:
            return
        with self._home.write() as connection:
            # The lock prevents lost updates between concurrent reports.
            source_id = find_source(connection, self._source, lock=True).source_id
            stored, now = _load_reported(connection, source_id), self._home.now(connection)
            for part, reported in times.items():
                merged = _merge_reported(stored.get(part), reported)
                if merged != stored.get(part):
                    values = {"newest": merged.newest, "read_to": merged.read_to, "moved_at": now}
                    upsert_row(connection, TOPIC_TIMES, {"source_id": source_id, "part": part, **values})


def _load_reported(connection: Connection, source_id: int) -> dict[int, ReportedTime]:
    rows = connection.execute(select(TOPIC_TIMES).where(TOPIC_TIMES.c.source_id == source_id))
    return {row.part: ReportedTime(row.newest, row.read_to) for row in rows}


def _merge_reported(stored: ReportedTime | None, reported: ReportedTime) -> ReportedTime:
    if stored is None:
        return reported
    times = [time for time in (stored.newest, reported.newest) if time is not None]
    return ReportedTime(max(times, default=None), max(stored.read_to, reported.read_to))


MarksChoice = Literal["auto", "require", "ignore"]

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class TopicMarks:
    """The marks of some topics, read incrementally. Marks are dropped once the offsets before them are bound."""

    def __init__(self, cluster: "KafkaCluster", topics: Sequence[str], key: str | None = None) -> None:
        """Read the marks topics of these topics, all of which must have one; `key` selects one of several time keys."""
        self._logs = [_MarksLog(cluster, topic, index, key) for index, topic in enumerate(topics)]

    @classmethod
    def find(
        cls, cluster: "KafkaCluster", topics: Sequence[str], choice: MarksChoice, key: str | None = None
    ) -> "TopicMarks | None":
        """Return the marks of the topics; None if they have none or `choice` is "ignore"; all must have one or none."""
        from floodmark.kafka import marks_topic_of

        if choice == "ignore":
            return None
        lacking = [topic for topic in topics if cluster.find_topic(marks_topic_of(topic)) is None]
        if not lacking:
            return cls(cluster, topics, key)
        if choice == "require":
            raise UnknownTopic(
                f"The topic {lacking[0]!r} has no marks topic {marks_topic_of(lacking[0])!r}.",
                rule="With marks='require' each topic needs a marks topic.",
                remedy="Let the program that writes the topic write its marks topic, or set marks='auto'.",
                topic=marks_topic_of(lacking[0]),
            )
        if len(lacking) < len(topics):
            raise InvalidOption(
                f"Of the topics {', '.join(topics)} some have a marks topic, but {', '.join(lacking)} have none.",
                rule="The watermark comes either from the marks of all topics or from the records of all.",
                remedy="Set marks='ignore', or read the topics with and without marks as two sources.",
                option="marks",
                value=choice,
            )
        return None

    def watermarks(self, bound: Mapping[int, int], ends: Mapping[int, int]) -> dict[str, int | None]:
        """Return the watermark of each marks topic in microseconds, once everything before `ends` is read.

        `bound` is how far the topics are bound durably.
        """
        return {log.name: log.watermark(bound, ends) for log in self._logs}


class _MarksLog:
    """One marks topic: the highest time whose cut was passed, and the records whose cuts lie ahead."""

    def __init__(self, cluster: "KafkaCluster", topic: str, index: int, key: str | None) -> None:
        from floodmark.kafka import Fetcher, marks_topic_of

        self.name: str = marks_topic_of(topic)
        self._cluster, self._topic, self._index, self._key = cluster, topic, index, key
        self._fetcher = Fetcher(cluster.settings)
        self._next_offset: int | None = None
        self._reached: int | None = None
        self._ahead: list[MarkRecord] = []
        self._newest_seq: dict[str, int] = {}

    def watermark(self, bound: Mapping[int, int], ends: Mapping[int, int]) -> int | None:
        self._read_new_records()
        # Cuts only rise, so records up to the last one whose cut is bound durably can be folded into one time.
        bound_records = self._passed(bound)
        if bound_records:
            self._reached = max(_mark_times(self._ahead[number] for number in bound_records), default=self._reached)
            del self._ahead[: bound_records[-1] + 1]
        times = _mark_times(self._ahead[number] for number in self._passed(ends))
        return max((*times, *(() if self._reached is None else (self._reached,))), default=None)

    def _passed(self, ends: Mapping[int, int]) -> list[int]:
        """Return the indexes of the records whose cuts lie at or before these ends."""
        key = self._time_key()
        return [
            number
            for number, record in enumerate(self._ahead)
            if record.key == key
            and all(ends.get(join_partition(self._index, part), 0) >= offset for part, offset in record.cut.items())
        ]

    def _read_new_records(self) -> None:
        from floodmark.kafka import MarkRecord

        (end,) = self._cluster.ends(self.name, [0]).values()
        if self._next_offset is None:
            (self._next_offset,) = self._cluster.starts(self.name, [0]).values()
        for records in self._fetcher.read(self.name, 0, self._next_offset, end, wait_to=end):
            for raw in records:
                record = MarkRecord.load(raw.value() or b"")
                if record.seq > self._newest_seq.get(record.key, -1):
                    self._newest_seq[record.key] = record.seq
                    self._ahead.append(record)
        self._next_offset = max(self._next_offset, end)

    def _time_key(self) -> str | None:
        if self._key in self._newest_seq or not self._newest_seq:
            return self._key
        if len(self._newest_seq) > 1:
            raise InvalidOption(
                f"The marks topic {self.name!r} has the time keys {', '.join(sorted(self._newest_seq))}.",
                rule="A source has one time key.",
                remedy=f"Set the option key to one of them, such as {min(self._newest_seq)!r}.",
                option="key",
                value=self._key,
            )
        return next(iter(self._newest_seq))


def _mark_times(records: "Iterable[MarkRecord]") -> list[int]:
    """Return the times of mark records in microseconds."""
    return [record.lower * 1_000_000 // _PER_SECOND[record.unit] for record in records if record.lower is not None]
