"""Claims about the sources of job files that are no database: files and REST services."""

from pathlib import Path

import pytest

from floodmark.errors import FloodmarkError
from floodmark.ingest import Auth, FilesSource, Pagination, RestSource, Secret, read_job

HEAD = '[job]\nname = "a"\nzone = "UTC"\n[time]\nfrom = "P7D"\nto = "-"\n[units]\nname = "id"\nlist = "1, 2"\n'


def test_files_are_described(tmp_path: Path) -> None:
    text = (
        '[source]\nkind = "files"\npaths = "drops/{{unit.id}}/*.csv"\nformat = "csv"\ntime = "name"\n'
        "name_pattern = 'x-(?P<time>[0-9]{8})'\nname_format = '%Y%m%d'\noptions = { header = true, maxColumns = 7 }\n"
    )
    assert read_job(HEAD + text, folder=Path("/jobs"), environment={}).job.source == FilesSource(
        paths=("/jobs/drops/{{unit.id}}/*.csv",),
        format="csv",
        time="name",
        name_pattern="x-(?P<time>[0-9]{8})",
        name_format="%Y%m%d",
        options={"header": "true", "maxColumns": "7"},
    )


REST = """\
[source]
kind = "rest"
url = "https://api.example/{{unit.id}}/orders"
params = { since = "{{range.from}}", until = "{{range.to}}" }
time_format = "%Y-%m-%d"
records = "data.orders"
rate = "100 per minute"
timeout = "20 seconds"
[source.pagination]
by = "cursor"
param = "after"
next = "page.next"
[source.auth]
by = "bearer"
secret = "file:token"
"""


def test_a_rest_service_is_described(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    source = read_job(HEAD + REST, folder=tmp_path, environment={}).job.source
    assert source == RestSource(
        url="https://api.example/{{unit.id}}/orders",
        params={"since": "{{range.from}}", "until": "{{range.to}}"},
        time_format="%Y-%m-%d",
        records="data.orders",
        rate=100 / 60,
        timeout=20_000_000,
        pagination=Pagination(by="cursor", param="after", next="page.next"),
        auth=Auth(by="bearer", secret=Secret("file", str(tmp_path / "token"))),
    )


REST_BAD = {
    "a cursor that leads nowhere": ('next = "page.next"\n', "", 18, "no next"),
    "no secret": ('secret = "file:token"\n', "", 22, "source.auth.secret is missing"),
    "a secret that is missing": ("file:token", "file:tokn", 24, "is missing"),
    "a user of a bearer": ('by = "bearer"', 'by = "bearer"\nuser = "ann"', 24, "user = 'ann'"),
    "a wrong rate": ("100 per minute", "often", 16, "'often'"),
    "no URL of the web": ("https://", "ftp://", 12, "neither with https"),
    "a header with a secret": ("params = {", 'headers = { Authorization = "x" }\nparams = {', 13, "Authorization"),
    "a parameter with a secret": ("params = {", "params = { api_key = '{{env.STAGE}}',", 13, "The parameter api_key"),
    "a body of a GET": ("records =", 'body = "x"\nrecords =', 15, "A GET request has a body"),
    "a wrong format of times": ("%Y-%m-%d", "ISO", 14, "time_format is 'ISO'"),
    "an unknown field": ("{{unit.id}}", "{{unit.ids}}", 10, "'ids'"),
}


@pytest.mark.parametrize(("old", "new", "line", "fact"), REST_BAD.values(), ids=REST_BAD)
def test_a_rest_service_that_cannot_be_asked_is_refused(
    old: str, new: str, line: int, fact: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("t")
    assert REST.count(old) == 1
    with pytest.raises(FloodmarkError) as caught:
        read_job(HEAD + REST.replace(old, new), folder=tmp_path, environment={"STAGE": "x"})
    assert (caught.value.fields["line"], fact in caught.value.fact) == (line, True), str(caught.value)


FILES_BAD = {
    "no paths": ('format = "csv"', "no paths"),
    "a wrong format": ('paths = "x"\nformat = "xls"', "'xls'"),
    "a name without a pattern": ('paths = "x"\nformat = "csv"\ntime = "name"', "name_pattern"),
    "a pattern without a name": ('paths = "x"\nformat = "csv"\nname_pattern = "a"', "name_pattern"),
    "a pattern without a group": (
        'paths = "x"\nformat = "csv"\ntime = "name"\nname_pattern = "a"\nname_format = "%Y"',
        "no group",
    ),
    "a pattern that is none": (
        'paths = "x"\nformat = "csv"\ntime = "name"\nname_pattern = "("\nname_format = "%Y"',
        "not a regular expression",
    ),
    "a column for nothing": ('paths = "x"\nformat = "csv"\ncolumn = "at"', "column is 'at'"),
}


@pytest.mark.parametrize(("text", "fact"), FILES_BAD.values(), ids=FILES_BAD)
def test_files_that_cannot_be_read_are_refused(text: str, fact: str) -> None:
    with pytest.raises(FloodmarkError) as caught:
        read_job(f'{HEAD}[source]\nkind = "files"\n{text}\n', environment={})
    assert fact in caught.value.fact
    assert caught.value.fields["line"] in range(10, 16)


NEEDS = {
    "replace": ('mode = "replace"', "range_column"),
    "merge": ('mode = "merge"\nkeys = ["id"]', "newest_by"),
}


@pytest.mark.parametrize(("mode", "key"), NEEDS.values(), ids=NEEDS)
def test_without_a_watermark_column_the_target_must_name_its_own(mode: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    text = f'{HEAD}{REST}[target]\npath = "x"\n{mode}\n'
    with pytest.raises(FloodmarkError) as caught:
        read_job(text, folder=tmp_path, environment={})
    assert (caught.value.fields["line"], f'{key} = "COLUMN"' in caught.value.remedy) == (25, True)
    read_job(f'{text}{key} = "at"\n', folder=tmp_path, environment={})
