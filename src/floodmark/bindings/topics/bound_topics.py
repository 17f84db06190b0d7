"""Kafka topics as a bound source: their partitions are its partitions, their records or marks give its watermark."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from floodmark._util.codec import JsonValue
from floodmark._util.times import Duration, RewoundTimes
from floodmark.bindings.bindings import Bindings
from floodmark.bindings.history import BindingHistory, SourceState
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
from floodmark.errors import (
    InvalidOption,
    KafkaRefused,
    MintLost,
    SourceRecreated,
    TopicCompacted,
    TopicRecreated,
    TopicTrimmed,
)

if TYPE_CHECKING:
    from floodmark.kafka import KafkaCluster, TopicInfo
    from floodmark.kafka.consumer import NewestTimes

_REFRESH_SECONDS: Final = 1.0
"""Minimum interval between checks for new partitions."""

_POLICY_SECONDS: Final = 60.0
"""Minimum interval between checks of the cleanup policy."""

CompactedChoice = Literal["fail", "accept"]
"""Whether topics that Kafka compacts are refused."""

_LOG: Final = logging.getLogger("floodmark.bindings")

_OffsetQuery = Callable[[str, Iterable[int]], dict[int, int]]


class BoundTopics:
    """Topics whose records get timestamps as they arrive.

        with Home.open("home") as home:
            bound = BoundTopics(home, KafkaCluster(KafkaSettings.of("localhost:9092")), ["orders"])
            bound.tick().ends

    Records from before the first tick are bound to one timestamp. The watermark comes from the marks topic, if there is
    one; else from the timestamps of the records; or, if the rule says that times are in the values, from what readers
    have reported. Each binding keeps the watermark known when it was made; later knowledge counts from the next one on.

    A topic with the cleanup policy compact is refused, since Kafka deletes records of it that are bound: a replay would
    lack them in silence. With `compacted="accept"`, records that are still there keep their timestamps, and no reader
    gets one twice; but a replay, a query that starts later, and a batch that is computed again may lack records.
    """

    poll_seconds: Final = 0.2
    """Interval at which to ask the broker for new records."""

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
        compacted: CompactedChoice = "fail",
        **settings: Duration | None,
    ) -> None:
        """Register the topics as a source; the default source id names the cluster and the topics.

        `settings` are those of `Bindings.register`.
        """
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
        self._compacted: CompactedChoice = compacted
        self._policy_checked = -_POLICY_SECONDS
        self._growth = RewoundTimes()
        self._refresh_topics()
        self.source = source or default_source_id(self._cluster_id, self.topics, rule, committed=committed)
        self._marks = TopicMarks.find(cluster, self.topics, marks, marks_key)
        self._registered = self._identity()
        register_topics(self.bindings, self.source, self._registered, settings)
        self.times = ReportedTimes(home, self.source)

    def history(self) -> BindingHistory:
        """Return the stored bindings."""
        return self.bindings.history(self.source)

    def tick(self, *, at_once: bool = False) -> BindingHistory:
        """Bind new records if there are any and a tick is due, and return the history.

        With `at_once`, all records now in the topics are bound without waiting for the tick.
        """
        while True:
            history = self.history()
            if not at_once and not self._is_due():
                return history
            snapshot = self._take_snapshot(history)
            status = snapshot.watermark_status(history, snapshot.ends)
            watermarks = self._watermarks(status)
            state: SourceState = "idle" if status.is_idle else "active"
            is_bound = all(history.ends.get(part, 0) >= end for part, end in snapshot.ends.items())
            if is_bound and not history.risen(watermarks) and state == history.state:
                return history
            try:
                minted = self.bindings.mint(
                    self.source,
                    snapshot.ends,
                    watermarks,
                    expected_upper=history.upper,
                    state=state,
                    identity=self._identity(),
                )
            except MintLost:
                continue
            snapshot.store_times()
            if self.bindings.source(self.source).compaction_window is not None:
                self.bindings.compact(self.source)
            return self.history() if minted.is_compacted else minted

    def tick_time(self) -> BindingHistory:
        """Bind only the watermark, if the times reported since the last tick have raised it."""
        while True:
            history = self.history()
            watermarks = self._watermarks(self._take_snapshot(history).watermark_status(history, history.ends))
            if not history.risen(watermarks):
                return history
            try:
                return self.bindings.mint(self.source, history.ends, watermarks, expected_upper=history.upper)
            except MintLost:
                continue

    def why(self) -> TopicWatermark:
        """Return the watermark, which partition or marks topic holds it back, and the status of each."""
        history = self.history()
        return self._take_snapshot(history).watermark_status(history, history.ends)

    def resolve_offsets(self, text: str, option: str = "startingOffsets") -> dict[int, int]:
        """Return the offsets for "earliest", "latest", or offsets written as JSON; `option` is named in errors."""
        counts = {topic: info.partitions for topic, info in self._infos.items()}
        starts = self._query_offsets(self._cluster.starts)
        if text.strip().lower() == "earliest":
            return starts
        ends = self.tick(at_once=True).ends
        if text.strip().lower() == "latest":
            return {part: ends.get(part, 0) for part in starts}
        offsets = {}
        for part, number in parse_offsets(text, option, self.topics, counts).items():
            start, end = starts[part], ends.get(part, 0)
            offset = offsets[part] = {EARLIEST: start, LATEST: end}.get(number, number)
            if offset < start:
                raise TopicTrimmed(
                    f"{option} is {offset} in {self.name_of(part)}, which begins at {start}.",
                    rule="Reading can only begin at a record that the topic still has.",
                    remedy=f"Set {start} or more, or -2 for the earliest record.",
                    topic=self.name_of(part),
                    offset=offset,
                    start=start,
                )
            if offset > end:
                raise InvalidOption(
                    f"{option} is {offset} in {self.name_of(part)}, which ends at {end}.",
                    rule="An offset must not lie after the end of its partition.",
                    remedy=f"Set {end} or less, or -1 for the end.",
                    option=option,
                    value=offset,
                )
        return offsets

    def skip_to(self, cut: Mapping[int, int]) -> None:
        """Note that offsets before a cut will not be read, so that the watermark does not wait for them."""
        if self.rule.is_read:
            self.times.report({part: ReportedTime(None, offset) for part, offset in cut.items() if offset})

    def name_of(self, part: int) -> str:
        """Return topic and partition as text, such as "orders-0"."""
        index, partition = split_partition(part)
        return f"{self.topics[index]}-{partition}"

    def _watermarks(self, status: TopicWatermark) -> dict[str, int]:
        return {} if status.watermark is None else {self.rule.key: status.watermark}

    def _is_due(self) -> bool:
        source = self.bindings.source(self.source)
        return is_due(self._home.now(), source.minted_at, source.tick)

    def _identity(self) -> dict[str, object]:
        return topics_identity(self._cluster_id, self._infos.values(), self.rule, committed=self._committed)

    def _refresh_topics(self) -> None:
        """Read the partitions and ids of the topics."""
        self._infos = {name: self._cluster.topic(name) for name in self.topics}
        self._refreshed = time.monotonic()
        if self._compacted == "fail" and self._refreshed - self._policy_checked >= _POLICY_SECONDS:
            for name in self.topics:
                refuse_compacted(name, _cleanup_policy(self._cluster, name))
            self._policy_checked = self._refreshed

    def _take_snapshot(self, history: BindingHistory) -> "_TopicsSnapshot":
        """Return the current ends and times. Times are read before the ends, so that their records lie below them."""
        if time.monotonic() - self._refreshed > _REFRESH_SECONDS:
            self._refresh_topics()
        while True:
            infos = self._infos
            newest = self._newest_times() if self._marks is None and not self.rule.is_read else {}
            ends = self._query_offsets(self._ends)
            if _is_below_bound(ends, history):
                # The broker may lag behind, or the topic was recreated: ask once more.
                ends = self._query_offsets(self._ends)
            if _is_below_bound(ends, history) or any(end > history.ends.get(part, 0) for part, end in ends.items()):
                # Read the topic ids after the ends: if they are unchanged, the ends belong to the bound topics.
                self._refresh_topics()
            if self._registered != self._identity():
                register_topics(self.bindings, self.source, self._identity())
            check_not_truncated(history, ends)
            if infos == self._infos:
                times = self._committed_times(newest, ends, history) if self._committed else newest
                return _TopicsSnapshot(self, ends, times)

    def _ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return self._cluster.ends(topic, partitions, committed=self._committed)

    def _committed_times(
        self, newest: Mapping[int, tuple[int, int]], ends: Mapping[int, int], history: BindingHistory
    ) -> dict[int, tuple[int, int]]:
        """Return the newest times of the partitions that have grown, counting only committed records."""
        from floodmark.kafka.consumer import NewestTimes

        if self._marks is not None or self.rule.is_read:
            return {}
        if self._newest is None:
            self._newest = NewestTimes(self._cluster.settings)
        reported, bound = self.times.read(), history.ends
        grown = {part: end for part, end in ends.items() if end > bound.get(part, 0) or part not in reported}
        names = {part: (self.topics[split_partition(part)[0]], split_partition(part)[1]) for part in grown}
        starts = self._query_offsets(self._cluster.starts) if grown else {}
        latest = self.rule.latest(self._home.now())
        times = self._newest.committed_times(
            {name: newest[part] for part, name in names.items() if part in newest},
            {name: (starts[part], grown[part]) for part, name in names.items()},
            None if latest is None else latest // 1000,
        )
        return {part: (grown[part] - 1, times[name]) for part, name in names.items() if name in times}

    def _newest_times(self) -> dict[int, tuple[int, int]]:
        return {
            join_partition(index, partition): newest
            for index, topic in enumerate(self.topics)
            for partition, newest in self._cluster.newest_times(topic, range(self._infos[topic].partitions)).items()
        }

    def _query_offsets(self, query: _OffsetQuery) -> dict[int, int]:
        return {
            join_partition(index, partition): offset
            for index, topic in enumerate(self.topics)
            for partition, offset in query(topic, range(self._infos[topic].partitions)).items()
        }


class _TopicsSnapshot:
    """The ends and times of the topics at one moment, and the watermark that follows from them."""

    def __init__(self, bound: BoundTopics, ends: dict[int, int], newest: Mapping[int, tuple[int, int]]) -> None:
        self.ends = ends
        self._bound = bound
        self._newest = newest
        self._new_times: dict[int, ReportedTime] = {}

    def watermark_status(self, history: BindingHistory, ends: Mapping[int, int]) -> TopicWatermark:
        """Return the watermark that holds once these ends have been read, and what it follows from."""
        bound = self._bound
        if bound._marks is not None:
            return _watermark_of_marks(bound._marks.watermarks(history.ends, ends), history.upper)
        times = bound.times.read()
        for part, (offset, millis) in self._newest.items():
            # A record after the end belongs to a later binding, and so does its time.
            if offset < ends.get(part, 0):
                before = times.get(part, ReportedTime(None, 0)).newest
                newest = millis * 1000 if before is None else max(before, millis * 1000)
                if newest != before:
                    times[part] = self._new_times[part] = ReportedTime(newest, 0)
        now = bound._home.now()
        partitions = [
            PartitionProgress(
                name=bound.name_of(part),
                newest=times[part].newest if part in times else None,
                end=end,
                bound=history.ends.get(part, 0),
                read_to=(times[part].read_to if part in times else 0) if bound.rule.is_read else None,
                moved_at=bound._growth.past(part, _last_growth(history, part), now),
            )
            for part, end in sorted(self.ends.items())
        ]
        return coalesce_partitions(partitions, now, bound.rule)

    def store_times(self) -> None:
        """Store the newest times, since Kafka may delete the records that have them."""
        self._bound.times.report(self._new_times)


def _is_below_bound(ends: Mapping[int, int], history: BindingHistory) -> bool:
    return any(ends.get(part, bound) < bound for part, bound in history.ends.items())


def _last_growth(history: BindingHistory, part: int) -> int:
    """Return the timestamp at which a partition last grew."""
    column = history.columns.get(part)
    if column is None or not len(column):
        return history.origin
    return int(column.ts[np.searchsorted(column.values, column.last, side="left")])


def _watermark_of_marks(watermarks: Mapping[str, int | None], now: int) -> TopicWatermark:
    times = [time for time in watermarks.values() if time is not None]
    least = min(times) if len(times) == len(watermarks) else None
    statuses = (
        PartitionStatus(name, time, is_idle=False, is_caught_up=True, since=now, holds=time == least)
        for name, time in watermarks.items()
    )
    return TopicWatermark(least, False, tuple(statuses))


def default_source_id(cluster_id: str, topics: Sequence[str], rule: TimeRule, *, committed: bool = True) -> str:
    """Return the default source id for topics.

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
    """Return the identity of a source of topics, as JSON values."""
    return {
        "cluster": cluster_id,
        "topics": {info.name: info.id for info in topics},
        "time": rule.key,
        "committed": committed,
    }


