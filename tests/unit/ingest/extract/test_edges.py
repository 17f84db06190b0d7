"""Ranges that touch read each row once, whatever a watermark column holds and whatever clocks do."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.errors import InvalidOption
from floodmark.ingest.calendar.clock import wall_not_before, wall_to_micros
from floodmark.ingest.job.source import check_text_pattern, first_value_at
from support.ingest.sql_reading import START, clock, micros

# An hour, half an hour, at midnight, a day that was left out, none.
CHANGES = {
    "Europe/Berlin": ("2020-03-29T01:00+00:00", "2020-10-25T01:00+00:00"),
    "America/Los_Angeles": ("2020-03-08T10:00+00:00", "2020-11-01T09:00+00:00"),
    "Australia/Lord_Howe": ("2020-04-04T15:00+00:00", "2020-10-03T15:30+00:00"),
    "America/Havana": ("2020-03-08T05:00+00:00", "2020-11-01T05:00+00:00"),
    "Pacific/Apia": ("2011-12-30T10:00+00:00",),
    "UTC": ("2020-02-29T00:00+00:00",),
}
PATTERNS = {
    "%Y%m%d": timedelta(days=1),
    "%Y-%m-%d %H": timedelta(hours=1),
    "%Y-%m-%dT%H:%M": timedelta(minutes=1),
    "%Y-%m-%dT%H:%M:%S.%fZ": timedelta(microseconds=1),
}
PLACES = st.sampled_from([(zone, micros(change)) for zone, changes in CHANGES.items() for change in changes])
MORE = st.builds(
    lambda minutes, more: minutes * 60_000_000 + more,
    st.integers(-20, 20).map(lambda number: number * 15),
    st.sampled_from((0, 0, 1, -1, 30_000_000)),
)


def near(place: tuple[str, int], at: int, value: int) -> tuple[str, int, datetime]:
    """Return a zone, a moment near a change of its clocks, and what a clock may show near it."""
    zone, change = place
    shown = START + timedelta(microseconds=change + value)
    offset = ZoneInfo(zone).utcoffset(shown)
    assert offset is not None
    return zone, change + at, shown + offset


@given(place=PLACES, at=MORE, value=MORE)
@example(place=("Europe/Berlin", micros("2020-10-25T01:00+00:00")), at=-30 * 60_000_000, value=-45 * 60_000_000)
def test_a_wall_time_is_not_before_the_edge_of_a_moment_exactly_if_its_own_moment_is_not_before_it(
    place: tuple[str, int], at: int, value: int
) -> None:
    zone, at, wall = near(place, at, value)
    later = wall_to_micros(wall.replace(fold=1), ZoneInfo(zone))
    assert (wall >= wall_not_before(at, ZoneInfo(zone))) == (later >= at)


@given(place=PLACES, at=MORE, value=MORE)
def test_a_date_is_its_midnight(place: tuple[str, int], at: int, value: int) -> None:
    zone, at, wall = near(place, at, value)
    day = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    later = wall_to_micros(day.replace(fold=1), ZoneInfo(zone))
    found = first_value_at(at, "date", zone)
    assert isinstance(found, type(day.date()))
    assert (day.date() >= found) == (later >= at)


@given(place=PLACES, at=MORE, value=MORE, pattern=st.sampled_from(tuple(PATTERNS)))
def test_a_text_is_the_first_time_that_is_written_so(place: tuple[str, int], at: int, value: int, pattern: str) -> None:
    zone, at, shown = near(place, at, value)
    wall = START + (shown - START) // PATTERNS[pattern] * PATTERNS[pattern]
    later = wall_to_micros(wall.replace(fold=1), ZoneInfo(zone))
    found = first_value_at(at, "text", zone, pattern)
    assert isinstance(found, str)
    assert (wall.strftime(pattern) >= found) == (later >= at)


@given(at=MORE, value=st.integers(-5, 5))
@pytest.mark.parametrize(("kind", "unit"), [("epoch-seconds", 1_000_000), ("epoch-millis", 1_000), ("epoch-micros", 1)])
def test_an_epoch_is_a_number_of_units(kind: str, unit: int, at: int, value: int) -> None:
    number = at // unit + value
    found = first_value_at(at, kind, "UTC")  # type: ignore[arg-type]
    assert isinstance(found, int)
    assert (number >= found) == (number * unit >= at)


@given(place=PLACES, moments=st.lists(MORE, min_size=2, max_size=8))
@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "date", "epoch-seconds", "text"])
def test_a_later_moment_has_no_smaller_edge(kind: str, place: tuple[str, int], moments: list[int]) -> None:
    zone, change = place
    pattern = "%Y-%m-%d %H" if kind == "text" else None
    edges = [first_value_at(change + at, kind, zone, pattern) for at in sorted(moments)]  # type: ignore[arg-type]
    assert edges == sorted(edges)


def test_the_hour_that_comes_twice_is_read_when_it_is_over() -> None:
    zone = ZoneInfo("Europe/Berlin")
    hours = [f"2020-10-25T0{hour}:00+00:00" for hour in range(4)]
    edges = [wall_not_before(micros(hour), zone).isoformat() for hour in hours]
    # The range from 00:00 to 01:00 UTC, in which it is shown first, has nothing of it.
    assert edges == [f"2020-10-25T{text}:00:00" for text in ("02", "02", "03", "04")]


def test_the_hour_that_is_skipped_belongs_to_the_moment_of_the_skip() -> None:
    zone = ZoneInfo("Europe/Berlin")
    skip = micros("2020-03-29T01:00+00:00")
    assert wall_not_before(skip, zone) == clock("2020-03-29T02:00")
    assert wall_not_before(skip + 1, zone) == clock("2020-03-29T03:00:00.000001")


def test_a_coarse_text_is_read_by_the_range_in_which_it_begins() -> None:
    noon, midnight = micros("2020-01-01T12:00"), micros("2020-01-02T00:00")
    assert first_value_at(noon, "text", "UTC", "%Y%m%d") == "20200102"
    assert first_value_at(midnight, "text", "UTC", "%Y%m%d") == "20200102"
    assert first_value_at(micros("2020-06-01"), "text", "UTC", "%Y") == "2021"


@pytest.mark.parametrize(
    "pattern",
    ["%d.%m.%Y", "%Y-%d-%m", "%Y-%b-%d", "%Y-%m-%d %I:%M", "%H:%M", "%y%m%d", "constant", "%Y-%m-%d%z", "%Y %M:%S"],
)
def test_a_pattern_that_does_not_sort_as_time_does_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOption, match="pattern"):
        check_text_pattern(pattern)


@pytest.mark.parametrize("pattern", [*PATTERNS, "%Y", "%Y-%m", "%Y/%m/%d", "%Y-%m-%d", "%Y%j"])
def test_a_pattern_that_sorts_as_time_does_is_taken(pattern: str) -> None:
    check_text_pattern(pattern)
