"""Durations as users write them: long and short units."""

import pytest

from floodmark._util.times import duration_micros
from floodmark.errors import InvalidOption

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("10s", 10 * SECOND),
        ("10 sec", 10 * SECOND),
        ("5m", 300 * SECOND),
        ("5 min", 300 * SECOND),
        ("2h", 7_200 * SECOND),
        ("1d 12h", 36 * 3_600 * SECOND),
        ("1w", 7 * 86_400 * SECOND),
        ("250ms", 250_000),
        ("7us", 7),
        ("3 Minutes", 180 * SECOND),
    ],
)
def test_short_and_long_units_mean_the_same(text: str, micros: int) -> None:
    assert duration_micros(text, "delay") == micros


@pytest.mark.parametrize("text", ["5M", "5 S", "10", "s", "1.5s", "5 months", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        duration_micros(text, "delay")


def test_the_least_duration_is_accepted_and_nothing_below_it() -> None:
    assert duration_micros("1 second", "ttl", least=SECOND) == SECOND
    with pytest.raises(InvalidOption):
        duration_micros("999999us", "ttl", least=SECOND)
