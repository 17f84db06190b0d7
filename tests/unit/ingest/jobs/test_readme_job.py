"""The job file of the README is one, and its plan is what the README shows."""

import re
from pathlib import Path

import pytest

from floodmark.cli import main
from floodmark.control import Home
from floodmark.ingest import Bound, Ingestion, load_job

README = (Path(__file__).parents[4] / "README.md").read_text(encoding="utf-8")


def test_the_plan_of_the_readme_is_that_of_its_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)[0])
    job = load_job(path).job
    moments = [Bound.parse(f"2026-01-{day} 09:00:00", job.zone).at for day in (30, 31)]
    clock = [moments[0]]
    with (
        Home.open(tmp_path / "home", clock=lambda: clock[0] or 0) as home,
        Ingestion(home).start(job, owner="x") as run,
    ):
        for row in run.plan.rows:
            if row.unit.fields["shop"] == "south" and job.shown(row.range.lo).startswith("2026-01-12"):
                run.failed(row, "timed out")
            else:
                run.succeeded(row)
    assert main(["ingest", "plan", str(path), "--home", str(tmp_path / "home")], now=moments[1]) == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    shown = README.partition("$ floodmark ingest plan orders.toml\n")[2].partition("\n\n")[0]
    expected = [" ".join(line.split()) for line in shown.splitlines() if line.strip() != "..."]
    assert [line for line in printed if line in expected] == expected
