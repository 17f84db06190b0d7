"""Claims about `floodmark sinks`: it lists, explains and drops."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.bindings import Bindings, SourceOffset
from floodmark.bindings.coordination import QueryReaders
from floodmark.cli import main
from floodmark.control import Home
from floodmark.sinks import Progress, SinkMark, Sinks

NOW = 1_700_000_600_000_000
TS = 1_700_000_000_000_000
END = SourceOffset("q", TS, {0: 7}, {"at": TS - 5})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Home.open(tmp_path, clock=lambda: NOW) as home:
        sinks, bindings = Sinks(home), Bindings(home)
        bindings.register("orders", kind="test", identity={})
        bindings.mint("orders", {0: 7}, {}, expected_upper=bindings.source("orders").upper)
        sinks.register("out", target="kafka://one:9092/totals", mode="atomic", version=3)
        start = replace(END, ts=None, cut={})
        written = Progress("out", "totals", "t1", 3, "6f1c", {"orders": start}, {"orders": END}, rows=2, total=41)
        sinks.record("out", replace(written, marks={"at": SinkMark(TS - 5, 1)}))
        bindings.hold("orders", "sink/out", bindings.source("orders").since, "sink")
        sinks.register("new", target="delta:///tables/bills", mode="atomic", version=1)
        QueryReaders(home).announce("out", {"a1": 1}, [], extra_empty_batch=False)
        QueryReaders(home).register("a1", "orders", END)
    return tmp_path


def ask(place: Path, *arguments: str) -> int:
    return main(["sinks", *arguments, "--home", str(place)], now=NOW)


def test_all_sinks_are_listed_with_how_far_they_are(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(place) == 0
    said = capsys.readouterr().out
    for word in ("out", "kafka://one:9092/totals", "41", "2023-11-14 22:13", "new", "delta:///tables/bills"):
        assert word in said
    assert ask(place, "--json") == 0
    told = {sink["name"]: sink for sink in json.loads(capsys.readouterr().out)["sinks"]}
    assert told["out"]["progress"]["total"] == 41
    assert told["new"]["progress"] is None


def test_a_home_without_sinks_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Home.open(tmp_path).close()
    assert ask(tmp_path) == 0
    assert "No query has written to an exactly-once sink yet." in capsys.readouterr().out


def test_one_sink_is_explained(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(place, "out") == 0
    said = capsys.readouterr().out
    assert "writes to kafka://one:9092/totals (atomic, version 3)" in said
    assert "It has written 41 rows" in said
    assert ask(place, "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["explained"][0].startswith("The sink 'out' writes to")


def test_a_dropped_sink_is_gone_and_holds_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(place, "out", "--drop") == 0
    said = capsys.readouterr().out
    assert "Dropped: out." in said
    assert "Released: its hold on orders" in said
    with Home.open(place) as home:
        assert [sink.name for sink in Sinks(home).all()] == ["new"]
        assert Bindings(home).holds() == ()
        assert QueryReaders(home).find("q") is None
    assert ask(place, "out", "--drop") == 1
    assert "There is no sink 'out'" in capsys.readouterr().err
