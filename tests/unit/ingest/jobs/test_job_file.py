"""Claims about job files: what they say becomes a job."""

import inspect
import pickle
import re
import textwrap
from pathlib import Path

import pytest

from floodmark.errors import JobFileInvalid, JobFileMissing
from floodmark.ingest import (
    Bound,
    Grid,
    Job,
    Landing,
    Limits,
    SecondaryInput,
    Secret,
    SqlSource,
    TimeWatermark,
    UnitWatermark,
    load_job,
    read_job,
)
from support.ingest.job_files import ENVIRONMENT, WHOLE


def test_a_file_gives_the_same_job_as_python_objects() -> None:
    read = read_job(WHOLE, folder=Path("/jobs"), environment=ENVIRONMENT)
    zone = "Europe/Berlin"
    assert read.job == Job(
        name="orders",
        zone=zone,
        time=TimeWatermark(
            "updated",
            Bound.parse("2024-01-01", zone),
            Bound.parse("P0D", zone),
            Grid.plain("daily"),
            partial=False,
            grace_days=3,
            abstinence_days=1,
            settle=900_000_000,
        ),
        units=UnitWatermark.listed("customer", ["c1", "c2"]),
        source=SqlSource(
            url="postgresql://reader@db/north",
            password=Secret("env", "SHOP_PASSWORD"),
            table="orders",
            watermark="updated_at",
            zone="UTC",
        ),
        target=Landing(path="/jobs/landed/orders", mode="merge", keys=("id",), drift="evolve"),
        limits=Limits(cells=500, attempts=None),
        variables={"shop": "north"},
    )
    assert read.notes == ()


def test_a_job_can_be_sent_to_another_process_and_shows_no_secret() -> None:
    job = read_job(WHOLE, environment=ENVIRONMENT).job
    assert pickle.loads(pickle.dumps(job)) == job
    assert ENVIRONMENT["SHOP_PASSWORD"] not in f"{job!r} {pickle.dumps(job)!r} {job.described()}"


def test_the_least_file_has_a_job_and_a_time() -> None:
    job = read_job('[job]\nname = "a"\nzone = "UTC"\n[time]\nfrom = "P7D"\nto = "-"\n', environment={}).job
    assert (job.time.grid, job.time.partial, job.units, job.limits) == (Grid.plain("none"), True, None, Limits())


def test_a_job_may_ask_for_the_rules_of_dil() -> None:
    dil = WHOLE.replace("[variables]", 'rules = "dil"\n[variables]')
    assert [read_job(text, environment=ENVIRONMENT).job.compat for text in (WHOLE, dil)] == [False, True]


def test_the_example_of_the_documentation_is_a_job_file(tmp_path: Path) -> None:
    documentation = inspect.getdoc(load_job) or ""
    first, second = re.findall(r"(?m)(?:^(?:    .*)?\n)*^    .*\n(?:^(?:    .*)?\n)*", documentation)[:2]
    (tmp_path / "customers.toml").write_text(WHOLE.replace('"orders"', '"customers"'))
    (tmp_path / "orders.toml").write_text(textwrap.dedent(first))
    job = load_job(tmp_path / "orders.toml", environment=ENVIRONMENT).job
    assert (job.name, job.time.settle, job.limits.cells) == ("orders", 900_000_000, 500)
    composite = re.sub("grid = .*\n", "", textwrap.dedent(first)) + textwrap.dedent(second)
    (tmp_path / "orders.toml").write_text(composite)
    parts = load_job(tmp_path / "orders.toml", environment=ENVIRONMENT).job.time.grid.parts
    assert [(part.period, str(part.start), str(part.end)) for part in parts] == [
        ("monthly", "2020-01-01", "2024-01-01"),
        ("daily", "2024-01-01", "-"),
    ]


def test_a_missing_secret_is_no_matter_to_those_who_only_look(tmp_path: Path) -> None:
    assert read_job(WHOLE, environment={}, secrets=False).job.name == "orders"


def test_a_file_that_nobody_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobFileMissing, match="Save it as UTF-8"):
        load_job(tmp_path / "bytes.toml")
    with pytest.raises(JobFileMissing, match="Check the path"):
        load_job(tmp_path)


def test_a_preceding_job_gives_variables_and_its_table_as_units(tmp_path: Path) -> None:
    (tmp_path / "customers.toml").write_text(WHOLE.replace('"orders"', '"customers"', 1))
    (tmp_path / "orders.toml").write_text(
        '[job]\nname = "{{preceding.name}}-orders"\nzone = "{{preceding.zone}}"\nafter = "customers.toml"\n'
        '[variables]\nplace = "{{preceding.shop}}/{{env.STAGE}}"\n'
        '[time]\nfrom = "P7D"\nto = "-"\n'
        '[units.input]\npreceding = true\nfields = ["id"]\n'
        '[target]\nmode = "append"\npath = "{{preceding.table}}-{{place}}"\n'
    )
    job = load_job(tmp_path / "orders.toml", environment={"STAGE": "test"}).job
    assert (job.name, job.zone) == ("customers-orders", "Europe/Berlin")
    assert job.units is not None
    landed = str(tmp_path / "landed/customers")
    assert job.units.secondary == SecondaryInput(("id",), landed, "delta")
    assert job.target.path == f"{landed}-north/test"


def test_jobs_that_precede_each_other_are_refused(tmp_path: Path) -> None:
    text = '[job]\nname = "a"\nzone = "UTC"\nafter = "{}"\n[time]\nfrom = "P7D"\nto = "-"\n'
    (tmp_path / "a.toml").write_text(text.format("b.toml"))
    (tmp_path / "b.toml").write_text(text.format("a.toml"))
    with pytest.raises(JobFileInvalid, match="precedes itself"):
        load_job(tmp_path / "a.toml", environment={})
