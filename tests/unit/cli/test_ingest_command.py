"""Claims about what `floodmark ingest` does: backfills, retries, edits and runs, and what it refuses."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress, TaskID

from floodmark.cli import ingest as _ingest
from floodmark.cli import main
from floodmark.cli.ingest_text import find_unit_keys
from floodmark.control import Home
from floodmark.errors import UnknownUnit
from floodmark.ingest import Ingestion, LandingResult, PlannedRange, Range, Run, load_job
from support.cli.asking_jobs import DAY, FILE, START, Asked, asking_jobs, record
from support.processes import run


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asked:
    return asking_jobs(tmp_path, capsys, monkeypatch)


@pytest.fixture
def known(asked: Asked) -> Asked:
    """A job that has run once: the first 15 cells, of which that of south on 01-02 has failed."""
    record(asked, {("south", 1)})
    return asked


def test_a_backfill_is_planned_and_leaves_the_frontier(known: Asked) -> None:
    said = known.text(
        "backfill", "--from", "2020-01-01", "--to", "2020-01-03", "--unit", "north", "--note", "late file"
    )
    assert said == "The next runs read 2020-01-01T00:00:00+00:00 to 2020-01-03T00:00:00+00:00 again.\n"
    assert known.json("plan")["totals"]["backfill"] == 2
    (event, _) = known.json("history", "--events")["events"]
    assert (event["kind"], event["actor"], event["details"]["note"]) == ("backfill", "ann@desk", "late file")


def test_a_backfill_may_be_the_first_thing_that_happens_to_a_job(asked: Asked) -> None:
    asked.text("backfill", "--from", "2020-01-01", "--to", "2020-01-03")
    assert asked.home.is_dir()


def test_a_retry_lets_go_of_the_quarantine(known: Asked) -> None:
    record(known, {("south", 1)})
    assert known.json("plan")["totals"]["quarantined"] == 1
    assert known.text("retry", job="orders") == "1 failed ranges will be tried again.\n"
    assert known.json("plan")["totals"]["failed"] == 1
    assert known.text("retry") == "No failed ranges to retry.\n"


def test_an_edit_is_written_down_and_can_be_undone(known: Asked) -> None:
    argv = ("--from", "2020-01-02", "--to", "2020-01-03", "--unit", "shop=south", "--note", "loaded by hand")
    said = known.text("edit", *argv, "--covered")
    assert said == "Recorded as event 2; `--undo 2` reverts it.\n"
    assert known.lines("status")[1] == "complete through: 2020-01-08"
    assert known.lines("history", "--events")[1] == "2 edit now ann@desk 2020-01-02 2020-01-03 loaded by hand"
    assert known.text("edit", "--undo", "2", job="orders") == "Undid event 2.\n"
    assert known.lines("status")[1] == "complete through: 2020-01-02"
    known.text("edit", "--from", "2020-01-05", "--to", "P5D", "--missing")
    assert known.json("plan")["totals"]["gap"] == 2


REFUSED: dict[str, tuple[list[str], str]] = {
    "a job that is not known": (["history", "--json", "nowhere"], "[unknown-job]"),
    "a file that is not there": (["status", "nowhere.toml"], "[job-file-missing]"),
    "half a range": (["retry", "orders", "--from", "2020-01-01"], "Only --from is set."),
    "a reversed range": (["edit", "orders", "--covered", "--from", "P1D", "--to", "P2D"], "Swap --from and --to"),
    "an empty range": (["edit", "orders", "--covered", "--from", "P1D", "--to", "P1D"], "name a later --to"),
    "an edit of nothing": (["edit", "orders", "--covered"], "An edit needs a range."),
    "a time that is none": (["retry", "orders", "--from", "yesterday", "--to", "-"], "[bound-invalid]"),
    "a unit that is not known": (
        ["edit", "orders", "--missing", "--from", "P2D", "--to", "P1D", "--unit", "suoth"],
        "Did you mean 'south'?",
    ),
    "an event that is none": (["edit", "orders", "--undo", "99"], "99"),
}


@pytest.mark.parametrize(("argv", "said"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(argv: list[str], said: str, known: Asked) -> None:
    action, *rest = argv
    job = next(one for one in rest if not one.startswith("-"))
    rest.remove(job)
    assert said in known.error(action, *rest, job=job)


def test_a_unit_is_named_by_key_by_field_or_by_value_if_that_is_clear() -> None:
    known = ['{"id":"7"}', '{"id":7}', '{"id":8}', '{"a":1,"b":2}']
    assert find_unit_keys(None, known, "orders") is None
    assert find_unit_keys(['{"id":7}', "8", "a=1, b=2"], known, "orders") == ['{"id":7}', '{"id":8}', '{"a":1,"b":2}']
    with pytest.raises(UnknownUnit, match="2 units are called '7'"):
        find_unit_keys(["7"], known, "orders")


def test_what_is_done_while_a_run_goes_on_is_refused(known: Asked) -> None:
    with Home.open(known.home) as home, Ingestion(home).start(load_job(known.path).job, owner="bot"):
        for argv in (("edit", "--covered", "--from", "P2D", "--to", "P1D"), ("retry",)):
            assert "[job-running]" in known.error(*argv)
        assert known.lines("status")[5] == "running: 2, running, now, by bot: 0 succeeded, 0 failed"


def test_without_a_home_only_a_plan_has_an_answer(asked: Asked) -> None:
    for action in ("status", "gaps", "retry", "history"):
        assert "[home-missing]" in asked.error(action)
    assert not asked.home.exists()


WRONG: dict[str, tuple[list[str], str]] = {
    "no action": ([], "required: ACTION"),
    "an unknown action": (["paln", "x"], "invalid choice: 'paln'"),
    "no job": (["plan"], "required: JOB"),
    "no range of a backfill": (["backfill", "x"], "required: --from, --to"),
    "an edit of neither kind": (["edit", "x", "--from", "P2D", "--to", "P1D"], "--covered"),
    "no rows": (["plan", "x", "--rows", "0"], "must be above 0"),
}


@pytest.mark.parametrize(("argv", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_exits_with_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["ingest", *argv])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


# --- properties files ------------------------------------------------------------------------------------------------


def test_what_a_properties_file_does_not_say_is_said_aloud(asked: Asked) -> None:
    path = asked.path.with_suffix(".properties")
    path.write_text("ms.work.unit.partition=daily\nms.source.uri=https://x\n")
    out, err = asked.run("plan", job=str(path))
    assert "(America/Los_Angeles)" in out
    assert err.splitlines() == [
        f"floodmark: {path}: No zone is set: using America/Los_Angeles, as DIL does. "
        "Set source.timezone to choose another.",
        f"floodmark: {path}: No time range is set: using 2019-01-01 to now, as DIL does.",
        f"floodmark: {path}: Not translated: ms.source.uri.",
    ]
    assert len(asked.json("plan", job=str(path))["notes"]) == 3


# --- run -------------------------------------------------------------------------------------------------------------


def test_a_run_of_a_job_without_a_target_is_refused(asked: Asked) -> None:
    asked.path.write_text(FILE.partition("[source]")[0])
    assert "names no source" in asked.error("run")
    assert not asked.home.exists()


class Counting:
    """Lands nothing, counts all, and fails where it is told to."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.is_closed = False

    def prepare(self, run: Run) -> None:
        pass

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        if row.range == Range(START + self.failing * DAY, START + (self.failing + 1) * DAY):
            raise TimeoutError("no answer")
        return LandingResult(rows=10)

    def finish(self, run: Run) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    executor = Counting(failing=2)
    monkeypatch.setattr(_ingest, "_executor", lambda job, home, workers: executor)
    yield executor
    assert executor.is_closed


