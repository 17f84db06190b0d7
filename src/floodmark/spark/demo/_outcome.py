"""What a query made of the orders, next to what it should have made of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from floodmark.spark.demo._orders import MINUTE

Minutes = Mapping[int, Mapping[str, int]]
"""The number of orders of each origin, by the beginning of the minute."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many orders and windows came out, and where the others are.

    An order is *lost* if its window has closed without it, and *waiting* if its window is still open.
    """

    rows_in: int
    lost: Mapping[str, int]
    waiting: Mapping[str, int]
    windows_emitted: int
    windows_wrong: int
    windows_missing: int
    watermark: int
    """Where Spark's own watermark stood at the end, in microseconds, whoever put it there."""

    @property
    def rows_lost(self) -> int:
        """Return how many orders no window will ever count."""
        return sum(self.lost.values())

    @property
    def rows_waiting(self) -> int:
        """Return how many orders are in windows that are still open."""
        return sum(self.waiting.values())

    @property
    def is_right(self) -> bool:
        """Return whether every window came out with every order in it."""
        return not (self.rows_lost or self.rows_waiting or self.windows_wrong or self.windows_missing)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both outcomes of one case, and why they differ."""

    case: str
    plain: Outcome
    floodmark: Outcome
    plain_code: str
    floodmark_code: str
    why: str


def judge(expected: Minutes, emitted: Iterable[tuple[int, Mapping[str, int]]], watermark: int) -> Outcome:
    """Compare the minutes that a query has emitted with the right ones.

    >>> right = {0: {"a": 2, "b": 1}, 60_000_000: {"a": 1, "b": 1}}
    >>> outcome = judge(right, [(0, {"a": 2, "b": 0})], watermark=60_000_000)
    >>> outcome.lost, outcome.waiting, outcome.windows_wrong, outcome.windows_missing
    ({'b': 1}, {'a': 1, 'b': 1}, 1, 1)
    """
    found = list(emitted)
    counted: dict[int, Counter[str]] = {}
    for start, counts in found:
        counted.setdefault(start, Counter()).update(counts)
    lost, waiting = Counter[str](), Counter[str]()
    for start, origins in expected.items():
        is_closed = start in counted or start + MINUTE <= watermark
        kept = counted.get(start, Counter())
        for origin, rows in origins.items():
            (lost if is_closed else waiting)[origin] += rows - min(rows, kept[origin])
    right = sum(counted[start] == Counter(expected[start]) for start in counted.keys() & expected.keys())
    return Outcome(
        rows_in=sum(sum(origins.values()) for origins in expected.values()),
        lost=dict(+lost),
        waiting=dict(+waiting),
        windows_emitted=len(found),
        windows_wrong=len(found) - right,
        windows_missing=len(expected.keys() - counted.keys()),
        watermark=watermark,
    )
