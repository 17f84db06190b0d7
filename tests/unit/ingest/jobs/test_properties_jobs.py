"""Claims about properties files of DIL: they become the same jobs, and nothing is left out in silence."""

from pathlib import Path

import pytest

from floodmark.errors import FloodmarkError
from floodmark.ingest import Bound, Grid, Job, Limits, TimeWatermark, UnitWatermark
from floodmark.ingest.job.unit import SecondaryInput
from floodmark.ingest.jobfile.dil_properties import DIL_ZONE, read_properties_job
from floodmark.ingest.jobfile.job_file import load_job
from floodmark.ingest.secondary_input import read_units

WHOLE = """\
# Surveys of all customers
job.name=surveys
source.timezone=UTC
ms.watermark=[{"name": "system", "type": "datetime", "range": {"from": "2017-01-02", "to": "-"}}, \\
    {"name": "surveyId", "type": "unit", "units": "id1, id2 ,id3"}]
ms.grace.period.days = 3
ms.abstinent.period.days : 7
ms.work.unit.partition=monthly
ms.work.unit.partial.partition=false
ms.work.unit.parallelism.max=300
"""


def test_a_file_gives_the_same_job_as_python_objects() -> None:
    job, notes = read_properties_job(WHOLE)
    assert job == Job(
        "surveys",
        "UTC",
        TimeWatermark(
            "system",
            Bound.parse("2017-01-02", "UTC"),
            Bound.parse("-", "UTC"),
            Grid.plain("monthly"),
            partial=False,
            grace_days=3,
            abstinence_days=7,
        ),
        UnitWatermark.listed("surveyId", ["id1", "id2", "id3"]),
        limits=Limits(cells=300),
    )
    assert notes == ()


def range_of(start: str, end: str) -> str:
    return f'ms.watermark=[{{"name": "s", "type": "datetime", "range": {{"from": "{start}", "to": "{end}"}}}}]'


def test_without_a_zone_los_angeles_is_meant_and_said() -> None:
    job, notes = read_properties_job(range_of("2019-01-01", "2019-01-02"))
    assert (job.zone, job.time.from_.at, job.time.to.at) == (DIL_ZONE, 1546329600000000, 1546416000000000)
    note = "No zone is set: using America/Los_Angeles, as DIL does. Set source.timezone to choose another."
    assert notes == (note,)


def test_without_a_time_that_of_dil_is_meant_and_said() -> None:
    job, notes = read_properties_job("source.timezone=UTC")
    assert (job.time.name, str(job.time.from_), str(job.time.to)) == ("datetime", "2019-01-01", "-")
    assert notes == ("No time range is set: using 2019-01-01 to now, as DIL does.",)


NAMES = {
    "of the job": ("job.name=a\nextract.table.name=b", "a"),
    "of the table": ("extract.table.name=b", "b"),
    "of the file": ("", "orders"),
    "with variables": ("job.name=${stage}-${env.TEAM}\nstage=test", "test-red"),
}


@pytest.mark.parametrize(("text", "name"), NAMES.values(), ids=NAMES)
def test_a_job_has_a_name(text: str, name: str) -> None:
    job, _ = read_properties_job(text, file="jobs/orders.pull", environment={"TEAM": "red"})
    assert job.name == name


CAPS = {"": None, "ms.work.unit.parallelism.max=0": 500, "ms.work.unit.parallelism.max=-1": None}


@pytest.mark.parametrize(("text", "cells"), CAPS.items())
def test_the_cap_means_what_it_means_in_dil(text: str, cells: int | None) -> None:
    assert read_properties_job(text)[0].limits.cells == cells


def test_the_rules_are_those_of_floodmark_unless_said() -> None:
    texts = ("", "floodmark.rules=floodmark", "floodmark.rules=dil")
    assert [read_properties_job(text)[0].compat for text in texts] == [False, False, True]


GRIDS = {
    "blank": ("", Grid.plain("none")),
    "any case": ("Daily", Grid.plain("daily")),
    "yearly": ("yearly", Grid.plain("yearly")),
    "composite, in any order": (
        '{"daily": ["2020-01-01", "-"], "monthly": ["2010-01-01", "2020-01-01"]}',
        Grid.composite(
            [
                ("monthly", Bound.parse("2010-01-01", DIL_ZONE), Bound.parse("2020-01-01", DIL_ZONE)),
                ("daily", Bound.parse("2020-01-01", DIL_ZONE), Bound.parse("-", DIL_ZONE)),
            ]
        ),
    ),
}


