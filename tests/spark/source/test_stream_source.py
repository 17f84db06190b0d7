"""A stream in Spark: what each row says of itself, where batches end, and what a query begins and ends with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable

from floodmark.bindings import BoundStream, SourceOffset
from floodmark.bindings.coordination import AlignedReaders
from floodmark.control import Home
from floodmark.errors import (
    FloodmarkError,
    HomeBusy,
    HomeMissing,
    HomeOutOfReach,
    HomeUnusable,
    InvalidOption,
    UnknownColumn,
    UnknownKey,
    UnknownStream,
    UnsupportedFrame,
)
from floodmark.spark.source import bound_reader as _bound_reader
from floodmark.spark.source.bound_reader import QueryHold, ReadTask
from floodmark.spark.source.stream_reader import StreamReader, read_stream_task
from floodmark.spark.source.stream_settings import StreamReadSettings
from support.spark.stream_feed import BASE, SECOND, StreamFeed, after_base


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[StreamFeed]:
    feed = StreamFeed(spark, tmp_path)
    yield feed
    feed.close()


def stamps(frame: DataFrame) -> DataFrame:
    return frame.select("id", F.col("_w.t").alias("w"))


def windows(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("t", "10 seconds")).count().select("window.start", "count")


def counted(rows: list[tuple[Any, ...]]) -> dict[int, int]:
    return {after_base(start): count for start, count in sorted(rows)}


def test_a_row_is_stamped_with_the_watermark_before_its_timestamp(orders: StreamFeed) -> None:
    orders.play([[1], 10, None, [11, 12], None, 20, None, [21]])
    found = {row: after_base(w) for row, w in orders.collect(stamps(orders.read()))}
    assert found == {0: None, 1: 10, 2: 10, 3: 20}


def test_a_row_tells_where_it_lies(orders: StreamFeed) -> None:
    orders.play([[1, 2, 3], 10, None])
    rows = orders.collect(orders.read().select("id", "_segment", "_offset", F.unix_micros("_ts").alias("ts")))
    history = orders.bound.history()
    for _, segment, offset, ts in rows:
        assert ts == history.ts_of(segment, offset)
    assert {(segment, offset) for _, segment, offset, _ in rows} == {
        (segment, offset) for segment, end in orders.stream.ends().items() for offset in range(end)
    }


def test_windows_close_on_the_marks_of_the_writers(orders: StreamFeed) -> None:
    orders.play([[1, 2], 5, None, [11, 25], 20, None])
    assert counted(orders.collect(windows(orders.read(operators="windows")))) == {0: 2, 10: 1}


def test_a_mark_alone_closes_a_window(orders: StreamFeed) -> None:
    orders.play([[1, 2], None])
    frame = windows(orders.read(operators="windows"))
    assert orders.collect(frame, "checkpoint") == []
    orders.play([10, None])
    assert counted(orders.collect(frame, "checkpoint")) == {0: 2}


def test_a_query_without_a_timestamp_of_its_own_waits_for_the_tick(orders: StreamFeed) -> None:
    orders.play([[1], None])
    orders.write(2)
    before = orders.bound.tick()
    assert sum(before.ends.values()) == 1
    orders.clock.advance(SECOND)
    assert sum(orders.bound.tick().ends.values()) == 2


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"max_rows": 1}, marks=pytest.mark.long),
        {"max_rows": 3},
        pytest.param({"max_bytes": 1}, marks=pytest.mark.long),
        {"max_event_time": "10 seconds"},
    ],
)
def test_limits_cut_the_stream_into_batches_and_lose_nothing(orders: StreamFeed, limit: dict[str, Any]) -> None:
    orders.play([[1, 2, 3], 10, None, [11, 12], 20, None, [21], 30, None, [31], None])
    frame = orders.read(**limit)
    assert sorted(row for row, *_ in orders.collect(frame)) == list(range(7))


def test_a_batch_moves_on_in_time_no_further_than_it_may(orders: StreamFeed, tmp_path: Path) -> None:
    orders.play([step for hour in range(6) for step in ([hour * 10 + 1], hour * 10 + 10, None)])
    frame = orders.read(max_event_time="20 seconds")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [4, 3, 2]


def test_the_past_of_a_stream_is_bound_along_its_marks(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, tmp_path)
    feed.play([[1], 10, [11], 20, [21], 30])
    found = {row: after_base(w) for row, w in feed.collect(stamps(feed.read()))}
    assert found == {0: None, 1: 10, 2: 20}
    feed.close()


def test_segments_that_are_split_and_merged_in_the_middle_of_a_query_lose_nothing(orders: StreamFeed) -> None:
    frame = windows(orders.read(operators="windows", max_rows=4))
    orders.play([[1, 2, 3, 4], 10, None])
    first = orders.collect(frame, "checkpoint")
    orders.stream.split(0)
    orders.play([[11, 12, 13, 14], 20])
    orders.stream.merge([segment.id for segment in orders.stream.layout.current])
    orders.play([[21, 22, 23], 30, None])
    rest = orders.collect(frame, "checkpoint")
    assert counted(first + rest) == {0: 4, 10: 4, 20: 3}


def test_reading_from_a_time_to_a_time_gives_the_rows_between(orders: StreamFeed) -> None:
    orders.play([[1, 5], 10, None, [3, 11, 15], 20, None, [25], 30, None])
    frame = orders.read(start=BASE + 5 * SECOND, end=BASE + 15 * SECOND)
    assert sorted(after_base(t) for _, t, *_ in orders.collect(frame)) == [5, 11]


def test_a_row_of_just_the_starting_time_before_a_mark_of_that_time_is_read(orders: StreamFeed) -> None:
    orders.play([[1, 10], 10, None, [12], 20, None])
    frame = orders.read(start=BASE + 10 * SECOND)
    assert sorted(after_base(t) for _, t, *_ in orders.collect(frame)) == [10, 12]


def test_reading_from_a_cut_to_a_cut_gives_what_lies_between(orders: StreamFeed) -> None:
    orders.play([[1, 2], None])
    start = orders.stream.tail()
    orders.play([[3, 4, 5], None])
    end = orders.stream.tail()
    orders.play([[6], None])
    assert sorted(row for row, *_ in orders.collect(orders.read(start=start, end=end))) == [2, 3, 4]


def test_an_end_that_time_has_not_come_to_is_waited_for(orders: StreamFeed) -> None:
    orders.play([[1], 5, None])
    frame = orders.read(end=BASE + 10 * SECOND)
    assert len(orders.collect(frame, "checkpoint")) == 1
    orders.play([[7, 12], 20, None, [8, 21], None])
    assert [after_base(t) for _, t, *_ in orders.collect(frame, "checkpoint")] == [7]


def test_a_snapshot_is_the_same_whenever_it_is_read(orders: StreamFeed, spark: SparkSession) -> None:
    orders.play([[1, 2], 10, None])
    as_of = orders.bound.history().upper - 1
    orders.play([[3], None])

    def ids(**options: Any) -> list[int]:
        read = spark.read.format("floodmark").option("stream", "orders").option("home", str(orders.path / "home"))
        return sorted(row.id for row in read.options(**options).load().collect())

    assert ids(asOf=as_of) == [0, 1]
    assert ids() == [0, 1, 2]
    orders.write(4)
    assert ids(asOf=as_of) == [0, 1]
    assert ids() == [0, 1, 2, 3]
    assert ids(startingTime=BASE + 2 * SECOND) == [1, 2, 3]
    with pytest.raises(Exception, match=r"is not in \["):
        ids(asOf=orders.bound.history().upper + 1)
    with pytest.raises(Exception, match=r"is not in \["):
        ids(asOf=5)


def test_two_queries_see_the_same_rows_at_the_same_times(orders: StreamFeed) -> None:
    columns = ("id", "_segment", "_offset", "_ts", "_w")
    orders.play([[1, 2], 10, None, [3, 11], None])
    one = orders.collect(orders.read(max_rows=1).select(*columns))
    orders.play([[12], 20, None, [13], None])
    two = orders.collect(orders.read().select(*columns))
    assert sorted(row for row in two if row[0] < 4) == sorted(one)


REFUSED: dict[str, tuple[dict[str, Any], type[FloodmarkError]]] = {
    "unknown stream": ({"stream": "order"}, UnknownStream),
    "unknown key": ({"key": "x"}, UnknownKey),
    "unknown way with late rows": ({"late": "drop"}, InvalidOption),
    "unknown operators": ({"operators": "joins"}, InvalidOption),
    "no home": ({"home": "nowhere"}, HomeMissing),
    "a tick that is too short": ({"tick": "1 millisecond"}, InvalidOption),
    "no window": ({"compaction_window": "for ever"}, InvalidOption),
}


@pytest.mark.parametrize(("options", "error"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_at_once(orders: StreamFeed, options: dict[str, Any], error: type[Exception]) -> None:
    import floodmark as fm

    given = {"stream": "orders", "home": orders.path / "home", **options}
    with pytest.raises(error):
        fm.read_stream(orders.spark, **given)


FORMAT_REFUSED = {
    "unknown option": ({"maxRows": "5"}, "There is no option"),
    "no stream": ({"stream": ""}, "The option stream is missing"),
    "limit of 0": ({"maxRowsPerTrigger": "0"}, "It must be a whole number above 0"),
    "two starts": ({"startingTime": "1", "startingCut": "{}"}, "Both startingTime and startingCut"),
    "unknown stream": ({"stream": "order"}, "There is no stream 'order'"),
}


@pytest.mark.parametrize(("options", "text"), FORMAT_REFUSED.values(), ids=FORMAT_REFUSED)
def test_bad_options_of_the_format_are_refused(orders: StreamFeed, options: dict[str, str], text: str) -> None:
    given = {"stream": "orders", "home": str(orders.path / "home"), **options}
    with pytest.raises(Exception, match=text):
        orders.spark.readStream.format("floodmark").options(**given).load()


def test_settings_of_the_source_are_those_of_its_first_query(orders: StreamFeed) -> None:
    orders.play([[1], 10, None])
    orders.collect(orders.read(source="own", tick="2 seconds", compaction_window=None))
    own = orders.bound.bindings.source("own")
    assert (own.tick, own.compaction_window) == (2 * SECOND, None)
    assert orders.bound.bindings.source("orders").compaction_window == 7 * 86_400 * SECOND
    orders.collect(orders.read(source="own"))
    with pytest.raises(Exception, match="All readers of a source share its settings"):
        orders.collect(orders.read(source="own", compaction_window="1 day"))


def test_a_schema_that_is_not_that_of_the_stream_is_refused(orders: StreamFeed) -> None:
    read = orders.spark.read.format("floodmark").schema("id STRING").option("stream", "orders")
    with pytest.raises(Exception, match="the schema is that of the stream"):
        read.option("home", str(orders.path / "home")).load().collect()


def test_a_stream_without_a_time_column_has_no_event_time(orders: StreamFeed) -> None:
    import floodmark as fm

    orders.home.create_stream("plain")
    with pytest.raises(UnsupportedFrame):
        fm.read_stream(orders.spark, "plain", home=orders.path / "home")
    with orders.home.stream("plain").writer() as writer:
        writer.write({"paid": 7}, key="k")
    read = orders.spark.read.format("floodmark").option("stream", "plain").option("home", str(orders.path / "home"))
    assert [(bytes(row.key), bytes(row.payload)) for row in read.load().collect()] == [(b"k", b'{"paid":7}')]


def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(orders: StreamFeed) -> None:
    orders.play([[1], None])
    frame = orders.read()
    orders.collect(frame, "checkpoint")
    orders.home.delete_stream("orders")
    orders.home.create_stream("orders", "id BIGINT, t TIMESTAMP, item STRING", time_columns="t")
    with pytest.raises(Exception, match="source-recreated"):
        orders.collect(frame, "checkpoint")
    orders.home.create_stream("other")


def test_a_query_holds_the_timestamps_that_it_may_ask_for_again(orders: StreamFeed) -> None:
    orders.play([[1], None, [2], None])
    orders.collect(orders.read(), "checkpoint")
    (hold,) = orders.bound.bindings.holds("orders")
    assert (hold.kind, hold.ts) == ("query", orders.bound.history().since)


def test_a_hold_follows_the_oldest_batch_that_spark_keeps_and_comes_back_if_it_was_released(orders: StreamFeed) -> None:
    orders.play([[1], None, [2], None, [3], None])
    history, bindings = orders.bound.history(), orders.bound.bindings
    hold = QueryHold(orders.bound)
    hold.take(history, SourceOffset("q", None, {}), now=0)
    assert [(one.holder, one.ts) for one in bindings.holds("orders")] == [("q", history.origin)]
    for number in range(102):
        hold.commit(history.origin + number, now=0)
    assert [one.ts for one in bindings.holds("orders")] == [history.origin + 1]
    bindings.release("orders", "q")
    hold.take(history, SourceOffset("q", history.origin, {}), now=5)
    assert bindings.holds("orders") == (), "it was heard a moment ago"
    hold.take(history, SourceOffset("q", history.origin, {}), now=11)
    assert [one.ts for one in bindings.holds("orders")] == [history.origin + 1]
    again = QueryHold(orders.bound)
    again.take(history, SourceOffset("q", history.upper - 1, {}), now=0)
    assert [one.ts for one in bindings.holds("orders")] == [history.origin + 1]


def test_a_query_that_goes_on_below_what_was_compacted_says_so(
    orders: StreamFeed, caplog: pytest.LogCaptureFixture
) -> None:
    orders.play([[1], None, [2], None, [3], None])
    bindings, start = orders.bound.bindings, orders.bound.history().origin
    bindings.alter("orders", compaction_window="0 seconds")
    bindings.compact("orders")
    QueryHold(orders.bound).take(orders.bound.history(), SourceOffset("q", start, {}), now=0)
    assert "have no watermark" in caplog.text


def test_queries_that_are_aligned_wait_for_the_slowest(spark: SparkSession, tmp_path: Path) -> None:
    fast = StreamFeed(spark, tmp_path / "fast")
    # The reader of the query goes by the real clock.
    together = AlignedReaders(Home.open_existing(tmp_path / "fast" / "home"), "together")
    fast.play([step for n in range(1, 6) for step in ([n * 10], n * 10, None)])
    together.report("the slow one", BASE + 20 * SECOND, is_caught_up=False)
    frame = fast.read(align="together", max_ahead="5 seconds", max_event_time="1 second")
    seen: list[int] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        query.processAllAvailable()
        # It has come to the time 30, more than 5 seconds ahead of 20, and waits there.
        assert sorted(seen) == [0, 1, 2]
        together.report("the slow one", BASE + 60 * SECOND, is_caught_up=False)
        query.processAllAvailable()
        assert sorted(seen) == [0, 1, 2, 3, 4]
    finally:
        query.stop()
        fast.close()


def test_a_task_that_cannot_see_the_home_says_what_to_do(orders: StreamFeed, tmp_path: Path) -> None:
    with pytest.raises(HomeOutOfReach, match="PostgreSQL and the events in Kafka"):
        list(read_stream_task(str(tmp_path / "elsewhere"), StreamReadSettings("orders"), ReadTask(())))


def test_a_home_that_is_away_for_a_moment_is_waited_for(orders: StreamFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.play([[1], None])
    reader = StreamReader(StreamReadSettings("orders"), str(orders.path / "home"))
    start = reader.initialOffset()
    away = iter([HomeBusy("Busy.", rule="So.", remedy="Wait."), HomeUnusable("Away.", rule="So.", remedy="Wait.")])
    tick = BoundStream.tick

    def once_away(bound: BoundStream, **how: Any) -> Any:
        for error in away:
            raise error
        return tick(bound, **how)

    monkeypatch.setattr(BoundStream, "tick", once_away)
    assert sum(reader.latestOffset(start, ReadAllAvailable())["cut"].values()) == 1
    monkeypatch.setattr(_bound_reader, "_RETRY_SECONDS", 0.1)
    reader._next_tick_at = 0.0
    away = iter(lambda: HomeUnusable("Away.", rule="So.", remedy="Wait."), None)
    with pytest.raises(HomeUnusable):
        reader.latestOffset(start, ReadAllAvailable())


def test_only_the_columns_that_are_asked_for_are_read_and_the_event_time(orders: StreamFeed) -> None:
    orders.play([[1, 2], 10, None, [5, 11], 20, None])
    assert orders.read(columns=["item"]).columns == ["item", "t"]
    assert orders.read(columns=["t", "_ts"], late="strict").columns == ["t", "_ts"]
    rows = orders.read(columns=["id"], late="strict", operators="windows")
    assert counted(orders.collect(windows(rows))) == {0: 2, 10: 1}
    with pytest.raises(UnknownColumn, match="has no column 'idd'"):
        orders.read(columns=["idd"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "id"}, r"columns=\['id'\]"),
        ({"max_rows": 0}, "max_rows is '0'"),
        ({"max_bytes": 1.5}, "max_bytes is '1.5'"),
        ({"max_event_time": "soon"}, "max_event_time is 'soon'"),
    ],
)
def test_read_stream_refuses_wrong_options_itself_and_by_their_python_names(
    orders: StreamFeed, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        orders.read(**options)


def test_a_query_sees_added_columns_when_it_is_started_again_from_its_checkpoint(orders: StreamFeed) -> None:
    orders.play([[1], 10, None])
    before = orders.read()
    assert orders.collect(before.select("id", "item"), "same") == [(0, "tea")]
    orders.stream.alter(schema=f"{orders.stream.settings.ddl}, note STRING")
    orders.play([[11], None])
    # A DataFrame that was made before reads the columns that it was planned with.
    assert orders.collect(before.select("id", "item"), "same") == [(1, "tea")]
    orders.play([[12], None])
    with orders.stream.writer() as writer:
        writer.write({"id": 7, "item": "mug", "note": "blue"})
    orders.bind()
    again = orders.read().select("id", "item", "note")
    assert sorted(orders.collect(again, "same")) == [(2, "tea", None), (7, "mug", "blue")]
    snapshot = orders.spark.read.format("floodmark").options(stream="orders", home=str(orders.path / "home")).load()
    assert sorted(tuple(row) for row in snapshot.select("id", "note").collect()) == [
        (0, None),
        (1, None),
        (2, None),
        (7, "blue"),
    ]


def remove_old(orders: StreamFeed) -> None:
    """Let retention remove what is due."""
    orders.stream.alter(retention="1 minute")
    orders.clock.advance(3600 * SECOND)
    orders.home.local.table_retention.remove(orders.stream.info)


def test_retention_keeps_what_a_query_may_read_again_and_a_new_query_starts_at_the_head(orders: StreamFeed) -> None:
    orders.play([[1], None, [2], None])
    rows = orders.read().select("id")
    assert sorted(orders.collect(rows, "kept")) == [(0,), (1,)]
    remove_old(orders)
    # The query holds its timestamps: it may be rolled back to them.
    assert not any(orders.stream.starts().values())
    assert {claim.kind for claim in orders.stream.retention().waits_for} == {"query"}
    (hold,) = orders.bound.bindings.holds("orders")
    orders.bound.bindings.release("orders", hold.holder)
    remove_old(orders)
    assert sum(orders.stream.starts().values()) == 2
    # It had read everything, so nothing is lost to it; a new query starts at the head.
    orders.play([[3], None])
    assert orders.collect(rows, "kept") == [(2,)]
    assert orders.collect(orders.read().select("id"), "new") == [(2,)]


def test_a_query_that_continues_at_removed_events_fails(orders: StreamFeed) -> None:
    orders.play([[1], None])
    rows = orders.read().select("id")
    assert orders.collect(rows, "behind") == [(0,)]
    orders.play([[2, 3, 4], None])
    (hold,) = orders.bound.bindings.holds("orders")
    orders.bound.bindings.release("orders", hold.holder)
    remove_old(orders)
    orders.play([[5], None])
    with pytest.raises(Exception, match="events-removed"):
        orders.collect(rows, "behind")
    assert orders.collect(orders.read().select("id"), "new") == [(4,)]
