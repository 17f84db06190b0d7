"""What the batches of a query have told of its origins, taken together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from floodmark._util.codec import JsonValue
from floodmark.control import Observation


@dataclass(slots=True)
class Told:
    """Per origin, when a batch last had rows of it, and its late rows; over all, future rows, and what Spark dropped.

    >>> batch = Observation("a1", seq=4, batch_id=7, statistics={"newest": {"p0": 90}, "late_rows": {"p0": 2}}, at=120)
    >>> told = Told.of([batch])
    >>> told.last_heard, told.late_rows, told.since_batch
    ({'p0': 120}, {'p0': 2}, 7)
    """

    since_batch: int | None = None
    last_heard: dict[str, int] = field(default_factory=dict)
    late_rows: dict[str, int] = field(default_factory=dict)
    oldest_late: dict[str, int] = field(default_factory=dict)
    future_rows: int = 0
    newest_future: int | None = None
    spark_dropped: int = 0

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> "Told":
        """Take all observations together. Statistics of another form say nothing."""
        told = cls()
        for observation in observations:
            if isinstance(observation.statistics, Mapping):
                told._take(observation.statistics, observation.batch_id, observation.at)
        return told

    def _take(self, statistics: Mapping[str, JsonValue], batch_id: int, at: int) -> None:
        self.since_batch = batch_id if self.since_batch is None else min(self.since_batch, batch_id)
        for origin, _ in _numbers(statistics.get("newest")):
            self.last_heard[origin] = max(at, self.last_heard.get(origin, at))
        for origin, late in _numbers(statistics.get("late_rows")):
            self.late_rows[origin] = late + self.late_rows.get(origin, 0)
        for origin, time in _numbers(statistics.get("oldest_late")):
            self.oldest_late[origin] = min(time, self.oldest_late.get(origin, time))
        if isinstance(rows := statistics.get("future_rows"), int):
            self.future_rows += rows
        if isinstance(dropped := statistics.get("spark_dropped"), int):
            self.spark_dropped += dropped
        if isinstance(newest := statistics.get("newest_future"), int):
            self.newest_future = newest if self.newest_future is None else max(newest, self.newest_future)


def _numbers(by_origin: JsonValue) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a mapping from origins."""
    if isinstance(by_origin, Mapping):
        yield from ((origin, number) for origin, number in by_origin.items() if isinstance(number, int))