@pytest.mark.parametrize(("text", "grid"), GRIDS.values(), ids=GRIDS)
def test_partitions_become_a_grid(text: str, grid: Grid) -> None:
    entries = f"{range_of('2010-01-01', '-')}\nms.work.unit.partition={text}"
    assert read_properties_job(entries)[0].time.grid == grid


def test_a_list_of_units_may_be_json() -> None:
    job, _ = read_properties_job('ms.watermark=[{"name": "id", "type": "unit", "units": ["a", "b"]}]')
    assert [unit.key for unit in job.listed_units] == ['{"id":"a"}', '{"id":"b"}']


def test_an_activation_becomes_a_secondary_input(tmp_path: Path) -> None:
    (tmp_path / "data" / "ids").mkdir(parents=True)
    (tmp_path / "data" / "ids" / "part-0.csv").write_text("id,tempId,status\n1,a,OK\n2,b,Failed\n1,a,Success\n")
    (tmp_path / "surveys.properties").write_text(
        "preceding.table.name=ids\nsource.timezone=UTC\n"
        + range_of("2020-01-01", "P0D")
        + '\nms.secondary.input=[{"path": "${job.dir}/data/${preceding.table.name}", "fields": ["id", "tempId"], '
        '"filters": {"status": "(OK|Success)"}, "category": "activation"}]\n'
    )
    read = load_job(tmp_path / "surveys.properties", environment={})
    assert read.notes == ()
    assert read.job.units is not None
    secondary = read.job.units.secondary
    assert isinstance(secondary, SecondaryInput)
    assert read.job.units.name == "activation"
    assert [unit.key for unit in read_units(secondary)] == ['{"id":"1","tempId":"a"}']


UNTRANSLATED = {
    "other properties": (
        "ms.source.uri=https://x\nms.pagination={}\nextract.namespace=n",
        ["Not translated: extract.namespace, ms.pagination, ms.source.uri."],
    ),
    "a backfill": (
        "ms.backfill=true",
        ["Not translated: ms.backfill; use `floodmark ingest backfill`, which does not move the frontier."],
    ),
    "the limits of work units": (
        "ms.work.unit.min.units=1\nms.work.unit.pacing.seconds=10",
        ["Not translated: ms.work.unit.min.units, ms.work.unit.pacing.seconds."],
    ),
    "another category": (
        'ms.secondary.input=[{"path": "/p", "fields": ["t"], "category": "authentication"}]',
        ["Not translated: the item '/p' of ms.secondary.input; its category is authentication."],
    ),
    "a part of an activation": (
        'ms.secondary.input=[{"path": "/p", "fields": ["t"], "uploadS3Key": "x"}]',
        ["Not translated: uploadS3Key of the item '/p' of ms.secondary.input."],
    ),
    "a variable that is used is no loss": ("part=daily\nms.work.unit.partition=${part}", []),
}


@pytest.mark.parametrize(("text", "notes"), UNTRANSLATED.values(), ids=UNTRANSLATED)
def test_what_is_not_translated_is_named(text: str, notes: list[str]) -> None:
    entries = f"source.timezone=UTC\n{range_of('2020-01-01', '-')}\n{text}"
    assert list(read_properties_job(entries)[1]) == notes


ONE = '{"name": "a", "type": "datetime", "range": {"from": "2020-01-01", "to": "-"}}'
UNIT = '{"name": "u", "type": "unit", "units": "1"}'

