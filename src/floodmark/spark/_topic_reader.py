"""Topics as Spark reads them: while they grow, or as they were at one moment."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader

from floodmark._util.times import time_in_unit
from floodmark.bindings import BindingHistory, BoundTopics, SourceOffset
from floodmark.bindings.offsets import BatchLimits, BoundRange, bound_ranges, next_offset, offset_at_cut
from floodmark.kafka import KafkaCluster
from floodmark.spark._bound_reader import BoundReader, parts_of
from floodmark.spark._stream_rows import Mark, open_home
from floodmark.spark._stream_settings import time_from
from floodmark.spark._topic_rows import TopicPart, read_topic_part
from floodmark.spark._topic_settings import TopicSettings


def open_topics(settings: TopicSettings, location: str, *, patience: float) -> BoundTopics:
    """Return the topics of these settings as a source of the home at a place."""
    return BoundTopics(
        open_home(location).home,
        KafkaCluster(settings.kafka, patience=patience),
        settings.topics,
        source=settings.source,
        rule=settings.rule,
        marks=settings.marks,
        marks_key=settings.marks_key,
        committed=settings.committed,
    )


class TopicReader(BoundReader[BoundTopics, TopicSettings]):
    """Reads topics as they grow."""

    look_seconds = BoundTopics.look_seconds

    def read(self, partition: TopicPart) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_topic_part(self._location, self._settings, partition)

    def _open(self) -> BoundTopics:
        # Brokers that are away are waited for around this, as a home is.
        return open_topics(self._settings, self._location, patience=0)

    def _first(self, bound: BoundTopics) -> Mapping[int, int] | None:
        first = bound.place(self._settings.starting_offsets)
        bound.skip_to(first)
        return first if any(first.values()) else None

    def _time_key(self, bound: BoundTopics) -> tuple[str, str]:
        return self._settings.time_key, "us"

    def _last_word(self, bound: BoundTopics) -> BindingHistory | None:
        return bound.tick_time()

    def _parts(self, bound: BoundTopics, ranges: Sequence[BoundRange], mark: Mark | None) -> Sequence[TopicPart]:
        return topic_parts(bound, self._settings, ranges, mark)

    def _patience(self) -> float:
        return self._settings.patience / 1e6


class TopicSnapshotReader(DataSourceReader):
    """Reads what was bound at a timestamp, by default now, and is still there: the same rows whenever it is asked."""

    def __init__(self, settings: TopicSettings, location: str) -> None:
        self._settings = settings
        self._location = location

    def partitions(self) -> Sequence[TopicPart]:
        """Return what the tasks read."""
        settings = self._settings
        bound = open_topics(settings, self._location, patience=settings.patience / 1e6)
        if settings.as_of is None:
            history, until = bound.tick(at_once=True), None
        else:
            history = bound.history()
            until = history.check_valid(time_in_unit(time_from(settings.as_of, "asOf"), "us"))
        start = offset_at_cut(history, "", bound.place(settings.starting_offsets))
        end = None if settings.ending_offsets == "latest" else bound.place(settings.ending_offsets, "endingOffsets")
        if history.upper > history.origin:
            last = next_offset(history, start, BatchLimits(until=until, end=end))
        else:
            last = SourceOffset("", None, {})
        parts = topic_parts(bound, settings, bound_ranges(history, start, last), None)
        return parts or [TopicPart((), bound.source)]

    def read(self, partition: TopicPart) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_topic_part(self._location, self._settings, partition)


def topic_parts(
    bound: BoundTopics, settings: TopicSettings, ranges: Sequence[BoundRange], mark: Mark | None
) -> list[TopicPart]:
    """Return ranges as tasks."""
    parts = parts_of(ranges, settings.rows_per_task, None, mark)
    return [TopicPart(part.ranges, bound.source, part.mark) for part in parts]
