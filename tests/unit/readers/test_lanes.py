"""Lanes: events of one segment in pieces, also where a log leaves numbers out; and readers that shed what lags."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from floodmark.streams import Chunk, StreamHome
from floodmark.streams.marks.log import MarksLog
from floodmark.streams.marks.windows import MovingWindow
from floodmark.streams.readers.reader import SegmentCursor
from support.streams.group_tools import NOW, settle


class GappyLog:
    """A log whose events have the offsets 0 to 4 and 7 to 9; 5, 6, and those from 10 on, are left out."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def read(self, stream: Any, segment: int, start: int, end: int) -> Iterator[Chunk]:
        self.asked.append((start, end))
        for first, last in ((0, 5), (7, 10)):
            rows = pa.record_batch({"n": list(range(first, last))})
            chunk = Chunk(segment, first, rows).slice(start, end)
            if chunk.batch.num_rows:
                yield chunk


def read(lane: SegmentCursor, log: Any, most: int = 100) -> list[tuple[int, list[int]]]:
    found = []
    while (chunk := lane.next(log, None, most)) is not None:  # type: ignore[arg-type]
        found.append((chunk.first, chunk.batch["n"].to_pylist()))
    return found


def lane() -> SegmentCursor:
    return SegmentCursor(("s", 0), 0, MovingWindow(MarksLog()))


def test_a_lane_reads_what_is_there_in_pieces_and_over_gaps() -> None:
    log, one = GappyLog(), lane()
    assert (one.is_caught_up, read(one, log)) == (True, [])
    one.extend(12)
    assert read(one, log, most=2) == [(0, [0, 1]), (2, [2, 3]), (4, [4]), (7, [7, 8]), (9, [9])]
    assert (one.offset, one.acked, one.is_caught_up) == (12, 0, True)
    assert one.acknowledge()
    assert (one.acked, one.acknowledge()) == (12, False)
    assert log.asked == [(0, 12)], "one iterator is kept open"
    one.extend(9)
    assert one.end == 12, "an end never goes back"


def test_a_lane_stops_where_the_group_ends() -> None:
    log, one = GappyLog(), lane()
    one.extend(12)
    one.stop = 3
    assert read(one, log) == [(0, [0, 1, 2])]
    assert one.is_caught_up


def test_a_reader_that_lags_in_time_sheds_segments(live: StreamHome) -> None:
    stream = live.create_stream("s", segments=4, unit="s")
    group = live.create_group("g", "s")
    keys = {stream.layout.route(key).id: key for key in map(str, range(99))}
    with stream.writer("w") as writer, group.reader("a", max_rows=1) as a, group.reader("b", max_rows=1) as b:
        settle(a, b)
        slow = set(a.segments)
        assert len(slow) == 2
        for time in range(1, 9):
            for segment in range(4):
                writer.write(time, key=keys[segment])
            writer.note_time(time * 60)
            stream.await_mark(time * 60)
        while b.read(NOW) is not None:
            pass
        b.acknowledge()
        settle(b, a)
        assert [len(slow.intersection(reader.segments)) for reader in (a, b)] == [1, 1]
        assert [len(reader.segments) for reader in (a, b)] == [2, 2]
        part = group.state.progress_of("s")
        assert {part.times.get(segment) for segment in range(4)} == {None, 480}