# The text, the line, and words that are said.
BAD: dict[str, tuple[str, int, str]] = {
    "an unknown zone": ("\nsource.timezone=America/LosAngeles", 2, "Did you mean 'America/Los_Angeles'"),
    "no JSON": ("\nms.watermark=[{]", 2, "ms.watermark: The value is not JSON"),
    "no list": ("ms.watermark={}", 1, "is not a JSON list"),
    "an empty list": ("ms.watermark=[]", 1, "list is empty"),
    "a type in another case": ("ms.watermark=" + f"[{ONE}]".replace("datetime", "Datetime"), 1, "datetime or unit"),
    "an item without a name": ("ms.watermark=" + f"[{ONE}]".replace("name", "nam"), 1, "with a name"),
    "two times": (f"ms.watermark=[{ONE}, {ONE}]", 1, "two items of the type datetime"),
    "two lists of units": (f"ms.watermark=[{UNIT}, {UNIT}]", 1, "two items of the type unit"),
    "no range": ("ms.watermark=" + f"[{ONE}]".replace("range", "rnge"), 1, "no range"),
    "no units": ("ms.watermark=" + f"[{UNIT}]".replace("units", "unts"), 1, "has no units"),
    "units twice": ("ms.watermark=" + f"[{UNIT}]".replace('"1"', '"1, 1"'), 1, "twice"),
    "a time without seconds": (range_of("2020-01-01 10:00", "-"), 1, "10:00:00"),
    "a time whose zone DIL drops": (range_of("2020-01-01T10:00:00Z", "-"), 1, "DIL ignores the time"),
    "a long zone, which DIL drops": (
        range_of("2020-01-01 10:00:00America/Los_Angeles", "-"),
        1,
        "DIL ignores the time",
    ),
    "no hyphens": (range_of("20091201", "-"), 1, "2009-12-01"),
    "no T": (range_of("2020-01-01", "P0D0H0M"), 1, "neither a date, a time nor a duration"),
    "months": (range_of("2020-01-01", "P1M"), 1, "neither a date, a time nor a duration"),
    "no days": (range_of("2020-01-01", "PT10M"), 1, "P0DT0H10M"),
    "too many hours": (range_of("2020-01-01", "P0DT30H"), 1, "30 hours"),
    "a hyphen as from": (range_of("-", "-"), 1, "`from` is -"),
    "a reversed range": (range_of("2020-01-02", "2020-01-01"), 1, "Swap"),
    "a wrong partition": ("\n\nms.work.unit.partition=lovely", 3, "'lovely'"),
    "a composite that is no JSON": ('ms.work.unit.partition={"daily": ["2020-01-01": "-"]}', 1, "not JSON"),
    "a composite without a range": ('ms.work.unit.partition={"daily": "2020-01-01"}', 1, "start and end"),
    "a composite with a duration": ('ms.work.unit.partition={"daily": ["2019-01-01", "P1D"]}', 1, "two fixed times"),
    "a composite with a hole": (
        '\nms.work.unit.partition={"monthly": ["2019-01-01", "2020-01-01"], "daily": ["2020-01-03", "-"]}',
        2,
        "a hole",
    ),
    "a composite that begins too late": (
        range_of("2019-12-01", "-") + '\nms.work.unit.partition={"daily": ["2020-01-01", "-"]}',
        2,
        "the grid starts",
    ),
    "a grace in words": ("ms.grace.period.days=three", 1, "'three'"),
    "a negative abstinence": ("ms.abstinent.period.days=-1", 1, "'-1'"),
    "unknown rules": ("floodmark.rules=gobblin", 1, "floodmark or dil"),
    "no flag": ("ms.work.unit.partial.partition=yes", 1, "true or false"),
    "too many cells": ("ms.work.unit.parallelism.max=5001", 1, "at most 5000"),
    "an unknown variable": ("a.b=1\nms.work.unit.partition=${a.c}", 2, "Did you mean 'a.b'"),
    "listed and read units": (
        f'ms.watermark=[{UNIT}]\nms.secondary.input=[{{"path": "/p", "fields": ["id"]}}]',
        2,
        "read from ms.secondary.input",
    ),
    "two activations": (
        'ms.secondary.input=[{"path": "/p", "fields": ["id"]}, {"path": "/q", "fields": ["id"]}]',
        1,
        "2 items of the category activation",
    ),
    "an activation without a path": ('ms.secondary.input=[{"fields": ["id"]}]', 1, "with a path"),
    "an activation without fields": ('ms.secondary.input=[{"path": "/p"}]', 1, "The fields are []"),
    "an activation with a wrong filter": (
        'ms.secondary.input=[{"path": "/p", "fields": ["id"], "filters": {"id": "("}}]',
        1,
        "not a regular expression",
    ),
    "filters that are no object": (
        'ms.secondary.input=[{"path": "/p", "fields": ["id"], "filters": ["id"]}]',
        1,
        "are not strings",
    ),
}


@pytest.mark.parametrize(("text", "line", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_refused_with_its_line_and_remedy(text: str, line: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "old.properties"
    path.write_text(text)
    with pytest.raises(FloodmarkError) as caught:
        load_job(path, environment={})
    assert (caught.value.fields["file"], caught.value.fields["line"]) == (str(path), line), str(caught.value)
    assert f"old.properties, line {line}: " in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.remedy
