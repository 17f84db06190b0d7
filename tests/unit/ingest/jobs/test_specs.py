"""Claims about sources and targets as Python objects: they refuse what a job file refuses."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from floodmark.errors import FloodmarkError, InvalidOption, SecretExposed, ZoneUnknown
from floodmark.ingest import (
    Auth,
    Bound,
    FilesSource,
    Grid,
    Job,
    Landing,
    Pagination,
    RestSource,
    SecondaryInput,
    Secret,
    SqlSource,
    TimeWatermark,
    UnitWatermark,
)
from floodmark.ingest.ingestion import check_runnable
from floodmark.ingest.job.job import check_job
from floodmark.ingest.job.options import plain_values, secrets_in

SQL = SqlSource(url="sqlite:///x.db", table="t", watermark="at")
REST = RestSource(url="https://x/")
FILES = FilesSource(paths=("x",), format="csv")
PATH = Landing(path="x", mode="replace")
STREAM = Landing(stream="x", mode="append")
MERGED = Landing(path="x", mode="merge", keys=("id",))
TOKEN = Secret("env", "TOKEN")

BAD: dict[str, tuple[Callable[[], Any], type[FloodmarkError], str]] = {
    "a URL with a password": (lambda: replace(SQL, url="postgresql://a:b@c/d"), SecretExposed, "contains a password"),
    "a blank URL": (lambda: replace(SQL, url=" "), InvalidOption, "url is ' '"),
    "no table and no query": (lambda: replace(SQL, table=None), InvalidOption, "Neither table nor query"),
    "a table and a query": (lambda: replace(SQL, query="x"), InvalidOption, "Both table and query"),
    "a query with one end": (
        lambda: replace(SQL, table=None, watermark=None, query="SELECT {{range.from}}"),
        InvalidOption,
        "no watermark column",
    ),
    "a pattern of no text": (lambda: replace(SQL, pattern="%Y"), InvalidOption, "pattern is '%Y'"),
    "an unknown type": (lambda: replace(SQL, watermark_type=_any("int")), InvalidOption, "'int'"),
    "unknown nulls": (lambda: replace(SQL, nulls=_any("skp")), InvalidOption, "Did you mean 'skip'"),
    "a zone of SQL": (lambda: replace(SQL, zone="Mars"), ZoneUnknown, "Mars"),
    "a zone of files": (lambda: replace(FILES, zone="Mars"), ZoneUnknown, "Mars"),
    "a zone of a service": (lambda: replace(REST, zone="Mars"), ZoneUnknown, "Mars"),
    "no splits": (lambda: replace(SQL, splits=0), InvalidOption, "splits is 0"),
    "no connections": (lambda: replace(SQL, connections=0), InvalidOption, "connections is 0"),
    "a URL of a service with a token": (lambda: replace(REST, url="https://x?token=y"), SecretExposed, "password"),
    "another method": (lambda: replace(REST, method=_any("PUT")), InvalidOption, "'PUT'"),
    "no rate": (lambda: replace(REST, rate=0), InvalidOption, "rate is 0"),
    "no timeout": (lambda: replace(REST, timeout=0), InvalidOption, "timeout is 0"),
    "a response without bytes": (
        lambda: replace(REST, max_response_bytes=0),
        InvalidOption,
        "max_response_bytes",
    ),
    "negative retries": (lambda: replace(REST, retries=-1), InvalidOption, "retries is -1"),
    "unknown pages": (lambda: Pagination(by=_any("pages")), InvalidOption, "Did you mean 'page'"),
    "an offset without a size": (lambda: Pagination(by="offset", param="o"), InvalidOption, "no size"),
    "no pages at all": (lambda: Pagination(max_pages=0), InvalidOption, "max_pages is 0"),
    "basic without a user": (lambda: Auth(by="basic", secret=TOKEN), InvalidOption, "user = None"),
    "a header without a name": (lambda: Auth(by="header", secret=TOKEN), InvalidOption, "name = None"),
    "a stream with partitions": (lambda: replace(STREAM, partition_by=("d",)), InvalidOption, "partition_by is set"),
    "a stream that is replaced": (lambda: replace(STREAM, mode="replace"), InvalidOption, "is a stream"),
    "a key twice": (lambda: replace(MERGED, keys=("a", "a")), InvalidOption, "twice"),
    "a range of a merge": (lambda: replace(MERGED, range_column="a"), InvalidOption, "only for the mode replace"),
    "the newest of a replace": (lambda: replace(PATH, newest_by="a"), InvalidOption, "only for the mode merge"),
    "a blank path": (lambda: replace(PATH, path=" "), InvalidOption, "path is ' '"),
    "a password of units": (
        lambda: SecondaryInput(("id",), url="postgresql://a:b@c/d", table="t"),
        SecretExposed,
        "contains a password",
    ),
    "units of a table and a query": (
        lambda: SecondaryInput(("id",), url="sqlite:///x", table="t", query="q"),
        InvalidOption,
        "Both table and query",
    ),
    "a field twice": (lambda: SecondaryInput(("id", "id"), "x.csv"), InvalidOption, "each field once"),
    "no units at most": (lambda: SecondaryInput(("id",), "x.csv", most=0), InvalidOption, "most is 0"),
}


def _any(value: Any) -> Any:
    """Return what a program without types may pass."""
    return value


@pytest.mark.parametrize(("make", "error", "said"), BAD.values(), ids=BAD)
def test_what_makes_no_sense_is_refused(make: Callable[[], Any], error: type[FloodmarkError], said: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert said in str(caught.value)


def job_of(source: Any, target: Any, **more: Any) -> Job:
    times = TimeWatermark("t", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC"))
    return Job("a", "UTC", times, source=source, target=target, **more)


FITS: dict[str, tuple[Any, Any, str | None]] = {
    "a table that is replaced by its watermark": (SQL, PATH, None),
    "a service that is replaced by a column": (REST, replace(PATH, range_column="at"), None),
    "a service that is replaced by nothing": (REST, PATH, "target.range_column"),
    "files that are replaced by when they were modified": (FILES, PATH, None),
    "files that are replaced by their names": (
        replace(FILES, time="name", name_pattern="(?P<time>[0-9]{8})", name_format="%Y%m%d"),
        PATH,
        None,
    ),
    "files that are replaced by a column of their own": (FILES, replace(PATH, range_column="at"), None),
    "files that are merged, the newest file last": (FILES, MERGED, None),
    "files that are replaced by their column": (replace(FILES, time="column", column="at"), PATH, None),
    "a table that is merged by its watermark": (SQL, MERGED, None),
    "a service that is merged by nothing": (REST, MERGED, "target.newest_by"),
    "a service that is merged by a column": (REST, replace(MERGED, newest_by="at"), None),
    "a service that is appended": (REST, STREAM, None),
    "rows without a watermark, merged": (replace(SQL, nulls="read"), MERGED, None),
    "rows without a watermark, appended": (replace(SQL, nulls="read"), STREAM, "source.nulls"),
    "a column of a unit that is not there": (replace(SQL, units={"id": "x"}), PATH, "source"),
    "a mapping says nothing": ({"anything": 1}, PATH, None),
}


@pytest.mark.parametrize(("source", "target", "option"), FITS.values(), ids=FITS)
def test_source_and_target_fit_or_are_refused(source: Any, target: Any, option: str | None) -> None:
    job = job_of(source, target)
    if option is None:
        check_job(job)
        return
    for check in (check_job, check_runnable):
        with pytest.raises(InvalidOption) as caught:
            check(job)
        assert caught.value.fields["option"] == option


def test_fields_of_units_may_be_named_whether_listed_or_read() -> None:
    source = replace(SQL, units={"id": "customer"}, where="region = {{unit.id}}")
    check_job(job_of(source, PATH, units=UnitWatermark.listed("id", [1])))
    check_job(job_of(source, PATH, units=UnitWatermark("u", secondary=SecondaryInput(("id",), "x.csv"))))
    with pytest.raises(InvalidOption, match="Did you mean 'idd'"):
        check_job(job_of(source, PATH, units=UnitWatermark.listed("idd", [1])))


CUT: dict[str, tuple[Any, str, bool, str | None]] = {
    "a service that knows its range": (replace(REST, params={"a": "{{range.from}}"}), "daily", False, None),
    "a service that does not": (REST, "daily", False, "{{range.from}}"),
    "a service that is read whole": (REST, "none", False, None),
    "a service that knows its unit": (replace(REST, url="https://x/{{unit.id}}"), "none", True, None),
    "a service that does not know it": (REST, "none", True, "{{unit.id}}"),
    "files that know their unit": (replace(FILES, paths=("x/{{unit.id}}/*",)), "daily", True, None),
    "files that do not": (FILES, "daily", True, "{{unit.id}}"),
    "a table has a column": (SQL, "daily", True, None),
}


@pytest.mark.parametrize(("source", "period", "has_units", "remedy"), CUT.values(), ids=CUT)
def test_cells_that_would_all_read_the_same_are_refused(
    source: Any, period: str, has_units: bool, remedy: str | None
) -> None:
    job = job_of(source, STREAM, units=UnitWatermark.listed("id", [1]) if has_units else None)
    job = replace(job, time=replace(job.time, grid=Grid.plain(period)))
    if remedy is None:
        check_job(job)
        return
    with pytest.raises(InvalidOption) as caught:
        check_job(job)
    assert remedy in caught.value.remedy


def test_pages_begin_at_one_and_offsets_at_zero() -> None:
    assert Pagination(by="page", param="p").first == 1
    assert Pagination(by="offset", param="o", size=10).first == 0
    assert Pagination(by="page", param="p", first=0).first == 0


def test_a_spec_is_written_down_with_references_and_pickles_and_hashes() -> None:
    source = replace(REST, auth=Auth(by="bearer", secret=TOKEN), params={"a": "b"})
    assert plain_values(source)["auth"] == {"by": "bearer", "secret": "env:TOKEN"}
    assert plain_values(source)["kind"] == "rest"
    assert secrets_in([source, None, SQL]) == (TOKEN,)
    assert pickle.loads(pickle.dumps(source)) == source
    assert hash(source) == hash(replace(source))
