"""The scenarios of the reference about plans, by their ids, under the rules of this project.

Elsewhere: S1 to S10 are in test_bounds_of_jobs, S43 (cells) to S54 in test_grid, and these rows by their letter, as DIL
is built, in test_dil_rules. S17, S19, S28, S29, S33, S37, S52 and S55 are named in the reference without a row; what it
says of them in passing is here. S57, the name under which DIL keeps a cell, has no counterpart: what is known is kept
by unit and time, see test_the_key_of_a_unit.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from floodmark.ingest import Job, PlannedRange, Range, UnitCoverage, complete_through, plan
from support.ingest.ingest_jobs import LA, at, covered, job_of, key, only, run, said, span


def planned(job: Job, coverage: dict[str, UnitCoverage], now: str) -> list[str]:
    return said(job, plan(job, coverage, at(now)).rows)


@pytest.mark.parametrize(
    ("scenario", "job", "known", "now", "expected"),
    [
        ("S10", job_of("P0D", "P0D"), [], "01-15 10:00", []),
        ("S11", job_of(grace_days=3), [], "01-15", ["01-01..01-15"]),
        ("S12", job_of(grace_days=3), ["01-01..01-15"], "01-16", ["01-12..01-16"]),
        ("S13", job_of(grace_days=3), ["01-01..01-16"], "01-16", ["01-13..01-16"]),
        ("S14", job_of(), ["01-01..01-16"], "01-16", []),
        ("S15", job_of(to="2020-01-10", grace_days=3), ["01-01..01-16"], "01-20", []),
        ("S16", job_of(grace_days=3), ["01-01..01-02"], "01-02", ["01-01..01-02"]),
        ("S22", job_of(start="2020-01-14"), ["01-14..01-15"], "01-16", ["01-15..01-16"]),
        ("S23", job_of(grid="daily", grace_days=3), ["01-01..02-21"], "02-22",
         ["02-21..02-22", "02-18..02-19", "02-19..02-20", "02-20..02-21"]),
        ("S23, the same day", job_of(grid="daily", grace_days=3), ["01-01..02-21"], "02-21",
         ["02-18..02-19", "02-19..02-20", "02-20..02-21"]),
        ("S23, the third run", job_of(grid="daily", grace_days=3), ["01-01..02-22"], "02-23",
         ["02-22..02-23", "02-19..02-20", "02-20..02-21", "02-21..02-22"]),
        ("S24", job_of(grid="daily", grace_days=3), ["01-01..01-10", "01-11..02-21"], "02-21",
         ["01-10..01-11", "02-18..02-19", "02-19..02-20", "02-20..02-21"]),
        ("S25", job_of(grid="daily", grace_days=3), ["01-01..02-19", "02-20..02-21"], "02-21",
         ["02-19..02-20", "02-18..02-19", "02-20..02-21"]),
        ("S27", job_of(to="-", grid="daily"), ["01-01..02-21 10:37", "02-22..02-22 10:37"], "02-23 10:37",
         ["02-21 10:37..02-22", "02-22 10:37..02-23", "02-23..02-23 10:37"]),
        ("S30", job_of(grid="daily", grace_days=2), ["01-01..02-05"], "02-26",
         [f"02-{day:02}..02-{day + 1:02}" for day in (*range(5, 26), 3, 4)]),
        ("S31", job_of(to="-", grid="daily"), ["01-01..02-21 10:37"], "02-22 10:37",
         ["02-21 10:37..02-22", "02-22..02-22 10:37"]),
        ("S32", job_of(start="2020-02-20", to="-", grid="daily", partial=False), [], "02-21 10:37", ["02-20..02-21"]),
        ("S32, the next day", job_of(start="2020-02-20", to="-", grid="daily", partial=False), ["02-20..02-21"],
         "02-22 10:37", ["02-21..02-22"]),
        ("time that is not cut is always whole", job_of(to="-", partial=False), ["01-01..01-03"], "01-05 10:00",
         ["01-03..01-05 10:00"]),
        ("S41", job_of(start="2020-01-05", grid="monthly"), ["01-01..04-01"], "04-05", ["04-01..04-05"]),
        ("S42, two days later", job_of(start="2020-01-03", grid="daily"), ["01-01..01-10"], "01-10", []),
        ("S42, two days earlier", job_of(start="2019-12-30", grid="daily"), ["01-01..01-10"], "01-10",
         ["2019-12-30..2019-12-31", "2019-12-31..01-01"]),
        ("S43, the next day", job_of(start="2019-01-01", grid="monthly", grace_days=3), ["2019-01-01..2020-02-21"],
         "02-22", ["02-18..02-22"]),
        ("S43, 03-02", job_of(start="2019-01-01", grid="monthly", grace_days=3), ["2019-01-01..2020-02-22"],
         "03-02", ["02-19..03-01", "03-01..03-02"]),
        ("S43, 03-03", job_of(start="2019-01-01", grid="monthly", grace_days=3), ["2019-01-01..2020-03-02"],
         "03-03", ["03-01..03-03", "02-28..03-01"]),
        ("S43, 03-04", job_of(start="2019-01-01", grid="monthly", grace_days=3), ["2019-01-01..2020-03-03"],
         "03-04", ["03-01..03-04", "02-29..03-01"]),
        ("S43, 03-05", job_of(start="2019-01-01", grid="monthly", grace_days=3), ["2019-01-01..2020-03-04"],
         "03-05", ["03-01..03-05"]),
        ("S43, 03-06", job_of(start="2019-01-01", grid="monthly", grace_days=3), ["2019-01-01..2020-03-05"],
         "03-06", ["03-02..03-06"]),
        ("S56", job_of(start="2020-03-01", grid="daily", grace_days=3), ["03-01..03-10"], "03-10",
         ["03-07..03-08", "03-08..03-09", "03-09..03-10"]),
    ],
)  # fmt: skip
def test_what_is_known_gives_this_plan(
    scenario: str, job: Job, known: Sequence[str], now: str, expected: list[str]
) -> None:
    assert planned(job, covered(*known), now) == expected, scenario


def test_a_grace_that_reaches_before_the_calendar_reads_everything_again() -> None:
    job = job_of(start="0002-02-01", to="0090-02-01", grid="yearly", grace_days=36_600)
    known = covered("0002-02-01..0090-02-01")
    rows = plan(job, known, at("2020-01-01")).rows
    assert (len(rows), rows[0].range.lo, rows[0].reason) == (88, at("0002-02-01"), "grace")
    assert complete_through(job, known, at("2020-01-01")) == at("0090-02-01")


def test_a_month_is_read_from_its_grace_on_and_named_whole() -> None:
    """S43 and X8: the cell is the month as far as it has come, the range what is read of it."""
    job = job_of(start="2019-01-01", grid="monthly", grace_days=3)
    (row,) = plan(job, covered("2019-01-01..2020-02-21"), at("02-22")).rows
    assert (row.cell, row.range) == (span("02-01..02-22"), span("02-18..02-22"))
    assert (row.reason, row.reasons) == ("new", ("grace", "new"))


def test_s18_abstinence_longer_than_grace_leaves_only_what_is_new() -> None:
    job = job_of(grid="daily", grace_days=3, abstinence_days=4)
    known = run(job, {}, plan(job, {}, at("02-21")), at("02-21"))
    found = plan(job, known, at("02-22"))
    assert said(job, found.rows) == ["02-21..02-22"]
    assert said(job, found.held) == ["02-18..02-19", "02-19..02-20", "02-20..02-21"]
    assert found.totals["held"] == 3
    assert "5 calendar days" in found.held[0].why


def test_on_the_last_day_of_an_abstinence_a_cell_is_held_whatever_else_was_read_on_it() -> None:
    job = job_of(grid="daily", grace_days=3, abstinence_days=1)
    known = run(job, {}, plan(job, {}, at("02-21")), at("02-21"))
    known = run(job, known, plan(job, known, at("02-22")), at("02-22"))
    found = plan(job, known, at("02-22"))
    assert found.is_empty
    assert said(job, found.held) == ["02-19..02-20", "02-20..02-21", "02-21..02-22"]
    assert said(job, plan(job, known, at("02-23")).rows) == ["02-22..02-23", "02-19..02-20", "02-20..02-21"]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("01-16 09:59", []),
        ("01-16 10:00", []),
        ("01-16 10:05", []),
        ("01-16 23:59", []),
        ("01-17 00:00", ["01-15 10:00..01-17"]),
    ],
)
def test_s20_a_cell_is_left_alone_for_whole_days_and_then_read_from_where_it_was(now: str, expected: list[str]) -> None:
    job = job_of(to="-", abstinence_days=1)
    known = run(job, {}, plan(job, {}, at("01-15 10:00")), at("01-15 10:00"))
    assert planned(job, known, now) == expected


@pytest.mark.parametrize("days", [7, 8])
def test_s21_a_file_that_was_read_is_not_read_again_while_the_server_lists_it(days: int) -> None:
    known: dict[str, UnitCoverage] = {}
    for today in range(15, 25):
        files = [f"f01{day}" for day in range(max(15, today - 7), today + 1)]
        job = job_of(start="2020-01-14", units=files, abstinence_days=days)
        found = plan(job, known, at(f"01-{today}"))
        assert [row.unit.fields["id"] for row in found.rows] == [f"f01{today}"]
        known = run(job, known, found, at(f"01-{today}"))


def test_s24_a_day_that_failed_is_planned_again_however_old_it_is() -> None:
    job = job_of(grid="daily")
    first = plan(job, {}, at("02-21"))
    bad = [row for row in first.rows if row.range == span("01-10..01-11")]
    known = run(job, {}, first, at("02-21"), fails=bad)
    for attempts, now in enumerate(("02-21", "03-21", "12-21"), 1):
        found = plan(job, known, at(now))
        assert (found.rows[0].range, found.rows[0].reason, found.rows[0].attempts) == (bad[0].range, "failed", attempts)
        assert complete_through(job, known, at(now)) == at("01-10")
        known = run(job, known, found, at(now), fails=found.rows[:1])


def test_s26_what_fails_again_and_again_does_not_walk_back() -> None:
    job = job_of(grace_days=3)
    known = covered("01-01..01-15")
    for now in ("01-16", "01-17", "01-18"):
        found = plan(job, known, at(now))
        assert said(job, found.rows) == [f"01-12..{now}"]
        known = run(job, known, found, at(now), fails=found.rows)
        assert known["{}"].frontier == at("01-15")


def test_s28_a_tail_that_failed_is_read_however_far_others_have_come() -> None:
    """B40: DIL loses it at once, or after the grace."""
    job = job_of(to="-", grid="daily", grace_days=1)
    known = only(UnitCoverage([span("01-01..02-21 10:37"), span("02-22..02-28")]))
    assert said(job, plan(job, known, at("02-28")).rows)[0] == "02-21 10:37..02-22"


def test_s29_a_unit_that_was_away_goes_on_where_it_was() -> None:
    both, one = (job_of(grid="daily", units=units) for units in (["a", "b"], ["a"]))
    known = run(both, {}, plan(both, {}, at("01-05")), at("01-05"))
    found = plan(one, known, at("01-20"))
    assert {row.unit.fields["id"] for row in found.rows} == {"a"}
    assert found.retired == (key("b"),)
    known = run(one, known, found, at("01-20"))
    assert complete_through(one, known, at("01-20")) == at("01-20")
    back = plan(both, known, at("01-20"))
    assert {row.unit.fields["id"] for row in back.rows} == {"b"}
    assert (back.rows[0].range.lo, back.rows[-1].range.hi) == span("01-05..01-20")


@pytest.mark.parametrize("abstinence", [0, 30])
def test_s33_and_s34_a_cap_takes_what_was_never_read_first(abstinence: int) -> None:
    """X13: in DIL the first three files are read for ever, and the others never."""
    job = job_of(start="2020-01-14", units=[f"f{number}" for number in range(7)], cells=3, abstinence_days=abstinence)
    known: dict[str, UnitCoverage] = {}
    taken = []
    for _ in range(3):
        found = plan(job, known, at("01-15"))
        taken.append([row.unit.fields["id"] for row in found.rows])
        known = run(job, known, found, at("01-15"))
    assert taken == [["f0", "f1", "f2"], ["f3", "f4", "f5"], ["f6"]]
    assert plan(job, known, at("01-15")).is_empty


@pytest.mark.parametrize("grid", ["none", "monthly", "daily"])
@pytest.mark.parametrize("grace", [0, 1])
def test_a_cap_gives_every_unit_its_turn_on_different_days(grid: str, grace: int) -> None:
    """A unit that has just been read waits behind those that were not, also where all cells begin together."""
    job = job_of(start="2020-01-14", grid=grid, units=[f"f{number}" for number in range(7)], cells=3, grace_days=grace)
    known: dict[str, UnitCoverage] = {}
    taken = []
    for day in range(15, 29):
        found = plan(job, known, at(f"01-{day}"))
        taken.append([row.unit.fields["id"] for row in found.rows if row.reason != "grace"])
        known = run(job, known, found, at(f"01-{day}"))
    for number in range(7):
        turns = [day for day, units in enumerate(taken) if f"f{number}" in units]
        assert len(turns) >= 4
        assert turns[0] <= 2
        assert all(after - before <= 3 for before, after in pairwise(turns))


def test_a_cap_reads_what_was_read_longest_ago_again_first() -> None:
    """Seven units with one new day each, and two cells of grace a run: each unit is read again in its turn."""
    job = job_of(start="2020-01-14", grid="daily", units=[f"f{number}" for number in range(7)], grace_days=1)
    capped = replace(job, limits=replace(job.limits, cells=9))
    known = run(job, {}, plan(job, {}, at("01-15")), at("01-15"))
    taken = []
    for day in range(16, 24):
        found = plan(capped, known, at(f"01-{day}"))
        assert [row.reason for row in found.rows] == ["new"] * 7 + ["grace"] * 2
        taken += [row.unit.fields["id"] for row in found.rows if row.reason == "grace"]
        known = run(capped, known, found, at(f"01-{day}"))
    assert taken[:13] == ([f"f{number}" for number in range(7)] * 2)[:13]


def test_several_runs_of_one_day_read_all_cells_of_the_grace_period_again() -> None:
    job = job_of(start="2020-01-01", grid="daily", cells=2, grace_days=6)
    whole = replace(job, limits=replace(job.limits, cells=None))
    known = run(whole, {}, plan(whole, {}, at("01-08")), at("01-08"))
    taken = []
    for hour in range(1, 7):
        found = plan(job, known, at(f"01-08 0{hour}:00"))
        taken += said(job, found.rows)
        known = run(job, known, found, at(f"01-08 0{hour}:00"))
    assert taken == [f"01-0{day}..01-0{day + 1}" for day in range(2, 8)] * 2


def test_units_that_always_fail_do_not_keep_others_from_their_turn() -> None:
    job = job_of(start="2020-01-14", grid="daily", units=[f"f{number}" for number in range(7)], cells=3, attempts=None)
    known: dict[str, UnitCoverage] = {}
    for day in range(15, 29):
        now = at(f"01-{day}")
        found = plan(job, known, now)
        known = run(job, known, found, now, fails=[row for row in found.rows if row.unit.fields["id"] in "f0 f1 f2"])
    assert all(known[key(f"f{number}")].frontier is not None for number in range(3, 7))
    tried = [failure.at for number in range(3) for failure in known[key(f"f{number}")].failures]
    assert min(tried) >= at("01-25"), "and failed cells are retried in turn"


def test_s35_fourteen_days_by_five_a_run() -> None:
    job = job_of(grid="daily", cells=5)
    known: dict[str, UnitCoverage] = {}
    sizes = []
    for _ in range(4):
        found = plan(job, known, at("01-15"))
        sizes.append((len(found.rows), found.waiting))
        known = run(job, known, found, at("01-15"))
    assert sizes == [(5, 9), (5, 4), (4, 0), (0, 0)]


def test_s36_and_s37_a_backfill_reads_everything_and_moves_no_frontier() -> None:
    job = job_of(grid="daily", to="2020-12-15", abstinence_days=9)
    known = run(job, {}, plan(job, {}, at("12-20")), at("12-20"))
    known = only(known["{}"].with_backfill(span("12-01..12-15")))
    found = plan(job, known, at("12-20"))
    assert len(found.rows) == 14
    assert {row.reason for row in found.rows} == {"backfill"}
    after = run(job, known, found, at("12-20"))["{}"]
    assert (after.covered, after.backfilled, list(after.wanted)) == (known["{}"].covered, [], [])
    # Of what was never read it stays known that only a backfill has read it.
    ahead = UnitCoverage([span("01-01..01-05")]).with_backfill(span("01-08..01-10"))
    ahead = run(job, only(ahead), plan(job, only(ahead), at("01-10")), at("01-10"))["{}"]
    assert (ahead.frontier, list(ahead.backfilled)) == (at("01-08"), [span("01-08..01-10")])


def test_s38_units_come_within_time() -> None:
    ids = ["id1", "id2", "id3"]
    whole = plan(job_of(to="2020-01-31", units=ids), {}, at("02-01"))
    assert [row.unit.fields["id"] for row in whole.rows] == ids
    job = job_of(to="2020-01-03", grid="daily", units=ids)
    rows = plan(job, {}, at("02-01")).rows
    assert [(said(job, [row])[0][:5], row.unit.fields["id"]) for row in rows] == [
        (day, one) for day in ("01-01", "01-02") for one in ids
    ]


def test_s39_a_unit_that_is_added_gets_all_of_the_past() -> None:
    ids = ["id1", "id2", "id3"]
    before = job_of(grid="daily", units=ids)
    known = run(before, {}, plan(before, {}, at("01-03")), at("01-03"))
    job = job_of(grid="daily", units=[*ids, "id4"])
    rows = plan(job, known, at("01-04")).rows
    assert [(row.unit.fields["id"], said(job, [row])[0][:5]) for row in rows] == [
        ("id4", "01-01"), ("id4", "01-02"), ("id1", "01-03"), ("id2", "01-03"), ("id3", "01-03"), ("id4", "01-03")
    ]  # fmt: skip
    assert {row.reason for row in rows} == {"new"}


def test_s40_units_that_change() -> None:
    ids = ["id1", "id2", "id3"]
    before = job_of(units=ids)
    known = run(before, {}, plan(before, {}, at("01-31")), at("01-31"))
    job = job_of(units=["id1", "id4"])
    found = plan(job, known, at("02-01"))
    assert said(job, found.rows) == ["01-01..02-01", "01-31..02-01"], "the new unit has waited longer"
    assert [row.unit.fields["id"] for row in found.rows] == ["id4", "id1"]
    known = run(job, known, found, at("02-01"))
    again = job_of(units=["id1", "id2"])
    assert said(again, [row for row in plan(again, known, at("02-02")).rows if row.unit.fields["id"] == "id2"]) == [
        "01-31..02-02"
    ]


def test_the_key_of_a_unit() -> None:
    """S57, as far as it goes: the key depends on nothing but the fields, in no order."""
    assert [row.unit.key for row in plan(job_of("2017-01-01"), {}, at("01-01")).rows] == ["{}"]
    assert key("a") == '{"id":"a"}'


def test_a_grace_that_failed_stays_due_when_the_grace_has_moved_on() -> None:
    job = job_of(grid="daily", grace_days=3)
    known = covered("01-01..02-21")
    found = plan(job, known, at("02-22"))
    bad = [row for row in found.rows if row.range == span("02-18..02-19")]
    known = run(job, known, found, at("02-22"), fails=bad)
    later = plan(job, known, at("02-27"))
    assert (later.rows[0].range, later.rows[0].reason) == (bad[0].range, "failed")
    assert complete_through(job, known, at("02-27")) == at("02-22"), "what was read is still there"


def test_holes_that_slide_out_of_a_moving_start_are_told() -> None:
    job = job_of("P7D", "P0D", "daily")
    known = only(UnitCoverage([span("01-03..01-08"), span("01-09..01-20")], known_from=at("01-01")))
    found = plan(job, known, at("01-20"))
    assert [one.range for one in found.expired] == [span("01-01..01-03"), span("01-08..01-09")]
    assert found.rows == ()
    earlier: list[PlannedRange] = list(plan(job, known, at("01-12")).rows)
    assert [row.range for row in earlier] == [span("01-08..01-09")], "as long as it is within, it is due"


def test_quarantine_holds_a_cell_and_no_other() -> None:
    job = job_of(grid="daily", attempts=3)
    known: dict[str, UnitCoverage] = {}
    bad = span("01-02..01-03")
    for now in ("01-05", "01-06", "01-07"):
        found = plan(job, known, at(now))
        known = run(job, known, found, at(now), fails=[row for row in found.rows if row.range == bad])
    found = plan(job, known, at("01-08"))
    assert said(job, found.rows) == ["01-07..01-08"]
    (held,) = found.quarantined
    assert (held.range, held.attempts, held.why) == (bad, 3, "failed 3 times in a row: no")
    assert found.totals == {
        "failed": 0, "gap": 0, "new": 1, "backfill": 0, "grace": 0, "held": 0, "quarantined": 1
    }  # fmt: skip
    assert complete_through(job, known, at("01-08")) == at("01-02"), "the hole is still owned"
    released = only(known["{}"].with_attempts_reset(bad))
    assert plan(job, released, at("01-08")).rows[0].reason == "failed"
    assert plan(job_of(grid="daily", attempts=4), known, at("01-08")).rows[0].range == bad


def test_the_cap_takes_failed_cells_and_gaps_first_then_new_ones_backfills_and_grace() -> None:
    known = UnitCoverage([span("01-01..01-03"), span("01-04..01-10")]).failed(span("01-06..01-07"), at("01-10"))
    known = known.with_backfill(span("01-01..01-02"))
    job = job_of(grid="daily", grace_days=1)
    order = ["01-03..01-04", "01-06..01-07", "01-10..01-11", "01-01..01-02", "01-09..01-10"]
    assert planned(job, only(known), "01-11") == order
    for cap in range(1, 6):
        found = plan(job_of(grid="daily", grace_days=1, cells=cap), only(known), at("01-11"))
        assert said(job, found.rows) == order[:cap]
        assert (found.cells, found.waiting) == (cap, 5 - cap)


def test_abstinence_does_not_hold_gaps_failures_and_backfills() -> None:
    job = job_of(to="-", grid="monthly", abstinence_days=5)
    now = at("01-20")
    known = run(job, {}, plan(job, {}, now), now)["{}"]
    assert said(job, plan(job, only(known), at("01-21")).held) == ["01-20..01-21"]
    hole = known.edited(span("01-05..01-06"), is_covered=False)
    assert planned(job, only(hole), "01-21") == ["01-05..01-06"], "and what is new waits"
    assert said(job, plan(job, only(hole), at("01-21")).held) == ["01-20..01-21"], "and is listed"
    failed = known.failed(span("01-07..01-08"), now)
    assert planned(job, only(failed), "01-21") == ["01-07..01-08", "01-20..01-21"], "the last attempt failed"
    assert planned(job, only(known.with_backfill(span("01-03..01-04"))), "01-21") == ["01-03..01-04"]


def test_a_cell_with_holes_has_a_row_for_each() -> None:
    job = job_of(grid="monthly")
    found = plan(job, covered("01-01..01-03", "01-05..01-09", "01-12..01-20"), at("01-20"))
    assert said(job, found.rows) == ["01-03..01-05", "01-09..01-12"]
    assert {row.cell for row in found.rows} == {span("01-01..01-20")}
    assert (found.cells, found.totals["gap"]) == (1, 1)


def test_an_empty_reach_is_nothing_to_do() -> None:
    job = job_of("2020-05-01", "P0D", "daily")
    found = plan(job, {}, at("04-01"))
    assert found.is_empty
    assert found.reach.hi < found.reach.lo
    assert complete_through(job, {}, at("04-01")) == at("05-01")


def test_units_that_are_none_make_an_empty_plan_and_no_promise() -> None:
    job = job_of(units=[])
    assert plan(job, {}, at("04-01")).is_empty
    assert complete_through(job, {}, at("04-01")) is None


def test_a_plan_of_many_cells_makes_only_those_it_has_room_for() -> None:
    job = job_of("1990-01-01", "-", "hourly", zone="UTC", units=range(100), cells=7)
    found = plan(job, {}, at("2020-01-01", "UTC"))
    hours = (at("2020-01-01", "UTC") - at("1990-01-01", "UTC")) // 3_600_000_000
    assert found.totals["new"] == hours * 100
    assert (len(found.rows), found.waiting) == (7, hours * 100 - 7)


def test_a_zone_that_skips_a_day_leaves_nothing_waiting() -> None:
    job = job_of("2011-12-28", "2012-01-02", "daily", zone="Pacific/Apia")
    found = plan(job, {}, at("2012-01-05", "Pacific/Apia"))
    assert len(found.rows) == 4
    assert found.waiting == 0


def test_the_range_of_a_row_and_all_that_is_compared_are_plain_numbers() -> None:
    (row,) = plan(job_of(zone=LA), {}, at("01-02")).rows
    assert row.range == Range(*row.range) == (at("01-01"), at("01-02"))
