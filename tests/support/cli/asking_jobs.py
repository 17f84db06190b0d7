"""What tests of `floodmark ingest` share: a job file, a home whose clock stands still, and what is printed of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli import main
from floodmark.control import Home
from floodmark.ingest import Ingestion, load_job

DAY = 86_400_000_000
START = 1_577_836_800_000_000
"""2020-01-01 UTC."""
NOW = START + 10 * DAY + DAY // 2

FILE = """\
[job]
name = "orders"
zone = "UTC"
[time]
from = 2020-01-01
to = "P0D"
grid = "daily"
grace_days = 1
[units]
name = "shop"
list = "north, south"
[source]
kind = "sql"
url = "sqlite:///shop.db"
table = "orders"
watermark = "at"
[target]
mode = "replace"
path = "landed"
[limits]
cells = 15
attempts = 2
"""


class Asked:
    """A job file, a home whose clock stands still, and what the command prints about them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = folder / "orders.toml"
        self.path.write_text(FILE)
        self.home = folder / "home"
        self._capsys = capsys

    def run(self, action: str, *argv: str, job: str | None = None, code: int = 0) -> tuple[str, str]:
        arguments = ["ingest", action, job or str(self.path), "--home", str(self.home), *argv]
        assert main(arguments, now=NOW) == code
        printed = self._capsys.readouterr()
        return printed.out, printed.err

    def text(self, action: str, *argv: str, job: str | None = None) -> str:
        return self.run(action, *argv, job=job)[0]

    def json(self, action: str, *argv: str, job: str | None = None) -> Any:
        return json.loads(self.text(action, "--json", *argv, job=job))

    def error(self, action: str, *argv: str, job: str | None = None) -> str:
        out, err = self.run(action, *argv, job=job, code=1)
        assert out == ""
        return err

    def lines(self, action: str, *argv: str, job: str | None = None) -> list[str]:
        text = re.sub("bot/[0-9a-f]+", "bot", self.text(action, *argv, job=job))
        return [" ".join(line.split()) for line in text.splitlines()]


def asking_jobs(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Give a job that was never run, and let all clocks stand still."""
    opened = Home.open
    existing = Home.open_existing
    monkeypatch.setattr(Home, "open", lambda where=None, **_: opened(where, clock=lambda: NOW))
    monkeypatch.setattr(Home, "open_existing", lambda where=None, **_: existing(where, clock=lambda: NOW))
    monkeypatch.setattr("floodmark.cli.ingest_text.actor", lambda: "ann@desk")
    return Asked(folder, capsys)


def record(asked: Asked, failing: set[tuple[str, int]]) -> None:
    with Home.open(asked.home) as home, Ingestion(home).start(load_job(asked.path).job, owner="bot") as run:
        for row in run.plan.rows:
            place = (str(row.unit.fields["shop"]), (row.range.lo - START) // DAY)
            if place in failing:
                run.failed(row, "timed out\nat line 7", took=5_000_000)
            else:
                run.succeeded(row, rows=100, took=1_000_000)
