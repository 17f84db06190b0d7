"""Claims about how time is cut into cells. S41 to S54 are rows of the reference."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from floodmark.errors import GridInvalid, RangeInvalid
from floodmark.ingest import Bound, Grid, Range
from floodmark.ingest.calendar.clock import EARLIEST, day_number, days_before, micros_to_wall, wall_to_micros, zone_of
from floodmark.ingest.planning.plan import plan
from support.examples import examples
from support.ingest.ingest_jobs import LA, at, job_of

DAY = 86_400_000_000
ZONES = ("UTC", LA, "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo", "Pacific/Apia")


def composite(text: str, zone: str = "UTC") -> Grid:
    """Read `yearly 2017-01-01 2020-02-01, daily 2020-02-01 -`."""
    parts = [part.split() for part in text.split(", ")]
    return Grid.composite(
        [(kind, Bound.parse(lo, zone), None if hi == "-" else Bound.parse(hi, zone)) for kind, lo, hi in parts]
    )


def starts(start: str, to: str, grid: str | Grid, zone: str = LA, *, partial: bool = True) -> list[str]:
    """Return where the planned cells begin, and where the last one ends, as short as can be."""
    job = job_of(start, to, grid, zone=zone, partial=partial)
    rows = plan(job, {}, at("2030-01-01", zone)).rows
    assert all(one.range.hi == other.range.lo for one, other in pairwise(rows))
    edges = [row.range.lo for row in rows] + [row.range.hi for row in rows[-1:]]
    return [
        micros_to_wall(edge, zone_of(zone)).isoformat(" ").removesuffix(":00").removesuffix(" 00:00") for edge in edges
    ]


def dates(text: str) -> list[str]:
    """Read `2020-01-31 02-29 03-31`, where only the first needs a year."""
    first, *others = text.split()
    return [first] + [one if len(one) > 5 else f"{first[:4]}-{one}" for one in others]


@pytest.mark.parametrize(
    ("start", "to", "grid", "zone", "expected"),
    [
        ("2020-01-06", "2020-02-21", "weekly", LA, "2020-01-06 01-13 01-20 01-27 02-03 02-10 02-17 02-21"),  # S44
        ("2020-01-01", "2020-01-16", "weekly", LA, "2020-01-01 01-08 01-15 01-16"),  # S44
        ("2019-01-01", "2019-01-10", "weekly", "UTC", "2019-01-01 01-08 01-10"),  # S44
        ("2020-01-31", "2020-06-01", "monthly", LA, "2020-01-31 02-29 03-31 04-30 05-31 06-01"),  # B13, S52
        (
            "2019-12-31",
            "2020-05-01",
            "monthly",
            LA,
            "2019-12-31 2020-01-31 2020-02-29 2020-03-31 2020-04-30 2020-05-01",
        ),
        ("2020-02-29", "2020-05-01", "monthly", LA, "2020-02-29 03-29 04-29 05-01"),
        ("2020-02-29", "2025-01-01", "yearly", LA, "2020-02-29 2021-02-28 2022-02-28 2023-02-28 2024-02-29 2025-01-01"),
        ("2020-01-05", "2020-04-05", "monthly", LA, "2020-01-05 02-05 03-05 04-05"),  # S41
        ("2020-01-01", "2020-01-05", "none", LA, "2020-01-01 01-05"),
    ],
)
def test_cells_begin_so_many_periods_after_the_start(start: str, to: str, grid: str, zone: str, expected: str) -> None:
    assert starts(start, to, grid, zone) == dates(expected)


def test_monthly_cells_of_a_year_and_a_half() -> None:
    """S43."""
    edges = starts("2019-01-01", "2020-02-21", "monthly")
    assert len(edges) == 13 + 1 + 1
    assert edges[-2:] == ["2020-02-01", "2020-02-21"]
    assert starts("2019-01-01", "2020-02-21", "monthly", partial=False) == edges[:-1]


def test_days_begin_at_the_hour_of_the_start() -> None:
    """S54."""
    edges = starts("2020-02-19 10:00:00", "2020-02-21 12:00:00", "daily")
    assert edges == ["2020-02-19 10:00", "2020-02-20 10:00", "2020-02-21 10:00", "2020-02-21 12:00"]
    assert starts("2020-02-19 10:00:00", "2020-02-21", "daily")[-2:] == ["2020-02-20 10:00", "2020-02-21"]


def test_hours_are_equally_long_whatever_the_clocks_do() -> None:
    """S45."""
    edges = starts("2019-01-01 01:00:00", "2019-01-01 04:05:06", "hourly", "UTC")
    assert edges == [
        "2019-01-01 01:00",
        "2019-01-01 02:00",
        "2019-01-01 03:00",
        "2019-01-01 04:00",
        "2019-01-01 04:05:06",
    ]
    assert len(starts("2019-01-01 01:00:00", "2019-01-01 04:05:06", "hourly", "UTC", partial=False)) == 3 + 1
    assert len(starts("2020-11-01", "2020-11-02", "hourly")) == 25 + 1
    assert len(starts("2020-03-08", "2020-03-09", "hourly")) == 23 + 1


@pytest.mark.parametrize(
    ("grid", "to", "partial", "expected"),
    [
        # S46: the odd end of a part is a cell of its own, whole when the part is over. DIL loses January 2020.
        ("yearly 2017-01-01 2020-02-01, daily 2020-02-01 2020-02-03", "2020-02-03", True, 6),
        ("yearly 2017-01-01 2020-02-01, daily 2020-02-01 2020-02-03", "2020-02-03", False, 6),
        # S47: clipped, where DIL reads beyond `to`.
        ("yearly 2017-01-01 2020-02-01, weekly 2020-02-01 2020-02-11", "2020-02-01", False, 4),
        # S48
        ("yearly 2017-01-01 2020-01-01, weekly 2020-01-01 2020-02-03", "2020-02-03", True, 8),
        ("yearly 2017-01-01 2020-01-01, weekly 2020-01-01 2020-02-03", "2020-02-03", False, 8),
        ("yearly 2017-01-01 2020-01-01, daily 2020-01-01 2020-02-03", "2020-02-03", True, 36),
        ("none 2017-01-01 2020-01-01, daily 2020-01-01 -", "2020-01-03", False, 3),
    ],
)
def test_a_composite_grid_counts_each_part_from_its_own_start(grid: str, to: str, partial: bool, expected: int) -> None:
    assert len(starts("2017-01-01", to, composite(grid), "UTC", partial=partial)) == expected + 1


@pytest.mark.parametrize(
    ("grid", "to", "expected"),
    [
        ("monthly 2020-01-01 2020-02-01, daily 2020-02-01 2020-02-03", "2020-02-03", "2020-01-01 02-01 02-02 02-03"),
        ("daily 2020-02-01 2020-02-03, monthly 2020-01-01 2020-02-01", "2020-02-03", "2020-01-01 02-01 02-02 02-03"),
        ("monthly 2020-01-01 2020-01-18", "2020-01-18", "2020-01-01 01-18"),  # S51
        ("monthly 2020-01-01 2020-02-18", "2020-02-18", "2020-01-01 02-01 02-18"),  # S51
        ("weekly 2020-01-01 2020-02-01", "2020-02-01", "2020-01-01 01-08 01-15 01-22 01-29 02-01"),  # S51
        # DIL cannot say this: a period that comes twice.
        ("daily 2020-01-01 2020-01-02, monthly 2020-01-02 2020-03-02, daily 2020-03-02 -", "2020-03-04",
         "2020-01-01 01-02 02-02 03-02 03-03 03-04"),
    ],
)  # fmt: skip
def test_parts_follow_each_other_in_whatever_order_they_are_written(grid: str, to: str, expected: str) -> None:
    assert starts("2020-01-01", to, composite(grid), "UTC") == dates(expected)


@pytest.mark.parametrize(
    "grid",
    [
        "monthly 2020-01-01 2020-02-01, daily 2020-02-02 -",
        "monthly 2020-01-01 2020-02-03, daily 2020-02-01 -",
        "monthly 2020-01-01 -, daily 2020-02-01 -",
        "monthly 2020-02-01 2020-01-01",
        "monthly P1D 2020-01-01",
        "monthly 2020-01-01 P1D",
        "lovely 2020-01-01 -",
    ],
)
def test_holes_overlaps_and_moving_ends_within_a_grid_are_refused(grid: str) -> None:
    with pytest.raises(GridInvalid):
        composite(grid)


def test_a_grid_must_reach_over_what_a_job_reads() -> None:
    """S49 and S50: DIL leaves out what no part covers, and says nothing."""
    grid = composite("monthly 2020-01-01 2020-02-01, daily 2020-02-01 2020-02-03")
    with pytest.raises(RangeInvalid, match="the grid ends at 2020-02-03"):
        job_of("2020-01-01", "2020-02-10", grid, zone="UTC")
    with pytest.raises(RangeInvalid, match="the grid starts at 2020-01-01"):
        job_of("2019-12-01", "2020-02-03", grid, zone="UTC")
    moving = job_of("2020-01-01", "P0D", grid, zone="UTC")
    assert len(plan(moving, {}, at("2020-02-03", "UTC")).rows) == 3
    with pytest.raises(GridInvalid, match="set the last end to -"):
        plan(moving, {}, at("2020-02-04", "UTC"))


def test_a_start_that_is_skipped_on_its_own_day_is_kept_on_all_others() -> None:
    """B14: DIL stays an hour late for ever."""
    edges = starts("2020-03-08 02:30:00", "2020-03-11", "daily")
    assert edges == ["2020-03-08 03:00", "2020-03-09 02:30", "2020-03-10 02:30", "2020-03-11"]
    edges = starts("2018-11-04", "2018-11-06", "daily", "America/Sao_Paulo")
    assert edges == ["2018-11-04 01:00", "2018-11-05", "2018-11-06"], "its midnight is skipped"


def test_a_time_that_comes_twice_is_a_start_once() -> None:
    cells = Grid.plain("daily").cells_from(Bound.parse("2020-10-31 01:30:00", LA), 0, LA)
    first, second = at("2020-11-01 08:30", "UTC"), at("2020-11-01 09:15", "UTC")  # 01:30, and then 01:15 once more
    assert cells.cell_of(first - 1).hi == first
    assert cells.cell_of(second) == cells.cell_of(first) == Range(first, at("2020-11-02 01:30"))


def test_a_day_that_a_zone_skips_has_no_cell() -> None:
    assert starts("2011-12-28", "2012-01-01", "daily", "Pacific/Apia") == dates("2011-12-28 12-29 12-31 2012-01-01")


def test_cells_stay_where_they_are_when_the_start_moves() -> None:
    job = job_of("P10D", "P0D", "weekly")
    for day in ("02-20", "02-21", "02-22"):
        inner = [row.cell.lo for row in plan(job, {}, at(day)).rows][1:]
        assert inner == [lo for lo in (at("02-17"),) if lo < at(day)][: len(inner)]
        assert all(micros_to_wall(lo, zone_of(LA)).weekday() == 0 for lo in inner)
    months = plan(job_of("P40D", "P0D", "monthly"), {}, at("03-15")).rows
    assert [micros_to_wall(row.cell.lo, zone_of(LA)).day for row in months] == [4, 1]


PERIODS = ("hourly", "daily", "weekly", "monthly", "yearly")
moments = st.integers(at("2019-06-01", "UTC"), at("2021-06-01", "UTC"))


@settings(max_examples=examples(300))
@given(
    zone=st.sampled_from(ZONES),
    period=st.sampled_from(PERIODS),
    start=st.datetimes(datetime.fromisoformat("2018-01-01"), datetime.fromisoformat("2019-05-01")),
    some=st.lists(moments, min_size=2, max_size=5),
)
def test_every_moment_is_in_one_cell_and_cells_leave_no_hole(
    zone: str, period: str, start: datetime, some: list[int]
) -> None:
    bound = Bound.parse(start.replace(microsecond=0).isoformat(" "), zone)
    cells = Grid.plain(period).cells_from(bound, 0, zone)
    for one in some:
        cell = cells.cell_of(one)
        assert cell.lo <= one < cell.hi
        assert cells.cell(cells.index(one)) == cell
        assert cells.cell_of(cell.lo) == cells.cell_of(cell.hi - 1) == cell
        assert cells.cell_of(cell.hi).lo == cell.hi
    lo, hi = min(some), max(some)
    assume(lo < hi)
    if period == "hourly":
        hi = min(hi, lo + 30 * DAY)
    between = list(cells.between(lo, hi))
    assert between[0] == cells.cell_of(lo)
    assert between[-1] == cells.cell_of(hi - 1)
    assert all(one.hi == other.lo for one, other in pairwise(between))
    assert cells.count(lo, hi) == len(between)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("clock", ["00:00:00", "01:30:00", "02:30:00", "23:59:59"])
def test_two_years_of_days_begin_at_their_time_of_day_or_when_it_is_skipped(zone: str, clock: str) -> None:
    begin, end = at("2019-01-01", zone), at("2021-01-01", zone)
    cells = Grid.plain("daily").cells_from(Bound.parse(f"2019-01-01 {clock}", zone), 0, zone)
    odd = 0
    for cell in cells.between(begin + DAY, end):
        shown = micros_to_wall(cell.lo, zone_of(zone))
        assert cell.hi - cell.lo in {hours * 1_800_000_000 for hours in range(45, 52)}
        if shown.strftime("%H:%M:%S") != clock:
            odd += 1
            before = micros_to_wall(cell.lo - 1, zone_of(zone))
            assert shown - before > timedelta(seconds=1), "a jump of the clock"
    assert odd <= 2


@settings(max_examples=examples(300))
@given(
    zone=st.sampled_from(ZONES),
    wall_time=st.datetimes(datetime.fromisoformat("2018-01-01"), datetime.fromisoformat("2021-01-01")),
)
def test_a_wall_time_that_exists_comes_back_and_a_later_one_is_never_earlier(zone: str, wall_time: datetime) -> None:
    zone_info = ZoneInfo(zone)
    micros = wall_to_micros(wall_time, zone_info)
    local = wall_time.replace(tzinfo=zone_info)
    if local.astimezone(UTC).astimezone(zone_info).replace(tzinfo=None) == wall_time:
        assert micros_to_wall(micros, zone_info).replace(fold=0) == wall_time
    for later in (1, 60, 3600, 7200):
        assert wall_to_micros(wall_time + timedelta(seconds=later), zone_info) >= micros


def test_days_before_are_days_of_the_calendar() -> None:
    los_angeles = zone_of(LA)
    assert days_before(at("03-10"), 3, los_angeles) == at("03-07"), "S56"
    assert days_before(at("03-09 02:30"), 1, los_angeles) == at("03-08 03:00")
    assert day_number(at("11-02"), los_angeles) - day_number(at("11-01"), los_angeles) == 1


@pytest.mark.parametrize("zone", ["UTC", LA, "Asia/Tokyo", "Pacific/Kiritimati"])
@pytest.mark.parametrize("year", ["0002", "0003", "0050", "0101", "0102", "0103", "2020"])
def test_days_before_end_at_the_earliest_moment(zone: str, year: str) -> None:
    moment = at(f"{year}-01-05 12:00", zone)
    found = days_before(moment, 36_600, zone_of(zone))
    assert found == EARLIEST if year <= "0102" else found > EARLIEST
    assert days_before(EARLIEST, 1, zone_of(zone)) == EARLIEST
    assert Bound.parse("P366000D", zone).resolve(moment, zone) <= moment


def test_many_cells_are_counted_without_being_made() -> None:
    cells = Grid.plain("hourly").cells_from(Bound.parse("0002-01-02", "UTC"), 0, "UTC")
    assert cells.count(at("0003-01-01", "UTC"), at("9000-01-01", "UTC")) > 75_000_000
    days = Grid.plain("daily").cells_from(Bound.parse("0002-01-02", "UTC"), 0, "UTC")
    assert days.count(at("0003-01-01", "UTC"), at("9000-01-01", "UTC")) > 3_000_000


def test_a_moment_outside_of_a_grid_is_refused() -> None:
    cells = composite("monthly 2020-01-01 2020-02-01").cells_from(Bound.parse("2020-01-01", "UTC"), 0, "UTC")
    for outside in ("2019-12-31", "2020-02-01"):
        with pytest.raises(GridInvalid, match="No cell contains"):
            cells.cell_of(at(outside, "UTC"))
    assert cells.cell_of(at("2020-01-31", "UTC")) == Range(at("2020-01-01", "UTC"), at("2020-02-01", "UTC"))
