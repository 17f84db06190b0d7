"""Each wall time is of exactly one range, and is read as a moment of it."""

from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.ingest import Range
from floodmark.ingest.calendar.clock import (
    EPOCH,
    HOUR,
    MICROSECOND,
    wall_not_before,
    wall_spans,
    wall_to_micros,
    wall_to_moment,
    zone_of,
)

BERLIN = zone_of("Europe/Berlin")
ZONES = ("Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia", "UTC")


def at(text: str, fold: int = 0) -> int:
    return wall_to_micros(datetime.fromisoformat(text).replace(fold=fold), BERLIN)


def wall_of(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=EPOCH.tzinfo) - EPOCH) // MICROSECOND


FALL = Range(at("2020-10-25T00:00"), at("2020-10-26T00:00"))
FIRST = Range(at("2020-10-25T02:00"), at("2020-10-25T02:00", fold=1))
SECOND = Range(FIRST.hi, at("2020-10-25T03:00"))
SPRING = Range(at("2020-03-29T00:00"), at("2020-03-30T00:00"))
MOMENTS: dict[str, tuple[Range, str, int | None]] = {
    "a day begins": (FALL, "2020-10-25T00:00", FALL.lo),
    "the day before": (FALL, "2020-10-24T23:59:59.999999", None),
    "the day after": (FALL, "2020-10-26T00:00", None),
    "an hour that comes twice": (FALL, "2020-10-25T02:30", at("2020-10-25T02:30", fold=1)),
    "just before it": (FALL, "2020-10-25T01:59", at("2020-10-25T01:59")),
    "after it": (FALL, "2020-10-25T03:00", at("2020-10-25T03:00")),
    "it is not of the first hour": (FIRST, "2020-10-25T02:30", None),
    "but of the second": (SECOND, "2020-10-25T02:30", at("2020-10-25T02:30", fold=1)),
    "from its beginning on": (SECOND, "2020-10-25T02:00", SECOND.lo),
    "up to its end": (SECOND, "2020-10-25T03:00", None),
    "an hour that is skipped": (SPRING, "2020-03-29T02:30", at("2020-03-29T03:00")),
    "is not of what comes before": (Range(SPRING.lo, at("2020-03-29T03:00")), "2020-03-29T02:30", None),
    "but of what comes after": (
        Range(at("2020-03-29T03:00"), SPRING.hi),
        "2020-03-29T02:30",
        at("2020-03-29T03:00"),
    ),
    "after the skip": (SPRING, "2020-03-29T03:00", at("2020-03-29T03:00")),
    "years later": (Range(0, at("2020-07-01T00:00")), "2019-07-01T12:00", at("2019-07-01T12:00")),
}


@pytest.mark.parametrize(("of", "shown", "expected"), MOMENTS.values(), ids=MOMENTS)
def test_a_wall_time_is_a_moment_of_a_range_or_none(of: Range, shown: str, expected: int | None) -> None:
    assert wall_to_moment(wall_of(shown), wall_spans(of, BERLIN)) == expected


def test_years_have_two_changes_each() -> None:
    spans = wall_spans(Range(at("2010-01-01T00:00"), at("2020-01-01T00:00")), BERLIN)
    assert len(spans) == 1 + 20 + 1
    assert [span.offset // HOUR for span in spans[:3]] == [1, 2, 1]


SPAN = 40 * 365 * 24 * HOUR


@given(
    st.sampled_from(ZONES),
    st.integers(0, SPAN),
    st.lists(st.integers(0, 80 * HOUR), min_size=3, max_size=3),
    st.integers(-30 * HOUR, 100 * HOUR),
)
@example("Europe/Berlin", FIRST.lo, [0, HOUR, 2 * HOUR], 2 * HOUR)
@example("Europe/Berlin", at("2020-03-29T01:00"), [0, HOUR, 2 * HOUR], 2 * HOUR)
@example("Australia/Lord_Howe", 1_585_999_800_000_000, [0, HOUR, 2 * HOUR], 10 * HOUR)
@example("Pacific/Apia", 1_325_239_200_000_000, [0, HOUR, 30 * HOUR], 20 * HOUR)
def test_ranges_that_touch_share_no_wall_time_and_leave_none_out(
    zone: str, start: int, steps: list[int], shift: int
) -> None:
    there = zone_of(zone)
    lo, middle, hi = (start + step for step in sorted(steps))
    shown = start + shift
    parts = [Range(lo, middle), Range(middle, hi)]
    found = [wall_to_moment(shown, wall_spans(part, there)) for part in parts]
    whole = wall_to_moment(shown, wall_spans(Range(lo, hi), there))
    assert [one for one in found if one is not None] == ([] if whole is None else [whole])
    of = dict(zip([*parts, Range(lo, hi)], [*found, whole], strict=True))
    assert all(one is None or part.lo <= one < part.hi for part, one in of.items())
    first, last = (
        (wall_not_before(end, there).replace(tzinfo=EPOCH.tzinfo) - EPOCH) // MICROSECOND for end in (lo, hi)
    )
    assert (whole is not None) == (first <= shown < last)
