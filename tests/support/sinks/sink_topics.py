"""What is in the topics of a sink, and whether it is what was to be written."""

import json
import time
from collections import Counter
from itertools import pairwise
from typing import Any

from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings, MarkRecord
from floodmark.sinks import TS_HEADER, Progress
from support.waiting import wait_until


class Topics:
    """Reads a topic, its progress topic and its marks topic."""

    def __init__(self, servers: str, topic: str, sink: str = "K") -> None:
        self.settings = KafkaSettings.of(servers)
        self.cluster = KafkaCluster(self.settings)
        self.topic = topic
        self.sink = sink

    def records(self, topic: str, *, committed: bool) -> list[Any]:
        found = self.cluster.find_topic(topic)
        if found is None:
            return []
        fetcher = Fetcher(self.settings, committed=committed)
        parts = range(found.partitions)
        give_up = time.monotonic() + 1.5
        # What is committed is seen a moment later; what is open stays so.
        while committed and time.monotonic() < give_up:
            if self.cluster.ends(topic, parts) == self.cluster.ends(topic, parts, committed=False):
                break
            time.sleep(0.02)
        starts, ends = self.cluster.starts(topic, parts), self.cluster.ends(topic, parts, committed=committed)
        try:
            return [
                record
                for part in parts
                for piece in fetcher.read(topic, part, starts[part], ends[part])
                for record in piece
            ]
        finally:
            fetcher.close()

    def rows(self, *, committed: bool = True) -> list[tuple[int, int, int]]:
        """Return (partition, ts, number) of the rows, in the order of the log; a row without headers has the ts 0."""
        return [
            (record.partition(), int(dict(record.headers() or [(TS_HEADER, 0)])[TS_HEADER]), int(record.value()))
            for record in self.records(self.topic, committed=committed)
        ]

    def numbers(self) -> list[int]:
        return sorted(number for _, _, number in self.rows())

    @property
    def raw(self) -> int:
        return len(self.rows(committed=False))

    def progress(self) -> list[Progress]:
        found = self.records(f"{self.topic}.progress", committed=True)
        return [Progress.load(record.value()) for record in found if record.key() == self.sink.encode()]

    def marks(self) -> list[MarkRecord]:
        return [MarkRecord.load(record.value()) for record in self.records(f"{self.topic}.marks", committed=True)]

    def wait_until_decided(self, seconds: float = 30) -> None:
        """Wait until no transaction is open: until then readers do not see the end."""
        parts = range(self.cluster.topic(self.topic).partitions)
        wait_until(
            lambda: self.cluster.ends(self.topic, parts) == self.cluster.ends(self.topic, parts, committed=False),
            seconds,
        )

    def check(self, rows: int) -> None:
        """See that the first so many numbers are there, each once, in order, and that the records agree."""
        self.wait_until_decided()
        found = self.rows()
        assert Counter(number for _, _, number in found) == Counter(range(rows))
        for one, other in pairwise(found):
            assert one[0] != other[0] or one[1] <= other[1], "timestamps rise in each partition"
        told = self.progress()
        if not rows:
            assert told == []
            return
        newest = told[-1]
        assert max(ts for _, ts, _ in found) <= (newest.ends["S"].ts or 0), "nothing lies beyond the frontier"
        assert (newest.total, sum(one.rows for one in told)) == (rows, rows)
        assert all((one.ends["S"].ts or 0) < (other.ends["S"].ts or 0) for one, other in pairwise(told))
        counts = Counter(ts for _, ts, _ in found)
        assert counts in ({one.ends["S"].ts: one.rows for one in told}, {0: rows})
        marks = self.marks()
        assert [mark.seq for mark in marks] == list(range(1, len(told) + 1))
        assert [mark.lower for mark in marks] == [100 * number for number in range(1, len(told) + 1)]
        for mark, record in zip(marks, told, strict=True):
            assert json.loads(json.dumps(mark.cut)) == {str(part): end for part, end in record.position.items()}