def test_a_run_tells_what_it_did_and_its_exit_code_that_something_failed(asked: Asked, executor: Counting) -> None:
    out, err = asked.run("run", code=1)
    assert out.splitlines() == [
        "orders: run 1: 13 of 15 planned ranges read, 130 rows landed.",
        "  warning: TimeoutError: no answer",
    ]
    assert "2 of 15 planned ranges failed." in err
    assert "[cells-failed]" in err
    executor.failing = -1
    assert asked.text("run") == "orders: run 2: 9 of 9 planned ranges read, 90 rows landed.\n"
    found = asked.json("run")
    assert (found["run"], found["failed"], found["errors"]) == (3, 0, [])


def test_on_a_terminal_a_run_shows_how_far_it_is(
    asked: Asked, executor: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[object, ...]] = []
    update = Progress.update

    def updated(bar: Progress, task: TaskID, **fields: Any) -> None:
        update(bar, task, **fields)
        shown.append((bar.tasks[0].completed, bar.tasks[0].total, fields["counts"]))

    monkeypatch.setattr(Progress, "update", updated)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    asked.run("run", code=1)
    assert (len(shown), shown[-1]) == (15, (15, 15, "130 rows, 2 failed"))


def test_a_secret_that_is_missing_stops_a_run_and_a_plan_but_not_a_look(known: Asked) -> None:
    known.path.write_text(FILE.replace('table = "orders"', 'table = "orders"\npassword = "env:FLOODMARK_NO_SUCH"'))
    for action in ("plan", "run"):
        assert "[secret-missing]" in known.error(action)
        assert "orders.toml, line 16: " in known.error(action)
    assert known.lines("status")[0].startswith("orders: 8 cells")


# --- as a process ----------------------------------------------------------------------------------------------------

WITHOUT_SPARK = """
import json, os, sys
from floodmark.cli import main
os.chdir(sys.argv[1])
for argv in json.loads(sys.argv[2]):
    print("exit", main(["ingest", *argv, "--home", "home"]), flush=True)
assert not {name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "pyarrow")}
"""


def test_a_process_plans_edits_and_explains_without_spark(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(FILE)
    commands = [
        ["backfill", "orders.toml", "--from", "2020-01-01", "--to", "2020-01-03"],
        ["edit", "orders.toml", "--covered", "--from", "2020-01-01", "--to", "-"],
        ["plan", "orders.toml", "--json"],
        ["plan", "nowhere.toml"],
    ]
    code, printed = run("-c", WITHOUT_SPARK, str(tmp_path), json.dumps(commands))
    assert code == 0, printed
    outputs = re.split(r"^exit (\d)\n", printed, flags=re.MULTILINE)
    assert outputs[1::2] == ["0", "0", "0", "1"]
    assert json.loads(outputs[4])["totals"]["new"] == 0
    # The last one prints to stderr only, and it alone.
    assert outputs[6] == ""
    assert outputs[8].startswith("floodmark: There is no job file nowhere.toml.")
