"""Claims about `floodmark origins`: the listing, and decisions that the running query carries out."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli import main
from floodmark.progress import OriginAction, OriginWatermarks
from support.cli.asking import DELAYED, MINUTE, NOON, NOW, ORDERS, SECOND, Asked, asking, source_of


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Asked]:
    with asking(tmp_path, capsys) as asked:
        yield asked


def keep_step(asked: Asked, source: OriginWatermarks, decided: int = 0, incarnation: str = "a", seq: int = 0) -> None:
    """Keep a step as the running query does."""
    if seq == 0:
        asked.steps.create(incarnation, {}, now=NOON)
    names = {"names": {"1f": "orders, 3", "2e": "orders, 4"}, "decided": decided}
    asked.steps.add(incarnation, seq, source.current("order_time"), source.snapshot() | names, now=NOON)


def lines(text: str) -> list[list[str]]:
    return [re.split(" {2,}", line.strip()) for line in text.splitlines()]


def test_the_origins_are_listed_with_their_state_and_who_holds(asked: Asked) -> None:
    keep_step(asked, source_of({"1f": 4, "2e": 9}))
    assert lines(asked.text("orders", command="origins")) == [
        ["order_time: 2023-11-14 12:03:00 UTC"],
        ["origin", "stands at (UTC)", "state", "last heard"],
        ["*", "orders, 3", "12:03:00", "active", "15 min ago"],
        ["orders, 4", "12:08:00", "active", "14 min ago"],
    ]
    listed = asked.json("orders", command="origins")
    assert (listed["now"], listed["query_id"]) == (NOW, "6f1c0a22")
    [column] = listed["columns"]
    assert (column["column"], column["incarnation"], column["watermark"]) == ("order_time", "a", NOON + 3 * MINUTE)
    assert [(origin["origin"], origin["name"], origin["holds"]) for origin in column["origins"]] == [
        ("1f", "orders, 3", True),
        ("2e", "orders, 4", False),
    ]


@pytest.mark.parametrize("name", ["orders, 3", "1f"])
def test_a_decision_is_stored_for_the_query_and_shown_until_it_is_carried_out(asked: Asked, name: str) -> None:
    source = source_of({"1f": 4, "2e": 9})
    keep_step(asked, source)
    said = asked.text("orders", "finish", name, command="origins")
    assert said == "Decided: finish orders, 3. The query carries it out at its next batch.\n"
    [decision] = asked.steps.decisions("a")
    assert (decision.origin, decision.name, decision.action, decision.decided_by, decision.at) == (
        *("1f", "orders, 3", "finish", "command", NOW),
    )
    assert ["*", "orders, 3", "12:03:00", "active, finished from the next batch on", "15 min ago"] in lines(
        asked.text("orders")
    )
    source.decide("1f", "finish", now=NOW - 20 * SECOND)
    keep_step(asked, source, decided=1, seq=1)
    assert ["orders, 3", "12:03:00", "finished 20 s ago, by command", "15 min ago"] in lines(asked.text("orders"))
    origin = asked.column()["origins"][0]
    assert (origin["decision"], origin["decided_by"], origin["decided_at"], origin["decision_pending"]) == (
        *("finish", "command", NOW, False),
    )


def test_several_origins_are_decided_at_once_and_a_stopped_query_follows_later(asked: Asked) -> None:
    keep_step(asked, source_of({"1f": 4, "2e": 9}))
    asked.queries.record(replace(ORDERS, state="stopped"))
    assert asked.text("orders", "idle", "orders, 3", "orders, 4", command="origins").splitlines() == [
        "Decided: idle orders, 3. The query carries it out when it runs again.",
        "Decided: idle orders, 4. The query carries it out when it runs again.",
    ]
    told = asked.json("orders", "revive", "1f", command="origins")
    assert [(one["number"], one["action"]) for one in told["decided"]] == [(3, "revive")]


def test_a_removed_origin_is_listed_as_such_and_can_be_revived_by_its_name(asked: Asked) -> None:
    source = source_of({"1f": 4, "2e": 9})
    keep_step(asked, source)
    asked.text("orders", "remove", "orders, 3", command="origins")
    source.decide("1f", "remove", now=NOW)
    keep_step(asked, source, decided=1, seq=1)
    assert lines(asked.text("orders", command="origins"))[2:] == [
        ["*", "orders, 4", "12:08:00", "active", "14 min ago"],
        ["orders, 3", "-", "removed now, by command", "-"],
    ]
    asked.text("orders", "revive", "orders, 3", command="origins")
    assert ["orders, 3", "-", "removed, active from the next batch on", "-"] in lines(asked.text("orders"))


def test_rows_of_a_finished_origin_are_a_warning(asked: Asked) -> None:
    rules = {"order_time": DELAYED}
    source = OriginWatermarks(rules, origins=["1f", "2e"], now=NOON, after_finish="ignore")
    source.finish("1f", now=NOON)
    source.event("1f", {"order_time": NOON + 7 * MINUTE}, now=NOON)
    keep_step(asked, source)
    warning = (
        "warning: orders, 3 is finished, and has sent rows since, the newest at 12:07:00: the watermark ignores them."
    )
    assert warning in asked.text("orders")
    assert warning in asked.text("orders", command="origins")


def two_columns(asked: Asked) -> None:
    keep_step(asked, source_of({"1f": 4}))
    keep_step(asked, source_of({"1f": 5, "2e": 6}), incarnation="b")
    asked.queries.record(replace(ORDERS, incarnations=(("a", 0, "order_time"), ("b", 0, "order_time"))))


def test_an_origin_of_two_watermarks_is_chosen_by_column_or_incarnation(asked: Asked) -> None:
    two_columns(asked)
    said = asked.error("orders", "idle", "orders, 3", command="origins")
    assert "2 origins are called 'orders, 3': 1f of order_time (a), 1f of order_time (b)." in said
    assert said.endswith("[ambiguous-origin]\n")
    assert "[ambiguous-origin]" in asked.error("orders", "idle", "1f", "--column", "order_time", command="origins")
    asked.text("orders", "idle", "orders, 3", "--column", "b", command="origins")
    asked.text("orders", "idle", "orders, 4", command="origins")
    assert [len(asked.steps.decisions(name)) for name in ("a", "b")] == [0, 2]


WRONG: dict[str, tuple[list[str], str]] = {
    "unknown origin": (
        ["orders", "idle", "orders, 5"],
        "There is no origin 'orders, 5'. .* Did you mean 'orders, [34]'",
    ),
    "unknown column": (["orders", "idle", "1f", "--column", "x"], "no origin '1f' of the column 'x'"),
    "no origin": (["orders", "idle"], "No origin is named after 'idle'"),
    "unknown query": (["ordrs"], "Did you mean 'orders'"),
    "one of two": (["orders", "idle", "1f", "9f"], "There is no origin '9f'"),
}


@pytest.mark.parametrize(("argv", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_and_nothing_is_decided(asked: Asked, argv: list[str], says: str) -> None:
    keep_step(asked, source_of({"1f": 4, "2e": 9}))
    assert re.search(says, asked.error(*argv, command="origins"))
    assert asked.steps.decisions("a") == ()


def test_an_unknown_action_is_a_wrong_command_line(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["origins", "orders", "forget", "1f", "--home", str(asked.home.path)], now=NOW)
    assert "invalid choice: 'forget'" in capsys.readouterr().err


def test_a_query_without_origins_says_so(asked: Asked) -> None:
    asked.steps.create("a", {}, now=NOON)
    assert lines(asked.text("orders", command="origins")) == [
        ["order_time: no watermark yet"],
        ["No origin has sent a row yet."],
    ]
    asked.queries.record(replace(ORDERS, incarnations=(), updated_at=NOW))
    assert asked.text("orders", command="origins") == "No column of this query has a Floodmark watermark.\n"


def test_every_action_of_the_rules_is_an_action_of_the_command(asked: Asked) -> None:
    keep_step(asked, source_of({"1f": 4}))
    actions: tuple[Any, ...] = OriginAction.__args__  # type: ignore[attr-defined]
    for action in actions:
        asked.text("orders", action, "1f", command="origins")
    assert tuple(decision.action for decision in asked.steps.decisions("a")) == actions
