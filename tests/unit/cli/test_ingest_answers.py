"""Claims about what `floodmark ingest` answers: plans, how far a job has come, what is missing, what was done."""

from pathlib import Path

import pytest

from floodmark.control import Home
from floodmark.ingest import Ingestion
from support.cli.asking_jobs import DAY, FILE, NOW, START, Asked, asking_jobs, record


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asked:
    return asking_jobs(tmp_path, capsys, monkeypatch)


@pytest.fixture
def known(asked: Asked) -> Asked:
    """A job that has run once: the first 15 cells, of which that of south on 01-02 has failed."""
    record(asked, {("south", 1)})
    return asked


def test_a_plan_is_shown_with_cells_ranges_and_reasons(asked: Asked) -> None:
    assert asked.lines("plan", "--rows", "3") == [
        "orders: 20 cells are due (new 20)",
        "reads: 2020-01-01 to 2020-01-11 (UTC)",
        "this run: 15 cells in 15 ranges",
        "later runs: 5 cells, above the limit of 15 per run",
        "estimate: none: nothing has been read yet",
        "",
        "unit cell reads from to reason failed",
        "shop=north 2020-01-01 .. 2020-01-02 2020-01-01 2020-01-02 new -",
        "shop=south 2020-01-01 .. 2020-01-02 2020-01-01 2020-01-02 new -",
        "shop=north 2020-01-02 .. 2020-01-03 2020-01-02 2020-01-03 new -",
        "The first 3 of 15; --rows shows more, --json all.",
    ]


def test_a_plan_makes_no_home(asked: Asked) -> None:
    asked.text("plan")
    assert not asked.home.exists()


def test_a_plan_after_a_run_takes_the_failed_first_and_estimates(known: Asked) -> None:
    lines = known.lines("plan")
    assert lines[0] == "orders: 8 cells are due (failed 1, new 5, grace 2)"
    assert lines[3].startswith("estimate: about ")
    assert lines[6] == "shop=south 2020-01-02 .. 2020-01-03 2020-01-02 2020-01-03 failed 1"


def test_a_plan_for_a_program_has_everything(known: Asked) -> None:
    found = known.json("plan")
    assert {name: found[name] for name in ("job", "now", "reach", "cells", "due", "waiting", "notes")} == {
        "job": "orders",
        "now": NOW,
        "reach": [START, START + 10 * DAY],
        "cells": 8,
        "due": 8,
        "waiting": 0,
        "notes": [],
    }
    assert found["totals"] == {"failed": 1, "gap": 0, "new": 5, "backfill": 0, "grace": 2, "held": 0, "quarantined": 0}
    assert found["rows"][0] == {
        "unit": {"key": '{"shop":"south"}', "fields": {"shop": "south"}},
        "cell": [START + DAY, START + 2 * DAY],
        "range": [START + DAY, START + 2 * DAY],
        "reason": "failed",
        "reasons": ["failed"],
        "attempts": 1,
        "why": "",
    }
    assert found["estimate"]["of"] >= 14
    assert len(found["rows"]) == 8


def test_a_plan_can_be_made_for_another_moment(asked: Asked) -> None:
    assert asked.lines("plan", "--at", "2020-01-02T08:00:00Z")[:2] == [
        "orders: 2 cells are due (new 2)",
        "reads: 2020-01-01 to 2020-01-02 (UTC)",
    ]
    assert asked.lines("plan", "--at", "2020-01-01")[:2] == [
        "orders: nothing is due",
        "reads: nothing: 2020-01-01 to P0D is an empty range now",
    ]


def test_a_large_plan_is_shown_by_its_totals(asked: Asked) -> None:
    shops = ", ".join(f"s{n}" for n in range(1000))
    text = FILE.replace("north, south", shops).replace('"daily"', '"hourly"').replace("cells = 15", 'cells = "all"')
    asked.path.write_text(text)
    lines = asked.lines("plan", "--at", "2020-01-03")
    assert lines[0] == "orders: 48,000 cells are due (new 48,000)"
    assert lines[-1] == "The first 20 of 48,000; --rows shows more, --json all."


