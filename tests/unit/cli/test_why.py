"""Claims about the answer to "why?", with homes made through the API and a clock that stands still."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli import main
from floodmark.control import Home
from floodmark.progress import OriginWatermarks
from support.cli.asking import (
    DELAYED,
    MINUTE,
    NOON,
    NOW,
    ORDERS,
    SECOND,
    Asked,
    all_idle,
    asking,
    revived_behind,
    source_of,
)


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Asked]:
    with asking(tmp_path, capsys) as asked:
        yield asked


def test_the_whole_answer_as_a_person_reads_it(asked: Asked) -> None:
    source = source_of({"orders-0": 9, "orders-1": 4, "orders-2": 8, "orders-3": None})
    source.event("orders-0", {"order_time": NOON + 60 * 24 * 365 * 80 * MINUTE}, now=NOON + 9 * MINUTE)
    source.declare_idle("orders-2", now=NOON + 9 * MINUTE)
    source.finish("orders-3", now=NOON + 9 * MINUTE)
    asked.keep(source)
    late = {"newest": {"orders-1": 1}, "late_rows": {"orders-1": 2}, "oldest_late": {"orders-1": NOON + MINUTE}}
    asked.steps.observe("a", 0, 40, {"newest": {"orders-0": 1}, "late_rows": {"orders-0": 0}}, NOW - MINUTE)
    asked.steps.observe("a", 0, 41, late, NOW - 40 * SECOND)
    asked.steps.observe("a", 0, 42, late | {"oldest_late": {"orders-1": NOON}}, NOW - 30 * SECOND)
    asked.queries.record(replace(ORDERS, warnings=("The statistics of batch 39 were lost.",)))
    assert [re.split(" {2,}", line.strip()) for line in asked.text("orders").splitlines()] == [
        ["orders: running"],
        ["id: 6f1c0a22"],
        ["last batch: 41"],
        ["last heard: 5 s ago (2023-11-14 12:19:55 UTC)"],
        ["Spark's watermark: 2023-11-14 12:02:59.999000 UTC"],
        ["warning: The statistics of batch 39 were lost."],
        [""],
        ["order_time: 2023-11-14 12:03:00 UTC (1699963380000000)"],
        ["held by: orders-1, since 12:06:00 (14 min ago)"],
        ["origin", "stands at (UTC)", "state", "last heard", "from the future", "late since batch 40"],
        ["orders-0", "12:08:00", "active", "1 min ago", "1, newest 2103-10-26 12:00:00 UTC", "0"],
        ["*", "orders-1", "12:03:00", "active", "30 s ago", "0", "4, oldest 12:00:00"],
        ["orders-2", "12:07:00", "idle (declared) 11 min ago", "13 min ago", "0", "-"],
        ["orders-3", "-", "finished 11 min ago", "-", "0", "-"],
        ["It moves when orders-1 sends a row later than 12:04:00, goes idle, or is removed."],
        ["To stop waiting: floodmark origins orders idle orders-1 (or finish, remove; `floodmark origins --help`)."],
    ]


def test_the_whole_answer_as_a_program_reads_it(asked: Asked) -> None:
    source = source_of({"orders-0": 9, "orders-1": 4})
    asked.keep(source)
    assert asked.json("orders") == {
        "now": NOW,
        "same_name": [],
        "query": {
            "query_id": "6f1c0a22",
            "run_id": "r1",
            "name": "orders",
            "batch_id": 41,
            "incarnations": [["a", 0, "order_time"]],
            "spark_watermark": 1699963379999,
            "state": "running",
            "error": None,
            "warnings": [],
            "started_at": NOON,
            "updated_at": NOW - 5 * SECOND,
        },
        "columns": [
            {
                "column": "order_time",
                "incarnation": "a",
                "release": "It moves when orders-1 sends a row later than 12:04:00, goes idle, or is removed.",
                "warnings": [],
                "seq": 0,
                "watermark": NOON + 3 * MINUTE,
                "computed_at": NOON + 10 * MINUTE,
                "is_idle": False,
                "holders": ["orders-1"],
                "held_since": NOON + 6 * MINUTE,
                "lacking": [],
                "counted_since_batch": None,
                "future_rows": 0,
                "newest_future": None,
                "spark_dropped": 0,
                "origins": [
                    {
                        "origin": name,
                        "name": name,
                        "state": "active",
                        "idle_cause": None,
                        "in_state_since": NOON,
                        "watermark": NOON + (minutes - 1) * MINUTE,
                        "newest_time": NOON + minutes * MINUTE,
                        "last_heard": heard,
                        "holds": holds,
                        "left_out": False,
                        "future_rows": 0,
                        "newest_future": None,
                        "late_rows": None,
                        "oldest_late": None,
                        "newest_after_finish": None,
                        "decision": None,
                        "decided_by": None,
                        "decided_at": None,
                        "decision_pending": False,
                    }
                    for name, minutes, heard, holds in (
                        ("orders-0", 9, NOON + 5 * MINUTE, False),
                        ("orders-1", 4, NOON + 6 * MINUTE, True),
                    )
                ],
            }
        ],
    }


def test_all_idle_says_so_with_the_cause(asked: Asked) -> None:
    asked.keep(all_idle())
    text = asked.text("orders")
    assert "held by: no origin: all origins are idle" in text
    assert text.count("idle (timeout)") == 2
    assert asked.column()["is_idle"] is True


def test_an_origin_that_is_left_out_is_shown_so(asked: Asked) -> None:
    asked.keep(revived_behind("exclude"))
    assert "active, ignored until it catches up" in asked.text("orders")


def test_two_columns_are_answered_each_and_a_partial_one_says_who_lacks(asked: Asked) -> None:
    rules = {"order_time": DELAYED, "ship_time": DELAYED}
    source = OriginWatermarks(rules, origins=["p0", "p1"], now=NOON)
    source.event("p0", {"order_time": NOON, "ship_time": NOON}, now=NOON)
    source.event("p1", {"order_time": NOON}, now=NOON)
    asked.keep(source)
    asked.keep(source, "ship_time", "b")
    asked.queries.record(replace(ORDERS, incarnations=(("a", 0, "order_time"), ("b", 0, "ship_time"))))
    text = asked.text("orders")
    assert "ship_time: no watermark yet" in text
    assert "never reported this column: p1 (only other columns)" in text
    assert [(one["column"], one["lacking"]) for one in asked.json("orders")["columns"]] == [
        ("order_time", []),
        ("ship_time", ["p1"]),
    ]


def test_the_newest_step_answers_not_the_one_of_the_last_event(asked: Asked) -> None:
    source = source_of({"p0": 4})
    asked.keep(source)
    source.event("p0", {"order_time": NOON + 6 * MINUTE}, now=NOON + 11 * MINUTE)
    asked.steps.add("a", 1, source.current("order_time"), source.snapshot(), now=NOON + 11 * MINUTE)
    assert (asked.column()["seq"], asked.column()["watermark"]) == (1, NOON + 5 * MINUTE)


def test_before_the_first_step_there_is_no_watermark(asked: Asked) -> None:
    asked.steps.create("a", {}, now=NOON)
    assert "order_time: no watermark yet\nThe watermark appears after the first batch." in asked.text("orders")


def test_a_column_that_cannot_be_read_does_not_hide_the_others(asked: Asked) -> None:
    asked.keep(source_of({"p0": 4}))
    asked.steps.create("broken", {}, now=NOON)
    asked.steps.add("broken", 0, 5, {"kind": "nonsense"}, now=NOON)
    asked.queries.record(
        replace(ORDERS, incarnations=(("gone", 0, "x"), ("broken", 0, "y"), ("a", 0, "z"), ("a", 0, "order_time")))
    )
    gone, broken, other_name, whole = asked.json("orders")["columns"]
    assert "[unknown-incarnation]" in gone["warnings"][0]
    assert "[snapshot-invalid]" in broken["warnings"][0]
    assert "[snapshot-invalid]" in other_name["warnings"][0]
    assert whole["holders"] == ["p0"]
    assert "warning: There is no incarnation 'gone' in this home." in asked.text("orders")


@pytest.mark.parametrize(
    "statistics", [None, 5, {"rows": 5}, {"newest": None}, {"newest": {"p0": None}}, {"newest": ["p0"], "late_rows": 5}]
)
def test_statistics_of_another_form_say_nothing(asked: Asked, statistics: Any) -> None:
    asked.keep(source_of({"p0": 4}))
    asked.steps.observe("a", 0, 0, statistics, now=NOW)
    (origin,) = asked.column()["origins"]
    assert (origin["late_rows"], origin["last_heard"]) == (None, NOON + 5 * MINUTE)


def test_a_batch_without_rows_of_an_origin_has_not_heard_it(asked: Asked) -> None:
    asked.keep(source_of({"p0": 4}))
    asked.steps.observe("a", 0, 0, {"newest": {"p0": NOON}}, now=NOW - MINUTE)
    asked.steps.observe("a", 0, 1, {"newest": {}}, now=NOW)
    assert asked.column()["origins"][0]["last_heard"] == NOW - MINUTE


def test_batches_since_the_last_step_count_though_the_watermark_has_not_moved(asked: Asked) -> None:
    source = source_of({"p0": None, "p1": None, "p2": None})
    asked.steps.create("a", {"delay": MINUTE}, now=NOON)
    asked.steps.add("a", 0, None, source.snapshot() | {"applied": 3}, now=NOON)
    for batch, newest in enumerate(
        [{"p2": NOON}, {"p0": NOON + MINUTE}, {"p0": NOON + 2 * MINUTE, "p9": NOON}], start=3
    ):
        names = {name: name.upper() for name in newest}
        asked.steps.observe("a", 0, batch, {"newest": newest, "names": names}, now=NOON + batch * MINUTE)
    asked.steps.observe("a", 1, 6, {"newest": {"p1": NOON}}, now=NOW)
    column = asked.column()
    assert column["holders"] == ["p1", "p2"], "batch 3 is part of the step, and batch 6 not of its past"
    assert [(origin["name"], origin["watermark"]) for origin in column["origins"]] == [
        ("P0", NOON + MINUTE),
        ("p1", None),
        ("p2", None),
        ("P9", NOON - MINUTE),
    ]
    assert column["watermark"] is None


def test_rows_from_the_future_that_are_nobodys_are_told_of_the_column(asked: Asked) -> None:
    asked.keep(source_of({"p0": 4}))
    asked.steps.observe("a", 0, 8, {"future_rows": 2, "newest_future": NOW + MINUTE}, now=NOW)
    asked.steps.observe("a", 0, 9, {"future_rows": 1, "newest_future": NOW + SECOND}, now=NOW)
    asked.steps.observe("a", 0, 10, {"future_rows": 0, "newest_future": None}, now=NOW)
    assert "rows from the future: 3, newest 12:21:00 (since batch 8)" in asked.text("orders")
    assert (asked.column()["future_rows"], asked.column()["newest_future"]) == (3, NOW + MINUTE)


def test_origins_are_shown_by_the_names_that_go_with_the_step(asked: Asked) -> None:
    source = source_of({"1f": 4, "2e": 9})
    asked.steps.create("a", {}, now=NOON)
    named = source.snapshot() | {"names": {"1f": "orders, 3"}, "missed": 2}
    asked.steps.add("a", 0, source.current("order_time"), named, now=NOON)
    column = asked.column()
    assert (column["holders"], [(one["origin"], one["name"]) for one in column["origins"]]) == (
        ["orders, 3"],
        [("1f", "orders, 3"), ("2e", "2e")],
    )
    text = asked.text("orders")
    assert "It moves when orders, 3 sends a row" in text
    assert "warning: Statistics of 2 batches were lost; the watermark may lag." in text


def test_a_query_that_failed_says_with_what(asked: Asked) -> None:
    asked.queries.record(replace(ORDERS, state="failed", error="[DIVIDE_BY_ZERO] no\n\tat java.lang.Thread"))
    text = asked.text("orders")
    assert text.startswith("orders: failed\n")
    assert "error: [DIVIDE_BY_ZERO] no\n" in text
    assert "java.lang" not in text
    assert "java.lang" in asked.json("orders")["query"]["error"]


def test_before_the_first_mark_spark_has_no_watermark(asked: Asked) -> None:
    asked.queries.record(replace(ORDERS, spark_watermark=0, updated_at=NOW))
    assert "Spark's watermark: -\n" in asked.text("orders")


def test_of_two_queries_of_one_name_the_newest_answers_and_the_other_is_named(asked: Asked) -> None:
    asked.keep(source_of({"p0": 4}))
    older = replace(ORDERS, query_id="0d", incarnations=(), state="stopped", started_at=NOON - MINUTE, updated_at=NOW)
    asked.queries.record(older)
    answer = asked.json("orders")
    assert (answer["query"]["query_id"], [other["query_id"] for other in answer["same_name"]]) == ("6f1c0a22", ["0d"])
    assert "others of this name: 0d (stopped)\n" in asked.text("orders")
    assert "others of this name: 6f1c0a22 (running)\n" in asked.text("0d")


def test_a_query_without_a_watermark_of_ours_says_so(asked: Asked) -> None:
    asked.queries.record(replace(ORDERS, query_id="77", name=None, incarnations=(), batch_id=-1, spark_watermark=None))
    text = asked.text("77")
    assert text.startswith("77: running\n")
    assert "last batch: -\n" in text
    assert "No column of this query has a Floodmark watermark" in text


def test_without_a_name_the_queries_are_listed(asked: Asked) -> None:
    asked.queries.record(replace(ORDERS, query_id="77", name=None, state="stopped", updated_at=NOW - 3 * MINUTE))
    assert [line.split() for line in asked.text().splitlines()] == [
        ["query", "state", "last", "batch", "last", "heard", "id"],
        ["orders", "running", "41", "5", "s", "ago", "6f1c0a22"],
        ["-", "stopped", "41", "3", "min", "ago", "77"],
    ]
    assert [query["query_id"] for query in asked.json()["queries"]] == ["6f1c0a22", "77"]


def test_a_home_without_queries_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Home.open(tmp_path).close()
    assert main(["why", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No query has reported to this home yet.\n"


def test_a_misspelled_query_gets_a_hint(asked: Asked) -> None:
    assert "There is no query 'ordres'. Did you mean 'orders'?" in asked.error("ordres")


def test_names_from_data_cannot_steer_the_terminal(asked: Asked) -> None:
    source = source_of({"\x1b[31m[red]p0\n": 4, "[/]": None})
    asked.keep(source)
    asked.queries.record(replace(ORDERS, query_id="77", name="[bold]\x1b[2J"))
    text = asked.text("77")
    assert "\x1b" not in text
    assert "[bold]" in text
    assert "[red]p0" in text


def test_colour_is_for_terminals_and_can_be_forbidden(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.keep(source_of({"p0": 4}))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b[32m" in asked.text("orders")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in asked.text("orders")


def test_what_spark_dropped_is_told_as_what_it_is(asked: Asked) -> None:
    asked.keep(source_of({"orders-0": 9}))
    asked.steps.observe("a", 0, 40, {"newest": {}, "spark_dropped": 2}, NOW)
    asked.steps.observe("a", 0, 41, {"newest": {}, "spark_dropped": 1}, NOW)
    assert asked.column()["spark_dropped"] == 3
    said = "dropped by Spark: 3 rows, or groups of rows if Spark groups before it drops (since batch 40)"
    assert said in asked.text("orders")
