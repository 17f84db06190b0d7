"""Where the time of topics comes from: event times that readers report in the home, and marks topics."""

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
    """The greatest event time in what was read of a partition, in microseconds, and how far it was read."""

    newest: int | None
    read_to: int


class ReportedTimes:
    """The times of one source.

    >>> with Home.open() as home:
    ...     _ = Bindings(home).register("orders", kind="kafka", identity=1)
    ...     times = ReportedTimes(home, "orders")
    ...     times.report({0: ReportedTime(70, 5)})
    ...     times.report({0: ReportedTime(50, 9)})
    ...     times.known()
    {0: ReportedTime(newest=70, read_to=9)}

    Whoever reads rows reports what it has seen. A task that runs again, or twice, says nothing new by that.
    """

    __slots__ = ("_home", "_source")

    def __init__(self, home: Home, source: str) -> None:
        """Keep them in this home."""
        self._home = home
        self._source = source

    def known(self) -> dict[int, ReportedTime]:
        """Return what was reported of each partition."""
        with self._home.read() as connection:
            return _load_reported(connection, find_source(connection, self._source).source_id)

    def report(self, seen: Mapping[int, ReportedTime]) -> None:
        """Add what somebody has seen."""
        if not seen:
            return
        with self._home.write() as connection:
            # The lock keeps two who report from losing each other's word.
            source_id = find_source(connection, self._source, lock=True).source_id
            known, now = _load_reported(connection, source_id), self._home.now(connection)
            for part, told in seen.items():
                merged = _merge_reported(known.get(part), told)
                if merged != known.get(part):
                    values = {"newest": merged.newest, "read_to": merged.read_to, "moved_at": now}
                    upsert_row(connection, TOPIC_TIMES, {"source_id": source_id, "part": part, **values})


def _load_reported(connection: Connection, source_id: int) -> dict[int, ReportedTime]:
    rows = connection.execute(select(TOPIC_TIMES).where(TOPIC_TIMES.c.source_id == source_id))
    return {row.part: ReportedTime(row.newest, row.read_to) for row in rows}


def _merge_reported(known: ReportedTime | None, told: ReportedTime) -> ReportedTime:
    if known is None:
        return told
    times = [time for time in (known.newest, told.newest) if time is not None]
    return ReportedTime(max(times, default=None), max(known.read_to, told.read_to))


MarksChoice = Literal["auto", "require", "ignore"]

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class TopicMarks:
    """The marks of some topics, read as they come. They are kept only until what lies before them is bound."""

    def __init__(self, cluster: "KafkaCluster", topics: Sequence[str], key: str | None = None) -> None:
        """Read the marks topics of these topics, of which each has one; of several time keys, `key` is read."""
        self._logs = [_MarksLog(cluster, topic, place, key) for place, topic in enumerate(topics)]

    @classmethod
    def find(
        cls, cluster: "KafkaCluster", topics: Sequence[str], choice: MarksChoice, key: str | None = None
    ) -> "TopicMarks | None":
        """Return the marks of the topics, or None if they have none or are not to be used; refuse those of a part."""
        from floodmark.kafka import marks_topic_of

        if choice == "ignore":
            return None
        lacking = [topic for topic in topics if cluster.find_topic(marks_topic_of(topic)) is None]
        if not lacking:
            return cls(cluster, topics, key)
        if choice == "require":
            raise UnknownTopic(
                f"The topic {lacking[0]!r} has no marks topic {marks_topic_of(lacking[0])!r}.",
                rule="With marks = 'require' each topic has one, which tells how far time has come.",
                remedy="Create it by what writes the topic, or leave the option out.",
                topic=marks_topic_of(lacking[0]),
            )
        if len(lacking) < len(topics):
            raise InvalidOption(
                f"Of the topics {', '.join(topics)} some have a marks topic, and {', '.join(lacking)} not.",
                rule="The watermark comes from the marks of all topics, or from the records of all.",
                remedy="Set marks to 'ignore', or read them under two sources.",
                option="marks",
                value=choice,
            )
        return None

    def watermarks(self, bound: Mapping[int, int], ends: Mapping[int, int]) -> dict[str, int | None]:
        """Return for each marks topic how far time has come, in microseconds, where all before `ends` was read.

        `bound` is how far the topics are bound for good.
        """
        return {log.name: log.watermark(bound, ends) for log in self._logs}


class _MarksLog:
    """One marks topic: the highest time whose cut was passed, and the records whose cuts lie ahead."""

    def __init__(self, cluster: "KafkaCluster", topic: str, place: int, key: str | None) -> None:
        from floodmark.kafka import Fetcher, marks_topic_of

        self.name: str = marks_topic_of(topic)
        self._cluster, self._topic, self._place, self._key = cluster, topic, place, key
        self._fetcher = Fetcher(cluster.settings)
        self._next: int | None = None
        self._reached: int | None = None
        self._ahead: list[MarkRecord] = []
        self._newest: dict[str, int] = {}

    def watermark(self, bound: Mapping[int, int], ends: Mapping[int, int]) -> int | None:
        self._read_on()
        # Cuts only rise: what was told before the last that is bound for good has nothing to add.
        behind = self._passed(bound)
        if behind:
            self._reached = max(_mark_times(self._ahead[place] for place in behind), default=self._reached)
            del self._ahead[: behind[-1] + 1]
        times = _mark_times(self._ahead[place] for place in self._passed(ends))
        return max((*times, *(() if self._reached is None else (self._reached,))), default=None)

    def _passed(self, ends: Mapping[int, int]) -> list[int]:
        """Return the places of the records whose cuts lie before these ends."""
        key = self._chosen()
        return [
            place
            for place, record in enumerate(self._ahead)
            if record.key == key
            and all(ends.get(join_partition(self._place, part), 0) >= offset for part, offset in record.cut.items())
        ]

    def _read_on(self) -> None:
        from floodmark.kafka import MarkRecord

        (end,) = self._cluster.ends(self.name, [0]).values()
        if self._next is None:
            (self._next,) = self._cluster.starts(self.name, [0]).values()
        for records in self._fetcher.read(self.name, 0, self._next, end, wait_to=end):
            for raw in records:
                record = MarkRecord.load(raw.value() or b"")
                if record.seq > self._newest.get(record.key, -1):
                    self._newest[record.key] = record.seq
                    self._ahead.append(record)
        self._next = max(self._next, end)

    def _chosen(self) -> str | None:
        if self._key in self._newest or not self._newest:
            return self._key
        if len(self._newest) > 1:
            raise InvalidOption(
                f"The marks topic {self.name!r} has the time keys {', '.join(sorted(self._newest))}.",
                rule="One of them is the watermark of what is read.",
                remedy="Name it by the option key.",
                option="key",
                value=self._key,
            )
        return next(iter(self._newest))


def _mark_times(records: "Iterable[MarkRecord]") -> list[int]:
    """Return what records say, in microseconds."""
    return [record.lower * 1_000_000 // _PER_SECOND[record.unit] for record in records if record.lower is not None]
