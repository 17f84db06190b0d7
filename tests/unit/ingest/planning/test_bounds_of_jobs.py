"""Claims about `from` and `to`: what they mean, and what is refused. S1 to S10 are rows of the reference."""

import pytest

from floodmark.errors import BoundInvalid, RangeInvalid, ZoneUnknown
from floodmark.ingest import Bound, TimeWatermark
from support.ingest.ingest_jobs import LA, at, job_of

NOW = at("2020-02-21 10:37:12")


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2019-01-01", "2019-01-01 08:00"),  # S1
        ("2019-01-02", "2019-01-02 08:00"),  # S1
        ("2020-01-01 10:00:30", "2020-01-01 18:00:30"),  # S2
        ("2020-01-01T10:00:00.000-0700", "2020-01-01 17:00"),  # S3
        ("2020-01-01 10:00:00-07:00", "2020-01-01 17:00"),  # S3
        ("2020-01-01 10:00:00PST", "2020-01-01 18:00"),  # S4
        ("2020-01-01T10:00:00Z", "2020-01-01 10:00"),  # S6: the moment that it says
        ("2020-01-01 10:00:00 America/Los_Angeles", "2020-01-01 18:00"),
        ("2020-01-01 10:00:00 +01:00", "2020-01-01 09:00"),
        ("P0D", "2020-02-21 08:00"),  # S8
        ("P1D", "2020-02-20 08:00"),
        ("P0DT7H", "2020-02-21 11:00"),
        ("P2DT5H", "2020-02-19 13:00"),
        ("-", "2020-02-21 18:37"),
        ("P0DT1H30M", "2020-02-21 17:07"),
        ("P0DT0H0M", "2020-02-21 18:37"),
        ("P0D.UTC", "2020-02-21 00:00"),  # S9
        ("P1D.Asia/Tokyo", "2020-02-20 15:00"),  # S9: midnight of the 21st in Tokyo, where it is the 22nd
    ],
)
def test_a_bound_means_a_moment(text: str, utc: str) -> None:
    assert Bound.parse(text, LA).resolve(NOW, LA) == at(utc, "UTC")


def test_microseconds_are_kept() -> None:
    """S5: DIL cuts them off."""
    assert Bound.parse("2020-01-01T11:11:11.999999", LA).at == at("2020-01-01 11:11:11") + 999_999
    assert Bound.parse("2020-01-01T11:11:11.5", LA).at == at("2020-01-01 11:11:11") + 500_000


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("2020-01-01 10:00", "Add the seconds: 2020-01-01 10:00:00."),  # S6
        ("2020-01-01 10:00:00America/Los_Angeles", "offset"),  # S6
        ("2020-01-01 10:00:00 Nowhere", "offset"),
        ("2020-01-01 10:00:00 IST", "offset"),  # of India, Israel or Ireland
        ("20091201", "Write 2009-12-01."),  # S7
        ("P0D0H0M", "Write for example"),  # S7
        ("P1M", "Write for example"),  # S7
        ("PT10M", "P0DT0H10M"),  # S7
        ("Pfoobar", "Write for example"),  # S7
        ("PT5H", "P0DT5H"),
        ("P1DT5M", "P1DT0H5M"),
        ("P1D5M", "Write for example"),
        ("P0DT30H", "P1DT6H"),
        ("P0DT24H", "P1DT0H"),
        ("P0DT0H60M", "P0DT1H0M"),
        ("P9999999D", "date"),
        ("-P1D", "Write for example"),
        ("P1.5D", "Write for example"),
        ("2020-02-30", "date of the calendar"),
        ("2020-01-01T25:00:00", "date of the calendar"),
        ("2020-01-01T10:00:00.1234567", "six digits"),
        ("2020-01-01T10:00:00+19:00", "offset"),
        ("2020-01-01T10:00:00+01:60", "offset"),
        ("0001-01-01", "Use a year"),
        ("9999-01-01", "Use a year"),
        ("\u0662\u0660\u0662\u0660-01-01", "Write for example"),
        (" 2020-01-01", "Write for example"),
        ("2020-01-01\n", "Write for example"),
        ("", "Write for example"),
    ],
)
def test_what_could_be_misread_is_refused_with_the_way_to_write_it(text: str, remedy: str) -> None:
    with pytest.raises(BoundInvalid) as refused:
        Bound.parse(text, LA)
    assert remedy in refused.value.remedy
    assert refused.value.fields == {"text": text}


