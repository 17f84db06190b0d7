"""Rows behind the watermark: dropped, counted, refused or kept apart."""

import itertools
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from floodmark.control import Home, Queries, WatermarkSteps
from floodmark.errors import InvalidOption, NoLateRows
from floodmark.spark import late, with_watermark
from floodmark.spark.watermark.late import query_directory, remove_old_late_rows
from floodmark.testing import PostgresServer
from support.spark.watermark_feed import BASE, Count, Counting, Orders
from support.waiting import wait_until

SECOND = 1_000_000


def watermarked(orders: Orders, home: Path | str, **options: Any) -> Any:
    return with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home, **options)


def feed_late_rows(orders: Orders, query: Counting) -> None:
    """Bring the watermark to 31, then rows before, at and after it; then to 52."""
    orders.add((1, "a"), (2, "b"))
    orders.add((31, "a"), (35, "b"))
    query.wait_for([(0, 2)])
    orders.add((5, "a"), (30, "b"), (31, "b"), (9, "b"), (36, "a"))


def statistics_of(query: Counting, home: Path) -> list[dict[str, Any]]:
    assert query.query is not None
    with Home.open_existing(home) as kept:
        record = Queries(kept).find(str(query.query.id))
        [(incarnation, _, _)] = record.incarnations
        step = WatermarkSteps(kept).newest(incarnation)
        assert step is not None
        names = step.snapshot["names"]
        told = [one.statistics for one in WatermarkSteps(kept).observations(incarnation)]
    return [
        {
            key: {names.get(origin, origin): number for origin, number in one[key].items()}
            for key in ("late_rows", "oldest_late")
        }
        for one in told
        if one["late_rows"]
    ]