def test_what_is_held_back_or_in_quarantine_is_told_with_its_why(known: Asked) -> None:
    record(known, {("south", 1)})
    lines = known.lines("plan")
    assert "in quarantine: 1 cells, failed too often" in lines
    assert "shop=south 2020-01-02 .. 2020-01-03 2020-01-02 2020-01-03 failed 2 failed 2 times in a row: timed out" in [
        line.partition("\ufffd")[0] for line in lines
    ]
    known.path.write_text(FILE.replace("grace_days = 1", "grace_days = 1\nabstinence_days = 3"))
    record(known, set())
    assert known.json("plan")["totals"]["quarantined"] == 1


# --- status, gaps, history -------------------------------------------------------------------------------------------


def test_the_status_tells_what_may_be_trusted_next_to_the_largest_end(known: Asked) -> None:
    lines = known.lines("status")
    assert lines[:6] == [
        "orders: 8 cells are due (failed 1, new 5, grace 2)",
        "complete through: 2020-01-02",
        "largest end of all: 2020-01-09",
        "reads: 2020-01-01 to 2020-01-11 (UTC)",
        "units: 2",
        "running: no",
    ]
    assert lines[6] == "last run: 1, done, now, by bot: 14 succeeded, 1 failed"
    found = known.json("status")
    assert (found["complete_through"], found["largest_end"]) == (START + DAY, START + 8 * DAY)
    assert found["plan"]["due"] == 8


def test_the_status_recommends_a_grace_once_lateness_was_seen(known: Asked) -> None:
    assert known.lines("status")[7] == "grace: 1 days"
    with Home.open(known.home) as home:
        Ingestion(home).note_lateness("orders", {0: 900, 2: 100})
    assert known.lines("status")[7] == "grace: 1 days; 2 would have found 99.9% of all rows"
    assert known.json("status")["recommended_grace_days"] == 2


def test_gaps_are_told_with_their_cause(known: Asked) -> None:
    lines = known.lines("gaps")
    assert lines[0] == "3 ranges are missing; complete through 2020-01-02."
    assert "shop=north 2020-01-09 2020-01-11 not read yet" in lines
    assert any(line.startswith("shop=south 2020-01-02 2020-01-03 failed once: timed out") for line in lines)
    found = known.json("gaps")["gaps"]
    assert [START + DAY, START + 2 * DAY] in [gap["range"] for gap in found]


def test_nothing_missing_is_said(known: Asked) -> None:
    record(known, set())
    assert known.lines("gaps") == ["Nothing is missing up to 2020-01-11."]


def test_a_range_that_could_not_be_read_again_is_told_though_nothing_is_missing(known: Asked) -> None:
    record(known, set())
    record(known, {("south", 9)})
    *lines, south = known.lines("gaps")
    assert lines == [
        "Nothing is missing up to 2020-01-11.",
        "1 range could not be read again: the rows of the last successful read are there, rows that came later may be "
        "missing.",
        "unit from to why",
    ]
    assert south.startswith("shop=south 2020-01-10 2020-01-11 failed once: timed out")
    found = known.json("gaps")
    assert (found["gaps"], [gap["range"] for gap in found["failed_rereads"]]) == (
        [],
        [[START + 9 * DAY, START + 10 * DAY]],
    )


def test_the_history_has_runs_attempts_and_events(known: Asked) -> None:
    assert known.lines("history")[1:] == ["1 done now 0 s 14 1 1,400 bot"]
    attempts = known.lines("history", "--run", "1", "--limit", "2")
    assert attempts[1] == "shop=south 2020-01-02 2020-01-03 new failed - 5 s timed out"
    assert attempts[-1] == "The first 2 of 15; --limit shows more, --json all."
    assert len(known.json("history", "--run", "1")["attempts"]) == 15
    assert [event["kind"] for event in known.json("history", "--events")["events"]] == ["registered"]
    assert known.json("history", job="orders")["runs"][0]["succeeded"] == 14
