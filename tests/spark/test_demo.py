"""The demo tells the truth about its own run."""

import re
import runpy
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from floodmark.demo import comparison as demo
from floodmark.demo.cases import (
    DISORDER,
    MINUTE,
    MISCOUNTED,
    NOT_SHOWN,
    Case,
    Comparison,
    QueryResult,
    all_cases,
    generate_orders,
    judge,
)
from floodmark.demo.comparison import ProgressDisplay, QueryStatus

LAGGING, QUIET, FUTURE = "lagging partition", "quiet source", "row from the future"
CASES = {case.name: case for case in all_cases(time.time_ns() // 1000)}


@dataclass(frozen=True)
class Ran:
    """A case after its run."""

    case: Case
    comparison: Comparison
    readings: list[QueryStatus]


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ran]]:
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    done = {}
    for name, case in CASES.items():
        readings: list[QueryStatus] = []
        comparison = demo.compare(spark, case, tmp_path_factory.mktemp("demo"), readings.append)
        done[name] = Ran(case, comparison, readings)
    yield done
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))


def orders_in(case: Case) -> int:
    return sum(sum(origins.values()) for origins in case.expected.values())


@pytest.mark.parametrize("name", CASES)
def test_floodmark_counts_every_order_in_every_window(ran: dict[str, Ran], name: str) -> None:
    outcome = ran[name].comparison.floodmark
    assert outcome.is_right, outcome
    assert outcome.rows_in == orders_in(ran[name].case)
    assert outcome.windows_emitted == 30
    assert MISCOUNTED not in ran[name].comparison.why


@pytest.mark.parametrize("name", CASES)
def test_both_read_all_rows(ran: dict[str, Ran], name: str) -> None:
    last = {reading.engine: reading.rows_read for reading in ran[name].readings}
    assert last == {"plain Spark": ran[name].case.rows, "Floodmark": ran[name].case.rows}


def test_plain_spark_drops_orders_of_the_lagging_partition_and_of_no_other(ran: dict[str, Ran]) -> None:
    plain = ran[LAGGING].comparison.plain
    assert plain.lost.keys() == {"p3"}
    assert 0 < plain.windows_wrong <= 30
    assert (plain.rows_waiting, plain.windows_emitted, plain.windows_missing) == (0, 30, 0)
    assert f"{plain.rows_lost:,} of its 6,000 orders" in ran[LAGGING].comparison.why


def test_plain_spark_closes_no_window_after_a_source_has_gone_quiet(ran: dict[str, Ran]) -> None:
    case, plain, floodmark = ran[QUIET].case, ran[QUIET].comparison.plain, ran[QUIET].comparison.floodmark
    last_order = max(int(file["kiosk"].max()) for file in case.streams["kiosk"])
    assert 0 <= last_order - MINUTE - plain.watermark < 1_000
    closed = [start for start in case.expected if start + MINUTE <= last_order - MINUTE]
    assert plain.windows_emitted == len(closed) == 30 - plain.windows_missing
    assert (plain.rows_lost, plain.windows_wrong) == (0, 0)
    assert plain.rows_waiting == orders_in(case) - sum(sum(case.expected[start].values()) for start in closed)
    assert floodmark.watermark > last_order
    assert f"{plain.windows_missing} windows with {plain.rows_waiting:,} orders" in ran[QUIET].comparison.why


def test_both_queries_run_on_until_floodmark_has_gone_past_the_quiet_source(ran: dict[str, Ran]) -> None:
    assert not any(reading.has_ended for reading in ran[QUIET].readings)
    plain, floodmark = ran[QUIET].readings[-2:]
    assert plain.windows_emitted < floodmark.windows_emitted == 30


def test_one_row_from_the_future_makes_plain_spark_drop_what_comes_later(ran: dict[str, Ran]) -> None:
    case, plain, floodmark = ran[FUTURE].case, ran[FUTURE].comparison.plain, ran[FUTURE].comparison.floodmark
    first, second, *later, _ = case.streams["orders"]
    assert sum(times.max() == 4_102_444_800_000_000 for times in first.values()) == 1
    # Spark judges lateness by the watermark of the batch before: the second file is spared.
    assert plain.lost == {origin: sum(len(file[origin]) for file in later) for origin in second}
    assert plain.watermark == 4_102_444_800_000_000 - MINUTE
    assert floodmark.watermark < time.time_ns() // 1000
    assert plain.windows_missing > 0
    assert "more than 1 batch later" in ran[FUTURE].comparison.why
    assert f"{plain.rows_lost:,} orders were dropped" in ran[FUTURE].comparison.why


def printed(comparisons: list[Comparison]) -> str:
    out = StringIO()
    demo.print_report(Console(file=out, width=100), comparisons)
    return out.getvalue()


def test_the_report_has_the_figures_of_the_run(ran: dict[str, Ran]) -> None:
    text = printed([one.comparison for one in ran.values()])
    rows = re.findall(r"^  (plain Spark|Floodmark) +((?:[\d,]+ *){6})$", text, re.MULTILINE)
    found = [(engine, [int(figure.replace(",", "")) for figure in figures.split()]) for engine, figures in rows]
    assert found == [
        (
            engine,
            [
                one.rows_in,
                one.rows_lost,
                one.rows_waiting,
                one.windows_emitted,
                one.windows_wrong,
                one.windows_missing,
            ],
        )
        for comparison in (done.comparison for done in ran.values())
        for engine, one in (("plain Spark", comparison.plain), ("Floodmark", comparison.floodmark))
    ]
    for done in ran.values():
        assert " ".join(done.comparison.why.split()) in " ".join(text.split())
    assert text.replace("\n", "").isprintable()