def refuse_compacted(topic: str, policy: str | None) -> None:
    """Raise an error if a topic with this cleanup policy loses records that were read.

    >>> refuse_compacted("orders", "delete")
    >>> refuse_compacted("orders", "compact,delete")
    Traceback (most recent call last):
    floodmark.errors.TopicCompacted: The topic 'orders' has the cleanup policy 'compact,delete'. ... [topic-compacted]
    """
    if policy is not None and "compact" in policy.split(","):
        raise TopicCompacted(
            f"The topic {topic!r} has the cleanup policy {policy!r}.",
            rule="Kafka deletes older records of each key of such a topic, also bound ones: a replay would lack them.",
            remedy="Set cleanup.policy=delete for the topic, or compacted='accept' if results may differ in a replay.",
            topic=topic,
            policy=policy,
        )


def _cleanup_policy(cluster: "KafkaCluster", topic: str) -> str | None:
    """Return the cleanup policy of a topic; None if the user may not read it."""
    try:
        return cluster.topic_setting(topic, "cleanup.policy")
    except KafkaRefused as error:
        _LOG.warning("The cleanup policy of the topic %r is unknown, a replay may lack records: %s", topic, error)
        return None


def register_topics(
    bindings: Bindings, source: str, identity: JsonValue, settings: Mapping[str, Duration | None] | None = None
) -> None:
    """Register topics as a source, or raise an error if other topics are registered under its id."""
    try:
        bindings.register(source, kind="kafka", identity=identity, **(settings or {}))
    except SourceRecreated:
        stored = bindings.source(source).identity
        if not isinstance(stored, dict) or stored.get("topics", {}).keys() != identity["topics"].keys():
            raise
        if stored["cluster"] == identity["cluster"] and stored["topics"] != identity["topics"]:
            names = [name for name, topic_id in identity["topics"].items() if stored["topics"][name] != topic_id]
            raise TopicRecreated(
                f"The topic {names[0]!r} was deleted and created again since {source!r} was bound.",
                rule="Bound offsets refer to records of the old topic.",
                remedy="Read the new topic under another source id with a new checkpoint, or drop the source.",
                source=source,
                topic=names[0],
            ) from None
        for name, option in (("time", "timestampColumn"), ("committed", "kafka.isolation.level")):
            before, now = stored.get(name), identity[name]
            if before != now:
                raise InvalidOption(
                    f"The source {source!r} was bound with {name} = {before!r}, and now it is {now!r}.",
                    rule="All readers of a source share its bindings, so they must use the same options.",
                    remedy=f"Set another source id, or the same {option} as before.",
                    option=option,
                    source=source,
                ) from None
        raise