@pytest.mark.parametrize(
    "text", ["2020-01-01T10:00:00Z", "2020-01-01T10:00:00PST", "2020-01-01 10:00:00 America/Los_Angeles"]
)
def test_in_a_file_for_dil_a_time_that_dil_drops_is_refused(text: str) -> None:
    """X10: DIL takes the midnight of the date. To take the time would read something else than before."""
    with pytest.raises(BoundInvalid, match="DIL ignores the time"):
        Bound.parse(text, LA, dil=True)
    assert Bound.parse("2020-01-01 10:00:00PST", LA, dil=True).at == at("2020-01-01 10:00")
    assert Bound.parse("2020-01-01T10:00:00.000PST", LA, dil=True).at == at("2020-01-01 10:00")


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../UTC", "America", "utc+1"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(ZoneUnknown):
        Bound.parse("2020-01-01", zone)
    with pytest.raises((ZoneUnknown, BoundInvalid)):
        Bound.parse(f"P0D.{zone}", LA)


@pytest.mark.parametrize(
    ("start", "to"),
    [("-", "-"), ("2020-01-02", "2020-01-01"), ("2020-01-01", "2020-01-01"), ("P1D", "P2D"), ("P0DT1H", "P0DT2H")],
)
def test_a_range_that_can_never_hold_anything_is_refused(start: str, to: str) -> None:
    with pytest.raises(RangeInvalid):
        TimeWatermark("day", Bound.parse(start, LA), Bound.parse(to, LA))


def test_a_range_that_is_empty_today_is_none() -> None:
    """S10, but for fixed times, which will be empty for ever."""
    assert job_of("P0D", "P0D").reach(NOW).lo == job_of("P0D", "P0D").reach(NOW).hi


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("P0D", "2020-03-08 12:00", "2020-03-08 00:00"),
        ("P1D", "2020-03-09 00:00", "2020-03-08 00:00"),  # a day of 23 hours
        ("P1DT0H", "2020-03-09 02:30", "2020-03-08 03:00"),  # 02:00 is skipped
        ("P0DT12H", "2020-03-08 12:00", "2020-03-07 23:00"),  # hours are equally long
        ("P1D", "2020-11-02 00:00", "2020-11-01 00:00"),  # a day of 25 hours
    ],
)
def test_days_are_those_of_the_calendar_and_hours_are_equally_long(text: str, now: str, expected: str) -> None:
    assert Bound.parse(text, LA).resolve(at(now), LA) == at(expected)


def test_now_is_rounded_within_the_hour_that_comes_twice() -> None:
    second = at("2020-11-01 09:37:12", "UTC")  # 01:37:12 for the second time
    assert Bound.parse("P0DT0H", LA).resolve(second, LA) == at("2020-11-01 09:00", "UTC")
    assert Bound.parse("-", LA).resolve(second, LA) == at("2020-11-01 09:37", "UTC")
    assert Bound.parse("P0D", LA).resolve(second, LA) == at("2020-11-01 07:00", "UTC")


@pytest.mark.parametrize(
    ("to", "settle", "now", "expected"),
    [
        ("-", 10, "01-15 10:37", "01-15 10:27"),
        ("P0D", 10, "01-15 00:05", "01-14 00:00"),  # the day is over, and not settled
        ("P0D", 10, "01-15 00:10", "01-15 00:00"),
        ("P1D", 10, "01-15 00:05", "01-14 00:00"),  # settled long since
        ("P0DT0H", 10, "01-15 10:05", "01-15 09:00"),
        ("2020-01-15", 10, "01-15 00:05", "01-14 23:55"),
        ("2020-01-15", 0, "01-20 00:00", "01-15 00:00"),
        ("2030-01-01", 0, "01-15 10:37", "01-15 10:37"),  # what is not over is not read
    ],
)
def test_what_may_still_change_is_not_read(to: str, settle: int, now: str, expected: str) -> None:
    job = job_of("2019-01-01", to, settle=settle * 60_000_000)
    assert job.reach(at(now)).hi == at(expected)
