"""Claims about the commands `bindings`, `holds` and `release`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.bindings import Bindings
from floodmark.cli import main
from floodmark.control import Home
from floodmark.testing import ManualClock

SECOND = 1_000_000
NOON = 1_699_963_200 * SECOND
"""2023-11-14 12:00:00 UTC."""
NOW = NOON + 20 * 60 * SECOND

Ask = Callable[..., str]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def bindings(tmp_path: Path, clock: ManualClock) -> Iterator[Bindings]:
    """Give a source that has ticked 14 times, once a minute, with one hold that moved and one that did not."""
    with Home.open(tmp_path, clock=clock.now) as home:
        made = Bindings(home, own_clock=clock.now)
        made.register("shop/orders", kind="kafka", identity={"topic_id": "Ab3"}, compaction_window="1 hour")
        made.hold("shop/orders", "stuck", NOON, "sink")
        made.hold("shop/orders", "alive", NOON)
        for minute in range(1, 15):
            clock.advance(60 * SECOND)
            ends = {0: 5 * minute, **({1: minute} if minute > 12 else {})}
            history = made.tick("shop/orders", ends, {"at": NOON + minute * SECOND}).history
        made.advance_hold("shop/orders", "alive", history.upper - 1)
        yield made


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(*argv: str, code: int = 0) -> str:
        assert main([*argv, "--home", str(tmp_path)], now=NOW) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return asked


def columns(line: str) -> list[str]:
    return [part.strip() for part in line.split("  ") if part.strip()]


def test_without_anything_there_is_nothing_to_show(tmp_path: Path, ask: Ask) -> None:
    Home.open(tmp_path).close()
    assert ask("bindings") == "No source has been registered yet.\n"
    assert ask("holds") == "There are no holds.\n"


def test_sources_are_listed_with_how_far_they_have_come(bindings: Bindings, ask: Ask) -> None:
    heading, line, warning = ask("bindings").splitlines()
    assert columns(heading) == ["source", "kind", "since (UTC)", "upper (UTC)", "last tick", "holds"]
    assert columns(line) == [
        "shop/orders",
        "kafka",
        "2023-11-14 12:00:00",
        "2023-11-14 12:14:01.000001",
        "6 min ago",
        "2",
    ]
    assert warning.startswith("  warning: The sink 'stuck' has held 'shop/orders' at")


def test_sources_are_one_json_object(bindings: Bindings, ask: Ask) -> None:
    told = json.loads(ask("bindings", "--json"))
    assert told["now"] == NOW
    (source,) = told["sources"]
    assert (source["source"], source["identity"], source["since"]) == ("shop/orders", {"topic_id": "Ab3"}, NOON)
    assert [hold["holder"] for hold in told["holds"]] == ["stuck", "alive"]


def test_one_source_is_shown_with_its_newest_timestamps(bindings: Bindings, ask: Ask) -> None:
    text = ask("bindings", "shop/orders")
    lines = text.splitlines()
    assert lines[0] == "shop/orders: kafka"
    assert "  identity: {'topic_id': 'Ab3'}" in lines
    assert "  tick: 1 s" in lines
    assert "  compaction window: 1 h" in lines
    assert any(line.startswith("  held by: stuck at") for line in lines)
    assert "The newest 10 of 14 timestamps; --json prints all." in lines
    newest = bindings.history("shop/orders").pairs()[-1]
    assert [*columns(lines[-2])] == [str(newest.ts), "2023-11-14 12:14:01", "1", "13", "14"]
    assert lines[-1] == "  watermarks at the newest: at 2023-11-14 12:00:14 UTC"
    assert len([line for line in lines if line.startswith("16999")]) == 12, "two partitions in the last two"


def test_one_source_is_one_json_object_with_everything(bindings: Bindings, ask: Ask) -> None:
    told = json.loads(ask("bindings", "shop/orders", "--json"))
    assert len(told["pairs"]) == 16
    assert told["pairs"][0] == {"partition": 0, "ts": told["pairs"][0]["ts"], "first": 0, "end": 5}
    assert len(told["watermarks"]) == 14
    assert told["watermarks"][-1]["watermark"] == NOON + 14 * SECOND
    assert [(hold["holder"], hold["is_stalled"]) for hold in told["holds"]] == [("stuck", True), ("alive", False)]


def test_a_source_of_which_nothing_is_bound_is_shown(bindings: Bindings, ask: Ask) -> None:
    bindings.register("new", kind="stream", identity=1)
    assert "No offsets have been bound yet." in ask("bindings", "new").splitlines()
    assert "  held by: no holds" in ask("bindings", "new").splitlines()
    assert "  compaction window: 7 d" in ask("bindings", "new").splitlines()


def test_settings_of_a_source_are_altered(bindings: Bindings, ask: Ask) -> None:
    text = ask("bindings", "alter", "shop/orders", "--tick", "2 seconds", "--compaction-window", "never")
    assert text.splitlines() == [
        "shop/orders: kafka",
        "  tick: 2 s",
        "  compaction window: none: all timestamps are kept",
        "  release after: never: holds stay until they are released",
    ]
    told = json.loads(ask("bindings", "alter", "shop/orders", "--release-after", "2 days", "--json"))
    assert (told["source"]["tick"], told["source"]["release_after"]) == (2 * SECOND, 2 * 86_400 * SECOND)
    assert bindings.source("shop/orders").compaction_window is None


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["alter", "shop/orders"], "No setting is given."),
        (["alter", "shop/orders", "--tick", "1 millisecond"], "tick is '1 millisecond'."),
        (["alter", "shop/orders", "--tick", "never"], "tick is 'never'."),
        (["alter", "shop/ordrs", "--tick", "1 second"], "There is no source 'shop/ordrs'."),
        (["shop/orders", "--tick", "1 second"], "shows one source or all"),
        (["shop/orders", "shop/others"], "shows one source or all"),
        (["alter", "shop/orders", "--tick", "1 second", "--at", "5"], "shows one source or all"),
    ],
)
def test_a_wrong_alteration_changes_nothing(bindings: Bindings, ask: Ask, arguments: list[str], error: str) -> None:
    before = bindings.sources()
    assert error in ask("bindings", *arguments, code=1)
    assert bindings.sources() == before


@pytest.mark.parametrize("at", [str(NOON + 125 * SECOND), "2023-11-14T12:02:05Z", "2023-11-14 13:02:05+01:00"])
def test_the_cut_at_a_timestamp_is_shown(bindings: Bindings, ask: Ask, at: str) -> None:
    told = json.loads(ask("bindings", "shop/orders", "--at", at, "--json"))
    assert (told["at"], told["cut"]) == (NOON + 125 * SECOND, {"0": 10})
    assert (told["watermarks"], told["judged_by"]) == ({"at": NOON + 2 * SECOND}, {"at": NOON + 2 * SECOND})
    lines = ask("bindings", "shop/orders", "--at", at).splitlines()
    assert lines[0] == f"shop/orders at {NOON + 125 * SECOND}: 2023-11-14 12:02:05 UTC"
    assert columns(lines[2]) == ["0", "10"]
    assert lines[-1] == "  watermarks after it: at 2023-11-14 12:00:02 UTC"


WRONG: dict[str, tuple[list[str], str]] = {
    "a source that is not there": (["bindings", "shop/ordres"], "Did you mean 'shop/orders'? [unknown-source]"),
    "a timestamp of the future": (["bindings", "shop/orders", "--at", str(NOW)], "[timestamp-not-valid]"),
    "a timestamp that is none": (["bindings", "shop/orders", "--at", "noon"], "[invalid-value]"),
    "a time without a zone": (["bindings", "shop/orders", "--at", "2023-11-14T12:02:05"], "[invalid-value]"),
    "holds of a source that is not there": (["holds", "x"], "[unknown-source]"),
    "a holder that is not there": (
        ["release", "shop/orders", "nobody"],
        "Name one of its holders: stuck, alive. [unknown-hold]",
    ),
    "an age that is none": (["release", "shop/orders", "--older-than", "old"], "[invalid-option]"),
}


@pytest.mark.parametrize(("argv", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_answered_exits_with_1_and_says_why(
    bindings: Bindings, ask: Ask, argv: list[str], said: str
) -> None:
    assert said in ask(*argv, code=1)
    assert len(bindings.holds()) == 2


def test_holds_are_shown_with_their_age_and_a_warning(bindings: Bindings, ask: Ask) -> None:
    heading, *lines, warning = ask("holds").splitlines()
    assert columns(heading)[:4] == ["source", "holder", "kind", "holds at"]
    assert columns(lines[0])[1:3] == ["stuck", "sink"]
    assert columns(lines[0])[5:] == ["14 min 1 s", "20 min ago", "20 min ago"]
    assert columns(lines[1])[1:3] == ["alive", "query"]
    assert columns(lines[1])[6:] == ["6 min ago", "6 min ago"]
    assert "'stuck'" in warning
    told = json.loads(ask("holds", "shop/orders", "--json"))["holds"]
    assert [(hold["holder"], hold["behind"], bool(hold["warning"])) for hold in told] == [
        ("stuck", 14 * 60 * SECOND + SECOND + 1, True),
        ("alive", 1, False),
    ]


def test_a_hold_is_released_by_name(bindings: Bindings, ask: Ask) -> None:
    assert ask("release", "shop/orders", "stuck") == f"Released: stuck, which held shop/orders at {NOON}.\n"
    assert [hold.holder for hold in bindings.holds()] == ["alive"]


def test_holds_are_released_by_age(bindings: Bindings, ask: Ask) -> None:
    assert ask("release", "shop/orders", "--older-than", "99999 weeks") == "No hold is that old.\n"
    told: dict[str, Any] = json.loads(ask("release", "shop/orders", "--older-than", "1 day", "--json"))
    assert [hold["holder"] for hold in told["released"]] == ["stuck", "alive"]
    assert bindings.holds() == ()


@pytest.mark.parametrize("argv", [["release"], ["release", "s"], ["release", "s", "k", "--older-than", "1 day"]])
def test_a_release_says_what_to_release(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert capsys.readouterr().err