def test_the_code_it_shows_has_the_options_it_ran_with() -> None:
    assert CASES[QUIET].plain_code == ('web.withWatermark("t", "1 minute").union(kiosk.withWatermark("t", "1 minute"))')
    assert CASES[FUTURE].floodmark_code == (
        'with_watermark(orders, "t", delay="1 minute", per=["partition"], future="1 hour")'
    )


def show_progress(console: Console) -> None:
    case = CASES[QUIET]
    with ProgressDisplay(console) as display:
        display.begin(case)
        display.watch(QueryStatus(case, "plain Spark", rows_read=1_234, windows_emitted=7, has_ended=False))


def test_a_log_gets_plain_lines_and_a_terminal_gets_bars() -> None:
    log, terminal = StringIO(), StringIO()
    show_progress(Console(file=log, width=100))
    assert log.getvalue() == f"quiet source: plain Spark and Floodmark read {CASES[QUIET].rows:,} rows each ...\n"
    show_progress(Console(file=terminal, width=80, force_terminal=True, force_interactive=True, _environ={}))
    assert "1,234 rows,  7 windows" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()


RIGHT = QueryResult(
    rows_in=10, lost={}, waiting={}, windows_emitted=3, windows_wrong=0, windows_missing=0, watermark=100 * MINUTE
)
FAILURES = {
    "lost": replace(RIGHT, lost={"p0": 1}),
    "waiting": replace(RIGHT, waiting={"p0": 1}),
    "wrong": replace(RIGHT, windows_wrong=1),
    "missing": replace(RIGHT, windows_missing=1),
}


@pytest.mark.parametrize(
    ("outcome", "code"), [(RIGHT, 0), *((one, 1) for one in FAILURES.values())], ids=["right", *FAILURES]
)
def test_the_exit_code_is_1_if_floodmark_fails_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    outcome: QueryResult,
    code: int,
) -> None:
    stopped = []

    class NoSpark:
        def stop(self) -> None:
            stopped.append(sorted(path.name for path in tmp_path.glob("*/*")))

    def compare(spark: object, case: Case, directory: Path, watch: object) -> Comparison:
        directory.mkdir()
        floodmark = outcome if case.name == QUIET else RIGHT
        return Comparison(case.name, FAILURES["lost"], floodmark, case.plain_code, case.floodmark_code, "Because.")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "session", lambda name, conf: NoSpark())
    monkeypatch.setattr(demo, "compare", compare)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("floodmark.demo", run_name="__main__")
    assert ended.value.code == code
    assert stopped == [["0", "1", "2"]], "Spark must have let go of the files before they are removed"
    assert list(tmp_path.iterdir()) == []
    assert "Because." in capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_an_explanation_that_the_run_does_not_bear_out_is_not_given(name: str) -> None:
    assert CASES[name].explain(RIGHT, RIGHT) == NOT_SHOWN


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("floodmark", FAILURES.values(), ids=FAILURES)
def test_a_failure_of_floodmark_is_said(ran: dict[str, Ran], name: str, floodmark: QueryResult) -> None:
    assert ran[name].case.explain(ran[name].comparison.plain, floodmark).endswith(MISCOUNTED)


def test_a_window_that_came_twice_or_should_not_be_there_is_wrong() -> None:
    expected = {0: {"a": 2}, MINUTE: {"a": 1}}
    twice = judge(expected, [(0, {"a": 2}), (0, {"a": 2}), (MINUTE, {"a": 1})], watermark=2 * MINUTE)
    assert (twice.windows_wrong, twice.windows_missing, twice.rows_lost) == (2, 0, 0)
    strange = judge(expected, [(0, {"a": 2}), (MINUTE, {"a": 1}), (5 * MINUTE, {"a": 1})], watermark=6 * MINUTE)
    assert (strange.windows_wrong, strange.windows_missing) == (1, 0)


def test_an_order_whose_window_never_came_is_lost_once_the_watermark_is_past_it() -> None:
    missing = judge({0: {"a": 2, "b": 1}}, [], watermark=MINUTE)
    assert (missing.lost, missing.waiting) == ({"a": 2, "b": 1}, {})
    still_open = judge({0: {"a": 2, "b": 1}}, [], watermark=MINUTE - 1)
    assert (still_open.lost, still_open.waiting) == ({}, {"a": 2, "b": 1})


def test_no_order_is_more_than_the_allowed_disorder_behind_its_own_origin() -> None:
    lagging = generate_orders(0, ["p"])["p"].delayed(since=5 * MINUTE, lag=15 * MINUTE)
    for orders in (*generate_orders(0, ["p", "q"]).values(), lagging):
        assert (orders.arrivals[1:] >= orders.arrivals[:-1]).all()
        behind, newest = 0, int(orders.times[0])
        for t in orders.times.tolist():
            newest = max(newest, t)
            behind = max(behind, newest - t)
        assert 0 < behind < DISORDER


def test_the_orders_are_the_same_in_every_run_and_recent() -> None:
    now = 1_794_784_440_123_456
    first, second = ({case.name: case for case in all_cases(at)} for at in (now, now + MINUTE))
    for name, case in first.items():
        later = {start - MINUTE: counts for start, counts in second[name].expected.items()}
        assert later == case.expected
        assert all(now - 60 * MINUTE < start < now for start in case.expected)
