"""What tests of "why?" share: a clock that stands still, sources in many states, and what is printed of them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from floodmark._util.codec import JsonValue
from floodmark.cli import main
from floodmark.control import Home, Queries, QueryRecord, WatermarkSteps
from floodmark.progress import BoundedDisorder, Generator, Idleness, OriginWatermarks

SECOND = 1_000_000
MINUTE = 60 * SECOND
NOON = 1_699_963_200 * SECOND
"""2023-11-14 12:00:00 UTC."""
NOW = NOON + 20 * MINUTE
ORDERS = QueryRecord(
    query_id="6f1c0a22",
    run_id="r1",
    name="orders",
    batch_id=41,
    incarnations=(("a", 0, "order_time"),),
    spark_watermark=(NOON + 3 * MINUTE) // 1000 - 1,
    state="running",
    error=None,
    warnings=(),
    started_at=NOON,
    updated_at=NOW - 5 * SECOND,
)


class Asked:
    """A home, and what `floodmark why` prints about it."""

    def __init__(self, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self.steps = WatermarkSteps(home)
        self.queries = Queries(home)
        self._capsys = capsys

    def keep(
        self,
        source: OriginWatermarks,
        column: str = "order_time",
        incarnation: str = "a",
        settings: JsonValue = None,
    ) -> None:
        """Keep a source as the first step of an incarnation."""
        self.steps.create(incarnation, settings, now=NOON)
        self.steps.add(incarnation, 0, source.current(column), source.snapshot(), now=NOON + 10 * MINUTE)

    def text(self, *argv: str, command: str = "why") -> str:
        """Return what a person reads."""
        assert main([command, *argv, "--home", str(self.home.path)], now=NOW) == 0
        return self._capsys.readouterr().out

    def json(self, *argv: str, command: str = "why") -> Any:
        """Return what a program reads."""
        return json.loads(self.text(*argv, "--json", command=command))

    def column(self) -> Any:
        """Return the only column of the query, as a program reads it."""
        (column,) = self.json("orders")["columns"]
        return column

    def error(self, *argv: str, command: str = "why") -> str:
        """Return what is said when it fails."""
        assert main([command, *argv, "--home", str(self.home.path)], now=NOW) == 1
        return self._capsys.readouterr().err


@contextmanager
def asking(path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Asked]:
    """Give a home with one query, to be asked about."""
    with Home.open(path) as home:
        asked = Asked(home, capsys)
        asked.queries.record(ORDERS)
        yield asked


DELAYED = BoundedDisorder(MINUTE)


def source_of(origins: Mapping[str, int | None], generator: Generator = DELAYED) -> OriginWatermarks:
    """Return a source whose origins have sent one row each, so many minutes after noon, or none."""
    source = OriginWatermarks(
        {"order_time": generator}, origins=origins, now=NOON, idle=Idleness(timeout=MINUTE), future=60 * MINUTE
    )
    for place, (origin, minutes) in enumerate(origins.items()):
        if minutes is not None:
            source.event(origin, {"order_time": NOON + minutes * MINUTE}, now=NOON + (5 + place) * MINUTE)
    return source


def all_idle() -> OriginWatermarks:
    source = source_of({"p0": 4, "p1": 5})
    source.tick(NOON + 60 * MINUTE, caught_up=True)
    return source


def all_finished() -> OriginWatermarks:
    source = source_of({"p0": 4})
    source.finish("p0", now=NOON + 9 * MINUTE)
    return source


def revived_behind(revived: Any) -> OriginWatermarks:
    source = OriginWatermarks({"order_time": DELAYED}, origins=["p0", "p1"], now=NOON, revived=revived)
    source.event("p0", {"order_time": NOON + 2 * MINUTE}, now=NOON)
    source.event("p1", {"order_time": NOON + 9 * MINUTE}, now=NOON)
    source.declare_idle("p0", now=NOON)
    source.event("p0", {"order_time": NOON + 3 * MINUTE}, now=NOON)
    return source


def only_laggards() -> OriginWatermarks:
    source = revived_behind("exclude")
    source.finish("p1", now=NOON)
    return source