def test_late_rows_are_counted_exactly_by_origin_with_the_oldest(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(watermarked(orders, home, late="count"))
    feed_late_rows(orders, query)
    [told] = wait_until(lambda: statistics_of(query, home))
    # b's row at exactly the watermark is on time, and its row at 30 is late though its window is open.
    assert told == {
        "late_rows": {"a": 1, "b": 2},
        "oldest_late": {"a": (BASE + 5) * SECOND, "b": (BASE + 9) * SECOND},
    }
    orders.add((52, "a"), (60, "b"))
    query.wait_for([(0, 2), (30, 5)])


def test_a_late_row_makes_the_query_fail_if_it_is_told_so(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(watermarked(orders, home, late="fail"))
    orders.add((1, "a"), (2, "b"))
    orders.add((31, "a"), (35, "b"))
    query.wait_for([(0, 2)])
    orders.add((31, "a"))
    query.wait_for([(0, 2)])
    orders.add((30, "b"))
    assert query.query is not None
    with pytest.raises(Exception, match=r"\[late-row\] A row has 't' .*, the watermark is .*late='fail'"):
        query.query.processAllAvailable()


def test_late_rows_kept_apart_are_a_frame_with_their_watermark_and_lateness(
    spark: SparkSession, orders: Orders, counting: Count, home: Path
) -> None:
    query = counting(watermarked(orders, home, late="route"))
    orders.add((1, "a"), (2, "b"))
    orders.add((31, "a"), (35, "b"))
    query.wait_for([(0, 2)])
    assert query.query is not None
    none_yet = late(query.query)
    assert (none_yet.columns, none_yet.count()) == (["t", "p", "_watermark", "_lateness"], 0)
    orders.add((5, "a"), (30, "b"), (31, "b"), (9, "b"), (36, "a"))
    orders.add((52, "a"), (60, "b"))
    query.wait_for([(0, 2), (30, 4)])
    rows = late(query.query).select((F.unix_seconds("t") - BASE).alias("t"), "p", "_watermark", "_lateness").collect()
    assert sorted((row["t"], row["p"], row["_lateness"]) for row in rows) == [
        (5, "a", timedelta(seconds=26)),
        (9, "b", timedelta(seconds=22)),
        (30, "b", timedelta(seconds=1)),
    ]
    assert {row["_watermark"].timestamp() for row in rows} == {BASE + 31}
    assert late(str(query.query.id), home=home).count() == 3
    modes = {path.stat().st_mode & 0o777 for path in home.rglob("*")}
    assert modes == {0o700, 0o600}, "only the owner of the home reads them"


def test_copied_late_rows_stay_in_the_flow_so_results_are_those_without_copies(
    spark: SparkSession, orders: Orders, counting: Count, home: Path, tmp_path: Path
) -> None:
    query = counting(watermarked(orders, home, late="copy", late_path=tmp_path / "behind"))
    feed_late_rows(orders, query)
    orders.add((52, "a"), (60, "b"))
    # The window from 30 to 40 has all of its five rows: also the one at 30, which is behind the watermark of 31.
    query.wait_for([(0, 2), (30, 5)])
    assert query.query is not None
    rows = late(query.query).select((F.unix_seconds("t") - BASE).alias("t"), "p", "_lateness").collect()
    assert sorted((row["t"], row["p"]) for row in rows) == [(5, "a"), (9, "b"), (30, "b")]
    assert not (home / "late").exists()
    assert list((tmp_path / "behind").iterdir()) == [tmp_path / "behind" / str(query.query.id)]


def test_route_says_once_that_it_takes_rows_of_open_windows_out(
    orders: Orders, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watermarked(orders, home, late="copy")
    assert caplog.messages == []
    watermarked(orders, home, late="route")
    [message] = caplog.messages
    assert "takes every row behind the watermark of 't' out" in message
    assert "late='copy' keeps them" in message


def test_late_rows_of_a_home_in_postgresql_need_a_directory(
    orders: Orders, counting: Count, postgres: PostgresServer, tmp_path: Path
) -> None:
    home = postgres.new_database()
    for choice in ("copy", "route"):
        with pytest.raises(InvalidOption, match="Pass as late_path= a directory"):
            watermarked(orders, home, late=choice)
    query = counting(watermarked(orders, home, late="copy", late_path=tmp_path / "late"))
    for seconds in (31, 32, 33):
        orders.add((seconds, "a"))
    orders.add((5, "a"), (34, "a"))
    orders.add((41, "a"))
    query.wait_for([(30, 4)])
    assert query.query is not None
    assert late(query.query).count() == 1
    query.stop()
    assert late(str(query.query.id), home=home).count() == 1


def test_a_restarted_query_judges_by_the_watermark_it_had(
    spark: SparkSession, orders: Orders, counting: Count, home: Path
) -> None:
    first = counting(watermarked(orders, home, late="route"))
    orders.add((1, "a"), (2, "b"))
    orders.add((31, "a"), (35, "b"))
    first.wait_for([(0, 2)])
    first.stop()
    orders.add((7, "a"), (40, "b"))
    second = counting(watermarked(orders, home, late="route"))
    second.wait_for([])
    assert second.query is not None
    [row] = late(second.query).select((F.unix_seconds("t") - BASE).alias("t")).collect()
    assert row["t"] == 7


def test_values_of_all_kinds_come_back_as_they_were(
    spark: SparkSession, orders: Orders, counting: Count, home: Path
) -> None:
    frame = orders.frame().selectExpr(
        "t", "p", "cast(1.10 as decimal(20, 4)) d", "double('NaN') n", "X'00FF' b", "array(1, null) a",
        "map('k', struct(t as inner_t)) m", "timestamp_ntz'2026-01-02 03:04:05.678901' z",
        "date'2026-01-02' `odd name`",
    )  # fmt: skip
    expected = frame.dtypes
    query = counting(with_watermark(frame, "t", operators="windows", late="route", home=home))
    orders.add((31, "a"))
    orders.add((32, "a"))
    orders.add((5, "a"))
    assert query.query is not None
    query.query.processAllAvailable()
    rows = late(query.query)
    assert rows.dtypes[:-2] == expected
    [row] = rows.collect()
    assert (str(row["d"]), row["n"] != row["n"], bytes(row["b"]), row["a"]) == ("1.1000", True, b"\x00\xff", [1, None])
    assert row["m"]["k"]["inner_t"] == row["t"]
    assert str(row["z"]) == "2026-01-02 03:04:05.678901"


def test_a_query_that_keeps_no_late_rows_says_so(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(watermarked(orders, home))
    orders.add((1, "a"))
    assert query.query is not None
    query.query.processAllAvailable()
    query.stop()
    with Home.open_existing(home) as kept:
        wait_until(Queries(kept).all)
    with pytest.raises(NoLateRows, match="no column"):
        late(query.query, home=home)


def test_a_misspelled_choice_is_refused_with_the_nearest_one(orders: Orders, home: Path) -> None:
    with pytest.raises(InvalidOption, match=r"late is 'rout'\. .* Did you mean 'route'\?"):
        watermarked(orders, home, late="rout")
    assert not home.exists()


def test_old_late_rows_are_removed_but_not_those_of_the_current_batch(tmp_path: Path) -> None:
    for batch in (0, 3, 4, 5):
        run = tmp_path / "late" / str(batch) / "run"
        run.mkdir(parents=True)
        (run / "0.parquet").write_bytes(b"rows")
    newest = (tmp_path / "late" / "4" / "run" / "0.parquet").stat().st_mtime
    for batch in (0, 3, 5):
        for path in (tmp_path / "late" / str(batch), *(tmp_path / "late" / str(batch)).rglob("*")):
            os.utime(path, (newest - 100, newest - 100))
    assert remove_old_late_rows(tmp_path / "late", newest - 50, below_batch=5) == [0, 3]
    assert remove_old_late_rows(tmp_path / "late", newest - 50, below_batch=5) == []
    assert sorted(path.name for path in (tmp_path / "late").iterdir()) == ["4", "5"]
    assert remove_old_late_rows(tmp_path / "nothing", newest, below_batch=5) == []


def test_a_query_removes_its_old_late_rows_as_it_goes(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(watermarked(orders, home, late="route", late_retention="2 seconds"))
    feed_late_rows(orders, query)
    running = query.query
    assert running is not None
    running.processAllAvailable()
    directory = query_directory(home / "late", str(running.id), "t")
    assert list(directory.rglob("*.parquet"))
    later = itertools.count(60)

    def is_removed_by_a_later_batch() -> bool:
        orders.add((next(later), "b"))
        running.processAllAvailable()
        return not list(directory.rglob("*.parquet"))

    wait_until(is_removed_by_a_later_batch)
    assert late(running).count() == 0


def test_a_retention_of_late_rows_that_are_not_kept_is_refused(orders: Orders, home: Path) -> None:
    with pytest.raises(InvalidOption, match="late_retention"):
        watermarked(orders, home, late="count", late_retention="1 day")
