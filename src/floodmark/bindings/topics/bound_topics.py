"""Kafka topics as a bound source: their partitions are its partitions, and their records or marks tell its time."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from floodmark._util.codec import JsonValue
from floodmark._util.times import Duration
from floodmark.bindings.bindings import Bindings
from floodmark.bindings.history import BindingHistory
from floodmark.bindings.minting import check_not_truncated
from floodmark.bindings.timestamps import is_due
from floodmark.bindings.topics.partitions import (
    EARLIEST,
    LATEST,
    PartitionProgress,
    PartitionStatus,
    TimeRule,
    TopicWatermark,
    coalesce_partitions,
    join_partition,
    parse_offsets,
    split_partition,
)
from floodmark.bindings.topics.times import MarksChoice, ReportedTime, ReportedTimes, TopicMarks
from floodmark.control import Home
from floodmark.errors import InvalidOption, MintLost, SourceRecreated, TopicRecreated, TopicTrimmed

if TYPE_CHECKING:
    from floodmark.kafka import KafkaCluster, TopicInfo
    from floodmark.kafka.consumer import NewestTimes

_REFRESH_SECONDS: Final = 1.0
"""How often it is asked whether there are new partitions, at most."""

_OffsetQuery = Callable[[str, Iterable[int]], dict[int, int]]


class BoundTopics:
    """Topics whose records get timestamps as they come.

        with Home.open("home") as home:
            bound = BoundTopics(home, KafkaCluster(KafkaSettings.of("localhost:9092")), ["orders"])
            bound.tick().ends

    What a topic has when it is first looked at is bound to one timestamp. How far time has come is told by its marks
    topic, if it has one; else by the timestamps of its records; or, if the rule says that times are in the values, by
    what those who read them have reported. Each binding keeps the watermark that was known when it was made, so what
    becomes known later counts from the next one on.
    """

    look_seconds: Final = 0.2
    """How often it is worth while to ask a broker for more."""

    def __init__(
        self,
        home: Home,
        cluster: "KafkaCluster",
        topics: Iterable[str],
        *,
        source: str | None = None,
        bindings: Bindings | None = None,
        rule: TimeRule = TimeRule(),  # noqa: B008 - it is frozen
        marks: MarksChoice = "auto",
        marks_key: str | None = None,
        committed: bool = True,
        **settings: Duration | None,
    ) -> None:
        """Make the topics known as a source; without an id the source is named by the cluster and the topics."""
        self.topics = tuple(sorted(set(topics)))
        self.rule = rule
        self.bindings = Bindings(home) if bindings is None else bindings
        self._home = home
        self._cluster = cluster
        self._committed = committed
        self._cluster_id = cluster.cluster_id()
        self._infos: dict[str, TopicInfo] = {}
        self._newest: NewestTimes | None = None
        self._refreshed = 0.0
        self._refresh()
        self.source = source or default_source_id(self._cluster_id, self.topics, rule, committed=committed)
        self._marks = TopicMarks.find(cluster, self.topics, marks, marks_key)
        self._registered = self._identity()
        register_topics(self.bindings, self.source, self._registered)
        if settings:
            self.bindings.alter(self.source, **settings)
        self.times = ReportedTimes(home, self.source)

    def history(self) -> BindingHistory:
        """Return what is bound."""
        return self.bindings.history(self.source)

    def tick(self, *, at_once: bool = False) -> BindingHistory:
        """Bind what is new, if there is anything and a tick is due, and return all that is bound.

        With `at_once` it is not waited for the tick: what is in the topics now will be bound.
        """
        while True:
            history = self.history()
            if not at_once and not self._is_due():
                return history
            seen = self._look(history)
            told = seen.told(history)
            if all(history.ends.get(part, 0) >= end for part, end in seen.ends.items()) and not history.risen(told):
                return history
            try:
                minted = self.bindings.mint(
                    self.source, seen.ends, told, expected_upper=history.upper, identity=self._identity()
                )
            except MintLost:
                continue
            seen.remember()
            if self.bindings.source(self.source).compaction_window is not None:
                self.bindings.compact(self.source)
            return self.history() if minted.is_compacted else minted

    def tick_time(self) -> BindingHistory:
        """Bind nothing but the watermark, if it has risen by what was reported since the last tick."""
        while True:
            history = self.history()
            told = self._look(history).told(history, bound_only=True)
            if not history.risen(told):
                return history
            try:
                return self.bindings.mint(self.source, history.ends, told, expected_upper=history.upper)
            except MintLost:
                continue

    def why(self) -> TopicWatermark:
        """Return how far time has come, which partition or marks topic holds it, and what each of them says."""
        history = self.history()
        return self._look(history).time(history, history.ends)

    def place(self, wanted: str, option: str = "startingOffsets") -> dict[int, int]:
        """Return a place in the topics: "earliest", "latest", or offsets as JSON."""
        counts = {topic: info.partitions for topic, info in self._infos.items()}
        starts = self._asked(self._cluster.starts)
        if wanted.strip().lower() == "earliest":
            return starts
        ends = self.tick(at_once=True).ends
        if wanted.strip().lower() == "latest":
            return {part: ends.get(part, 0) for part in starts}
        given = parse_offsets(wanted, option, self.topics, counts)
        found = {}
        for part, offset in given.items():
            start, end = starts[part], ends.get(part, 0)
            found[part] = {EARLIEST: start, LATEST: end}.get(offset, offset)
            if found[part] < start:
                raise TopicTrimmed(
                    f"{option} is {found[part]} in {self.name_of(part)}, which begins at {start}.",
                    rule="Reading begins at a record that the topic still has.",
                    remedy=f"Give {start} or more, or -2 for what is left.",
                    topic=self.name_of(part),
                    offset=found[part],
                    start=start,
                )
            if found[part] > end:
                raise InvalidOption(
                    f"{option} is {found[part]} in {self.name_of(part)}, which ends at {end}.",
                    rule="A place lies in the topic.",
                    remedy=f"Give {end} or less, or -1 for the end.",
                    option=option,
                    value=found[part],
                )
        return found

    def skip_to(self, cut: Mapping[int, int]) -> None:
        """Say that nobody is going to read what lies before a cut, so it need not be waited for."""
        if self.rule.is_read:
            self.times.report({part: ReportedTime(None, offset) for part, offset in cut.items() if offset})

    def name_of(self, part: int) -> str:
        """Return the topic and the partition, for a person."""
        place, partition = split_partition(part)
        return f"{self.topics[place]}-{partition}"

    def _is_due(self) -> bool:
        known = self.bindings.source(self.source)
        return is_due(self._home.now(), known.minted_at, known.tick)

    def _identity(self) -> dict[str, object]:
        return topics_identity(self._cluster_id, self._infos.values(), self.rule, committed=self._committed)

    def _refresh(self) -> None:
        """Ask which partitions there are, and whether the topics are still those."""
        self._infos = {name: self._cluster.topic(name) for name in self.topics}
        self._refreshed = time.monotonic()

    def _look(self, history: BindingHistory) -> "_TopicsSnapshot":
        """Return what is there. What was told of time is asked for first, so that it lies before the ends."""
        if time.monotonic() - self._refreshed > _REFRESH_SECONDS:
            self._refresh()
        while True:
            known = self._infos
            told = self._newest_times() if self._marks is None and not self.rule.is_read else {}
            ends = self._asked(self._ends)
            if _is_below_bound(ends, history):
                # Somebody did not know better yet, or the topic is another one.
                ends = self._asked(self._ends)
            if _is_below_bound(ends, history) or any(end > history.ends.get(part, 0) for part, end in ends.items()):
                # Asked after the ends: they are those of the topic that is bound if it is still there now.
                self._refresh()
            if self._registered != self._identity():
                register_topics(self.bindings, self.source, self._identity())
            check_not_truncated(history, ends)
            if known == self._infos:
                return _TopicsSnapshot(self, ends, self._confirmed(told, ends, history) if self._committed else told)

    def _ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return self._cluster.ends(topic, partitions, committed=self._committed)

    def _confirmed(
        self, told: Mapping[int, tuple[int, int]], ends: Mapping[int, int], history: BindingHistory
    ) -> dict[int, tuple[int, int]]:
        """Return what was told of the times of partitions that have grown, without what was never committed."""
        from floodmark.kafka.consumer import NewestTimes

        if self._marks is not None or self.rule.is_read:
            return {}
        if self._newest is None:
            self._newest = NewestTimes(self._cluster.settings)
        known, bound = self.times.known(), history.ends
        grown = {part: end for part, end in ends.items() if end > bound.get(part, 0) or part not in known}
        names = {part: (self.topics[split_partition(part)[0]], split_partition(part)[1]) for part in grown}
        starts = self._asked(self._cluster.starts) if grown else {}
        latest = self.rule.latest(self._home.now())
        found = self._newest.confirmed(
            {name: told[part] for part, name in names.items() if part in told},
            {name: (starts[part], grown[part]) for part, name in names.items()},
            None if latest is None else latest // 1000,
        )
        return {part: (grown[part] - 1, found[name]) for part, name in names.items() if name in found}

    def _newest_times(self) -> dict[int, tuple[int, int]]:
        return {
            join_partition(place, partition): told
            for place, topic in enumerate(self.topics)
            for partition, told in self._cluster.newest_times(topic, range(self._infos[topic].partitions)).items()
        }

    def _asked(self, ask: _OffsetQuery) -> dict[int, int]:
        return {
            join_partition(place, partition): offset
            for place, topic in enumerate(self.topics)
            for partition, offset in ask(topic, range(self._infos[topic].partitions)).items()
        }


class _TopicsSnapshot:
    """What the topics had at one moment, and what that says of time."""

    def __init__(self, bound: BoundTopics, ends: dict[int, int], newest: Mapping[int, tuple[int, int]]) -> None:
        self.ends = ends
        self._bound = bound
        self._newest = newest
        self._counted: dict[int, ReportedTime] = {}

    def told(self, history: BindingHistory, *, bound_only: bool = False) -> dict[str, int]:
        """Return the watermark that holds where these ends, or what is bound, have been read."""
        found = self.time(history, history.ends if bound_only else self.ends).watermark
        return {} if found is None else {self._bound.rule.key: found}

    def time(self, history: BindingHistory, ends: Mapping[int, int]) -> TopicWatermark:
        bound = self._bound
        if bound._marks is not None:
            return _watermark_of_marks(bound._marks.watermarks(history.ends, ends), history.upper)
        known = bound.times.known()
        for part, (offset, millis) in self._newest.items():
            # What lies behind the end comes with another binding, and so does its time.
            if offset < ends.get(part, 0):
                before = known.get(part, ReportedTime(None, 0)).newest
                newest = millis * 1000 if before is None else max(before, millis * 1000)
                if newest != before:
                    known[part] = self._counted[part] = ReportedTime(newest, 0)
        partitions = [
            PartitionProgress(
                name=bound.name_of(part),
                newest=known[part].newest if part in known else None,
                end=end,
                bound=history.ends.get(part, 0),
                read_to=(known[part].read_to if part in known else 0) if bound.rule.is_read else None,
                moved_at=_last_growth(history, part),
            )
            for part, end in sorted(self.ends.items())
        ]
        return coalesce_partitions(partitions, bound._home.now(), bound.rule)

    def remember(self) -> None:
        """Keep the times that are bound by now: Kafka may trim the record that had the greatest."""
        self._bound.times.report(self._counted)


def _is_below_bound(ends: Mapping[int, int], history: BindingHistory) -> bool:
    return any(ends.get(part, bound) < bound for part, bound in history.ends.items())


def _last_growth(history: BindingHistory, part: int) -> int:
    """Return when a partition last grew, by its bindings."""
    column = history.columns.get(part)
    if column is None or not len(column):
        return history.origin
    return int(column.ts[np.searchsorted(column.values, column.last, side="left")])


def _watermark_of_marks(told: Mapping[str, int | None], now: int) -> TopicWatermark:
    known = [time for time in told.values() if time is not None]
    least = min(known) if len(known) == len(told) else None
    views = (
        PartitionStatus(name, time, is_idle=False, is_caught_up=True, since=now, holds=time == least)
        for name, time in told.items()
    )
    return TopicWatermark(least, False, tuple(views))


def default_source_id(cluster_id: str, topics: Sequence[str], rule: TimeRule, *, committed: bool = True) -> str:
    """Return the id of a source that was given none.

    >>> default_source_id("Zx3", ["orders", "returns"], TimeRule())
    'kafka:Zx3:orders,returns'
    >>> default_source_id("Zx3", ["orders"], TimeRule(key="at", is_read=True), committed=False)
    'kafka:Zx3:orders:at:uncommitted'
    """
    time = [rule.key] if rule.is_read or rule.key != TimeRule().key else []
    return ":".join(["kafka", cluster_id, ",".join(topics), *time, *([] if committed else ["uncommitted"])])


def topics_identity(
    cluster_id: str, topics: "Iterable[TopicInfo]", rule: TimeRule, *, committed: bool
) -> dict[str, Any]:
    """Return what is kept with the bindings, as JSON values."""
    return {
        "cluster": cluster_id,
        "topics": {info.name: info.id for info in topics},
        "time": rule.key,
        "committed": committed,
    }


def register_topics(bindings: Bindings, source: str, identity: JsonValue) -> None:
    """Make topics known as a source, or refuse others than those that are known under its id."""
    try:
        bindings.register(source, kind="kafka", identity=identity)
    except SourceRecreated:
        known = bindings.source(source).identity
        if not isinstance(known, dict) or known.get("topics", {}).keys() != identity["topics"].keys():
            raise
        if known["cluster"] == identity["cluster"] and known["topics"] != identity["topics"]:
            names = [name for name, one in identity["topics"].items() if known["topics"][name] != one]
            raise TopicRecreated(
                f"The topic {names[0]!r} was deleted and made anew since {source!r} was bound.",
                rule="Offsets that were bound mean records of the old topic.",
                remedy="Read the new one under another source id, with a new checkpoint; or drop the source.",
                source=source,
                topic=names[0],
            ) from None
        for name, option in (("time", "timestampColumn"), ("committed", "kafka.isolation.level")):
            before, now = known.get(name), identity[name]
            if before != now:
                raise InvalidOption(
                    f"The source {source!r} was bound with {name} = {before!r}, and now it is {now!r}.",
                    rule="Everybody who reads a source shares its bindings, and so what they are made by.",
                    remedy=f"Give another source id, or the same {option}.",
                    option=option,
                    source=source,
                ) from None
        raise
