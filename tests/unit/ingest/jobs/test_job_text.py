"""Claims about jobs written as TOML: what is read back is the same job."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.ingest import Bound, Grid, Job, TimeWatermark, UnitWatermark, job_text, read_job
from floodmark.ingest.jobfile.dil_properties import read_properties_job

HEAD = '[job]\nname = "a"\nzone = "Asia/Tokyo"\n[time]\nfrom = "P7D"\nto = "-"\n'
SQL = '[source]\nkind = "sql"\nurl = "sqlite:////x/shop.db"\nwatermark = "at"\n'

FILES = {
    "the least": HEAD,
    "rules of DIL": HEAD.replace("[time]", 'rules = "dil"\n[time]'),
    "all of a time": HEAD + 'name = "x"\ngrid = "weekly"\npartial = false\ngrace_days = 2\nabstinence_days = 3\n'
    'settle = "1 hour"\n',
    "a composite grid": HEAD.replace('"P7D"', "2020-01-01")
    + "grid = [{ period = 'monthly', from = 2020-01-01, to = 2021-01-01 }, { period = 'daily', from = 2021-01-01 }]\n",
    "variables": HEAD + '[variables]\nn = 3\nb = true\nt = "x\\ny"\nf = 1.5\n',
    "listed units": HEAD + '[units]\nname = "id"\nlist = [1, "2", true]\n',
    "units with fields": HEAD + '[units]\nlist = [{ a = 1, "b c" = "x" }, { a = 2, "b c" = "y" }]\n',
    "a secondary input": HEAD
    + '[units.input]\npath = "/x/ids.csv"\nfields = ["id"]\nfilters = { "a b" = "x|\\\\d+" }\n'
    "distinct = true\n",
    "a database of units": HEAD
    + '[units.input]\nurl = "env:CRM"\nquery = """\nSELECT 1\n"""\nfields = ["id", "b"]\nmost = 7\n',
    "a SQL source": HEAD + SQL + 'table = "t"\npassword = "file:/x/p"\ncolumns = ["a"]\nnulls = "skip"\nsplits = 3\n'
    "[target]\nmode = 'replace'\npath = '/x/y'\npartition_by = 'day'\n",
    "files": HEAD + '[source]\nkind = "files"\npaths = ["/x/*.csv"]\nformat = "csv"\noptions = { header = "true" }\n',
    "a REST source": HEAD
    + '[source]\nkind = "rest"\nurl = "https://x/{{range.from}}"\nparams = { a = "{{range.to}}" }\nrate = 2.5\n'
    'timeout = "5 seconds"\nmax_response_bytes = 1000\npagination = { by = "page", param = "p", size = 10 }\n'
    'auth = { by = "basic", user = "ann", secret = "env:W" }\n[target]\nmode = "append"\nstream = "s"\n',
    "limits": HEAD + '[limits]\ncells = "all"\nattempts = "unlimited"\n',
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_what_is_written_is_read_as_the_same_job(text: str) -> None:
    job = read_job(text, folder=Path("/jobs"), secrets=False, environment={}).job
    again = job_text(job)
    assert read_job(again, folder=Path("/elsewhere"), secrets=False, environment={}).job == job, again


def test_a_properties_file_can_be_written_as_toml() -> None:
    job, _ = read_properties_job(
        'ms.watermark=[{"name": "system", "type": "datetime", "range": {"from": "2019-01-01", "to": "P0DT7H"}}]\n'
        'ms.secondary.input=[{"path": "/data/ids", "fields": ["id"]}]\nms.work.unit.partition={"monthly": '
        '["2019-01-01", "2020-01-01"], "daily": ["2020-01-01", "-"]}\nms.grace.period.days=3\n'
    )
    assert read_job(job_text(job)).job == job


@given(st.text(min_size=1).filter(lambda text: "{{" not in text and "}}" not in text))
def test_any_text_survives(text: str) -> None:
    bound = Bound.parse("2020-01-01", "UTC")
    times = TimeWatermark("t", bound, replace(bound, text="-", at=None, wall=None), Grid.plain("none"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    job = Job("a", "UTC", times, UnitWatermark.listed("id", [text]), variables={"v": text})
    assert read_job(job_text(job)).job == job
