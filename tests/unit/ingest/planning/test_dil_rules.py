"""The scenarios of the reference as DIL is built, by their ids: what `compat` does, and what the rules here mend."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from floodmark.ingest import Bound, Grid, Job, TimeWatermark, UnitCoverage, plan
from floodmark.ingest.planning.dil_rules import DilStates, dil_partitions, dil_work_units, signature
from support.ingest.ingest_jobs import LA, at, covered, job_of, only, span


def short(job: Job, micros: int) -> str:
    text = job.shown(micros)
    time = text[11:19].removesuffix(":00")
    return (text[5:10] if text.startswith("2020") else text[:10]) + ("" if time == "00:00" else f" {time}")


def work(job: Job, states: DilStates, now: str, *, cleanse: bool = False) -> list[str]:
    found = dil_work_units(job, states, at(now), cleanse=cleanse)
    return [f"{short(job, one.range.lo)}..{short(job, one.range.hi)}" for one in found]


def one(high: str, start: str = "01-01") -> dict[tuple[int, str], int]:
    return {(at(start), "{}"): at(high)}


def days(first: str, last: str, more: Mapping[str, str] | None = None) -> dict[tuple[int, str], int]:
    """Return the states of days that have ended, but for some."""
    cells = Grid.plain("daily").cells_from(Bound.parse(first, LA), 0, LA)
    states = {(cell.lo, "{}"): cell.hi for cell in cells.between(at(first), at(last))}
    return states | {(at(day), "{}"): at(high) for day, high in (more or {}).items()}


def each(first: int, last: int) -> list[str]:
    return [f"02-{day:02}..02-{day + 1:02}" for day in range(first, last + 1)]


DAILY = job_of(grid="daily", grace_days=3)


@pytest.mark.parametrize(
    ("scenario", "job", "states", "now", "expected"),
    [
        ("S10", job_of("P0D", "P0D"), {}, "01-15", []),
        ("S11", job_of(grace_days=3), {}, "01-15", ["01-01..01-15"]),
        ("S12", job_of(grace_days=3), one("01-15"), "01-16", ["01-12..01-16"]),
        ("S13", job_of(grace_days=3), one("01-16"), "01-16", ["01-13..01-16"]),
        ("S14", job_of(), one("01-16"), "01-16", ["01-16..01-16"]),
        ("S15", job_of(to="2020-01-10", grace_days=3), one("01-16"), "01-20", []),
        ("S16", job_of(grace_days=3), one("01-02"), "01-02", ["01-01..01-02"]),
        ("S18", replace(DAILY, time=replace(DAILY.time, abstinence_days=4)), days("2020-01-01", "02-21"), "02-22",
         each(21, 21)),
        ("S20, before", job_of(to="-", abstinence_days=1), one("01-15 10:00"), "01-16 09:59", []),
        ("S20, at", job_of(to="-", abstinence_days=1), one("01-15 10:00"), "01-16 10:00",
         ["01-16 10:00..01-16 10:00"]),
        ("S20, after: a day is never read", job_of(to="-", abstinence_days=1), one("01-15 10:00"), "01-16 10:05",
         ["01-16 10:00..01-16 10:05"]),
        ("S22", job_of(), one("01-15"), "01-16", ["01-15..01-16"]),
        ("S23", DAILY, days("2020-01-01", "02-21"), "02-22", each(17, 21)),
        ("S23, the same day", DAILY, days("2020-01-01", "02-21"), "02-21", each(17, 20)),
        ("S24, no state", DAILY, {k: v for k, v in days("2020-01-01", "02-21").items() if k[0] != at("01-10")},
         "02-22", ["01-10..01-11", *each(17, 21)]),
        ("S24, its start: lost", DAILY, days("2020-01-01", "02-21", {"01-10": "01-10"}), "02-22", each(17, 21)),
        ("S25", DAILY, days("2020-01-01", "02-21", {"02-19": "02-19"}), "02-22", each(17, 21)),
        ("S26", job_of(grace_days=3), one("01-12"), "01-17", ["01-09..01-17"]),
        ("S27: lost", job_of(to="-", grid="daily"),
         days("2020-01-01", "02-21", {"02-21": "02-21 10:37", "02-22": "02-22 10:37"}), "02-23 10:37",
         ["02-22 10:37..02-23", "02-23..02-23 10:37"]),
        ("S30", job_of(grid="daily", grace_days=2), days("2020-01-01", "02-05"), "02-26", each(2, 25)),
        ("S31", job_of("2020-02-20", "-", "daily"), days("2020-02-20", "02-21", {"02-21": "02-21 10:37"}),
         "02-22 10:37", ["02-21 10:37..02-22", "02-22..02-22 10:37"]),
        ("S32", job_of("2020-02-20", "-", "daily", partial=False), {}, "02-21 10:37", each(20, 20)),
        ("S36", job_of("2020-12-01", "2020-12-15", "daily"), {}, "12-20",
         [f"12-{day:02}..12-{day + 1:02}" for day in range(1, 15)]),
        ("S43", job_of("2020-01-01", grid="monthly", grace_days=3),
         {(at("01-01"), "{}"): at("02-01"), (at("02-01"), "{}"): at("02-21")}, "02-22", ["02-18..02-22"]),
        ("S43, 03-05", job_of("2020-01-01", grid="monthly", grace_days=3),
         {(at("02-01"), "{}"): at("03-01"), (at("03-01"), "{}"): at("03-04"), (at("01-01"), "{}"): at("02-01")},
         "03-05", ["02-27..03-01", "03-01..03-05"]),
        ("S56", job_of("2020-03-01", grid="daily", grace_days=3), days("2020-03-01", "03-10"), "03-11",
         [f"03-{day:02}..03-{day + 1:02}" for day in range(6, 11)]),
    ],
)  # fmt: skip
def test_what_dil_runs(scenario: str, job: Job, states: DilStates, now: str, expected: list[str]) -> None:
    assert work(job, states, now) == expected, scenario


def test_s14_empty_ranges_are_dropped_only_if_asked() -> None:
    assert work(job_of(), one("01-16"), "01-16", cleanse=True) == []


def test_s17_an_abstinence_equal_to_the_grace_runs_empty_ranges() -> None:
    job = job_of(grid="daily", grace_days=3, abstinence_days=3)
    found = work(job, days("2020-01-01", "02-21"), "02-22")
    assert found == ["02-18..02-18", "02-19..02-19", "02-20..02-20", "02-21..02-21", "02-21..02-22"]


def test_s21_on_the_seventh_day_a_file_is_run_once_more() -> None:
    states = {(at("01-14"), '{"id":"f0115"}'): at("01-15")}
    week, longer = (job_of("2020-01-14", units=["f0115"], abstinence_days=number) for number in (7, 8))
    assert work(week, states, "01-21") == []
    assert work(week, states, "01-22") == ["01-22..01-22"]
    assert work(longer, states, "01-22") == []


def test_s33_and_s35_a_cap_lets_the_later_ones_starve() -> None:
    job = replace(job_of("2020-01-14", units=[f"f{number}" for number in range(7)], cells=3, grace_days=1), compat=True)
    known: dict[str, UnitCoverage] = {}
    for _ in range(3):
        found = plan(job, known, at("01-15"))
        assert [row.unit.fields["id"] for row in found.rows] == ["f0", "f1", "f2"]
        known |= {row.unit.key: UnitCoverage([row.range]) for row in found.rows}


def test_s38_to_s42_units_and_starts() -> None:
    ids = job_of(to="2020-01-31", units=["id1", "id2", "id3"])
    assert len(work(ids, {}, "02-01")) == 3
    states = {(at("01-01"), f'{{"id":"id{number}"}}'): at("01-31") for number in (1, 2, 3)}
    assert work(job_of(units=["id1", "id4"]), states, "02-01") == ["01-31..02-01", "01-01..02-01"]
    moved = job_of("2020-01-05", grid="monthly")
    done = {(at("01-01"), "{}"): at("02-01"), (at("02-01"), "{}"): at("03-01"), (at("03-01"), "{}"): at("04-01")}
    assert work(moved, done, "04-05") == ["01-05..02-05", "02-05..03-05", "03-05..04-05"], "S41: all again"


def test_partitions_are_chained_and_drift() -> None:
    """B13, B14 and S53."""
    job = job_of("2020-01-31", "2020-05-01", "monthly")
    assert [short(job, cell.lo) for cell in dil_partitions(job, at("06-01"))] == ["01-31", "02-29", "03-29", "04-29"]
    leap = job_of("2020-02-29", "2025-01-01", "yearly")
    starts = [short(leap, cell.lo) for cell in dil_partitions(leap, at("2026-01-01"))]
    assert starts == ["02-29", "2021-02-28", "2022-02-28", "2023-02-28", "2024-02-28"]


@pytest.mark.parametrize(
    ("parts", "to", "partial", "expected"),
    [
        # S46 to S51
        (["yearly 2017-01-01 2020-02-01", "daily 2020-02-01 2020-02-03"], "2020-02-03", True, 6),
        (["yearly 2017-01-01 2020-02-01", "daily 2020-02-01 2020-02-03"], "2020-02-03", False, 5),
        (["yearly 2017-01-01 2020-02-01", "weekly 2020-02-01 2020-02-11"], "2020-02-01", False, 4),
        (["yearly 2017-01-01 2020-01-01", "weekly 2020-01-01 2020-02-03"], "2020-02-03", True, 8),
        (["yearly 2017-01-01 2020-01-01", "weekly 2020-01-01 2020-02-03"], "2020-02-03", False, 7),
        (["yearly 2017-01-01 2020-01-01", "daily 2020-01-01 2020-02-03"], "2020-02-03", True, 36),
    ],
)
def test_composite_grids_lose_their_odd_ends(parts: list[str], to: str, partial: bool, expected: int) -> None:
    split = [part.split() for part in parts]
    grid = Grid.composite([(kind, Bound.parse(lo, "UTC"), Bound.parse(hi, "UTC")) for kind, lo, hi in split])
    job = job_of("2017-01-01", to, grid, zone="UTC", partial=partial)
    assert len(dil_partitions(job, at("03-01", "UTC"))) == expected
    beyond = [cell for cell in dil_partitions(job, at("03-01", "UTC")) if cell.hi > at(to, "UTC")]
    assert len(beyond) == (1 if parts[1].startswith("weekly 2020-02-01") else 0), "S47: beyond `to`"


def test_s57_the_name_of_a_state() -> None:
    times = TimeWatermark("system", Bound.parse("2017-01-01", LA), Bound.parse("-", LA))
    job = Job("orders", LA, times)
    assert times.from_.at is not None
    assert signature(job, times.from_.at, job.listed_units[0]) == "[watermark.system.1483257600000, watermark.unit.{}]"


def test_a_job_for_dil_is_planned_by_its_rules_from_what_is_known() -> None:
    """S27 once more: the hole that DIL forgets is a gap for everybody else."""
    job = job_of("2020-02-20", "-", "daily")
    known = covered("02-20..02-21 10:37", "02-22..02-22 10:37")
    now = at("02-23 10:37")
    theirs = [row.range for row in plan(replace(job, compat=True), known, now).rows]
    assert theirs == [span("02-22 10:37..02-23"), span("02-23..02-23 10:37")]
    ours = [row.range for row in plan(job, known, now).rows]
    assert ours == [span("02-21 10:37..02-22"), *theirs]
    failed = only(known["{}"].failed(span("02-21 10:37..02-22"), now))
    assert span("02-21 10:37..02-22") not in [row.range for row in plan(replace(job, compat=True), failed, now).rows]
