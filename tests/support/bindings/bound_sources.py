"""What tests of stored bindings share: a source that ticks in milliseconds, as the scenarios do, and its rows."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import func, select

from floodmark.bindings import BindingHistory, Bindings
from floodmark.bindings.tables import HOLDS, PAIRS, SOURCES, WATERMARK_STEPS
from floodmark.control import Home
from floodmark.testing import ManualClock

MS = 1000
"""The scenarios count in milliseconds, the store in microseconds."""


class Source:
    """The source S of the scenarios, with a clock in milliseconds. `ends` is how far its partitions are filled."""

    def __init__(
        self, home: Home, clock: ManualClock, failpoint: Callable[[str], None] | None = None, **settings: Any
    ) -> None:
        self.home = home
        self.clock = clock
        options = {} if failpoint is None else {"failpoint": failpoint}
        self.bindings = Bindings(home, own_clock=clock.now, **options)
        self.ends: dict[int, int] = {}
        self.bindings.register("S", kind="stream", identity={"stream": 1}, **settings)

    def at(self, now: int) -> "Source":
        """Set the clock."""
        self.clock.advance(now * MS - self.clock.now())
        return self

    def tick(self, **ends: int) -> bool:
        """Fill partitions, p0=5 and so on, and tick."""
        self.ends |= {int(name[1:]): end for name, end in ends.items()}
        return self.bindings.tick("S", lambda: self.ends).minted

    @property
    def history(self) -> BindingHistory:
        return self.bindings.history("S")

    @property
    def since(self) -> float:
        return self.bindings.source("S").since / MS

    @property
    def upper(self) -> float:
        return self.bindings.source("S").upper / MS

    def pairs(self, partition: int = 0) -> list[tuple[float, int]]:
        """Return the pairs of a partition as another process reads them, in milliseconds."""
        fresh = Bindings(self.home).history("S")
        return [(pair.ts / MS, pair.end) for pair in fresh.pairs() if pair.partition == partition]

    def ts_of(self, partition: int, offset: int) -> float | None:
        ts = self.history.ts_of(partition, offset)
        return None if ts is None else ts / MS

    def hold(self, holder: str, ts: float, kind: str = "sink") -> None:
        self.bindings.hold("S", holder, int(ts * MS), kind)


def count(home: Home) -> dict[str, int]:
    """Return how many rows each table of bindings has."""
    with home.read() as connection:
        return {
            table.name.removeprefix("binding_"): connection.execute(
                select(func.count()).select_from(table)
            ).scalar_one()
            for table in (SOURCES, PAIRS, WATERMARK_STEPS, HOLDS)
        }


def check_rows(home: Home) -> None:
    """Check what must hold of the stored rows, whatever happened: each source's pairs rise and fit its frontiers."""
    with home.read() as connection:
        for row in connection.execute(select(SOURCES)).all():
            assert row.origin <= row.since <= row.upper
            pairs: dict[int, list[tuple[int, int]]] = {}
            wanted = select(PAIRS).where(PAIRS.c.source_id == row.source_id).order_by(PAIRS.c.part, PAIRS.c.ts)
            for pair in connection.execute(wanted):
                pairs.setdefault(pair.part, []).append((pair.ts, pair.end_offset))
            for rows in pairs.values():
                assert all(row.since <= ts < row.upper for ts, _ in rows)
                assert [end for _, end in rows] == sorted(end for _, end in rows)
            holds = connection.execute(select(HOLDS.c.ts).where(HOLDS.c.source_id == row.source_id)).scalars().all()
            assert all(row.since <= ts for ts in holds)
