"""Who reads which segment: by how far each is behind in time, and else by their number. One move at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from floodmark.streams.readers._state import Share

_CLEAR_PART: Final = 4
"""A move for the sake of time must take at least one part in so many off the greater load."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: which free segments go to whom, and which segment its reader should give back."""

    assigned: Mapping[Share, str] = field(default_factory=dict)
    given_back: Share | None = None


@dataclass(slots=True)
class _Load:
    """What a reader has to do: the sum of the lags of its segments, and how many they are."""

    reader: str
    lags: dict[Share, int]
    lag: int = field(init=False)

    def __post_init__(self) -> None:
        self.lag = sum(self.lags.values())

    def take(self, share: Share, lag: int) -> None:
        self.lags[share] = lag
        self.lag += lag

    @property
    def order(self) -> tuple[int, int, str]:
        """The least behind comes first, then who has the fewest: so whoever has nothing is before all others."""
        return self.lag, len(self.lags), self.reader


def plan(
    readers: Mapping[str, Iterable[Share]],
    free: Iterable[Share],
    lags: Mapping[Share, int],
    *,
    is_giving: bool = False,
) -> Plan:
    """Return who reads the free segments, and which segment should change hands.

    The segment furthest behind goes first, to the reader that has the least to catch up with. Nobody is asked for a
    segment while another one is on its way (`is_giving`), or for little: what does not change gives the same plan.

    >>> plan({"r1": [], "r2": []}, [("s", 0), ("s", 1), ("s", 2)], {("s", 2): 60}).assigned
    {('s', 2): 'r1', ('s', 0): 'r2', ('s', 1): 'r2'}
    >>> plan({"r1": [("s", 0), ("s", 1)], "r2": []}, [], {}).given_back
    ('s', 0)
    """
    loads = [_Load(reader, {share: lags.get(share, 0) for share in shares}) for reader, shares in readers.items()]
    if not loads:
        return Plan()
    assigned: dict[Share, str] = {}
    for share in sorted(free, key=lambda share: (-lags.get(share, 0), share)):
        load = min(loads, key=lambda load: load.order)
        load.take(share, lags.get(share, 0))
        assigned[share] = load.reader
    if is_giving:
        return Plan(assigned)
    moved = _to_catch_up(loads)
    return Plan(assigned, _to_share_out(loads) if moved is None else moved)


def _to_catch_up(loads: list[_Load]) -> Share | None:
    """Return what the reader furthest behind should give to the one least behind, if that helps clearly."""
    giver = max(loads, key=lambda load: (load.lag, load.reader))
    taker = min(loads, key=lambda load: (load.lag, load.reader))
    best: tuple[int, int, Share] | None = None
    for share, lag in giver.lags.items():
        left = max(giver.lag - lag, taker.lag + lag)
        if (giver.lag - left) * _CLEAR_PART >= giver.lag > left:
            best = min(best or (left, lag, share), (left, lag, share))
    return None if best is None else best[2]


def _to_share_out(loads: list[_Load]) -> Share | None:
    """Return what a reader with many segments should give to one with few, if that leaves nobody further behind.

    So each move takes something off the greatest lag, or leaves the lags and evens out the numbers: the moves end.
    """
    best: tuple[int, int, Share] | None = None
    for giver in loads:
        for taker in loads:
            difference = len(giver.lags) - len(taker.lags)
            if difference < 2:
                continue
            for share, lag in giver.lags.items():
                if taker.lag + lag <= giver.lag:
                    choice = (-difference, taker.lag + lag, share)
                    best = min(best or choice, choice)
    return None if best is None else best[2]
