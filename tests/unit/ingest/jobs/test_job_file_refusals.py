"""Claims about job files that say what no job can: they are refused with the line and the remedy."""

from pathlib import Path

import pytest

from floodmark.errors import FloodmarkError
from floodmark.ingest import load_job
from support.ingest.job_files import ENVIRONMENT, WHOLE

INPUT = '[units]\n[units.input]\npath = "ids.csv"\nfields = ["id"]\n'

# What is replaced in the whole file, by what; the line, the code, and words of the fact and of the remedy.
BAD: dict[str, tuple[str, str, int, str, str, str]] = {
    "no TOML": ('name = "orders"', "name = orders", 2, "job-file-invalid", "Invalid TOML", "in quotes"),
    "no TOML at its end": (
        'attempts = "unlimited"',
        'attempts = "',
        38,
        "job-file-invalid",
        "Invalid TOML",
        "in quotes",
    ),
    "an unknown table": ("[limits]", "[limit]", 36, "job-file-invalid", "key limit is unknown", "'limits'"),
    "an unknown key": ("grace_days", "grace_day", 14, "job-file-invalid", "time.grace_day is unknown", "'grace_days'"),
    "a wrong key of a source": ("watermark =", "watermrk =", 27, "job-file-invalid", "source.watermrk", "'watermark'"),
    "no zone": ('zone = "Europe/Berlin"\n', "", 1, "job-file-invalid", "job.zone is missing", "zone ="),
    "no name": ('name = "orders"\n', "", 1, "job-file-invalid", "job.name is missing", "name ="),
    "unknown rules": (
        *('zone = "Europe/Berlin"', 'zone = "Europe/Berlin"\nrules = "dill"'),
        *(4, "job-file-invalid", "job.rules is 'dill'", "'dil'"),
    ),
    "an unknown zone": ("Europe/Berlin", "Europe/Berln", 3, "zone-unknown", "'Europe/Berln'", "'Europe/Berlin'"),
    "an unknown zone of a source": ('zone = "UTC"', 'zone = "UCT2"', 28, "zone-unknown", "'UCT2'", "'UCT'"),
    "no time": ("[time]\n", "[units2]\n", 8, "job-file-invalid", "key units2 is unknown", "'units'"),
    "no from": ("from = 2024-01-01\n", "", 8, "job-file-invalid", "time.from is missing", "from ="),
    "no to": ('to = "P0D"\n', "", 8, "job-file-invalid", "time.to is missing", "to ="),
    "a hyphen as from": ("2024-01-01", '"-"', 10, "range-invalid", "`from` is -", "duration"),
    "a time without seconds": ("2024-01-01", '"2024-01-01 10:00"', 10, "bound-invalid", "10:00", "10:00:00"),
    "a date without hyphens": ("2024-01-01", '"20240101"', 10, "bound-invalid", "20240101", "2024-01-01"),
    "a zone by a long name": (
        *("2024-01-01", '"2024-01-01 10:00:00America/Los_Angeles"'),
        *(10, "bound-invalid", "unknown zone", "offset"),
    ),
    "months in a duration": ('"P0D"', '"P1M"', 11, "bound-invalid", "P1M", "Write for example"),
    "a duration without days": ('"P0D"', '"PT5H"', 11, "bound-invalid", "PT5H", "P0DT5H"),
    "too many hours": ('"P0D"', '"P0DT30H"', 11, "bound-invalid", "30 hours", "P1DT6H"),
    "a number as a bound": ("2024-01-01", "20240101", 10, "job-file-invalid", "time.from is 20240101", "Set from"),
    "an empty range": ('"P0D"', "2024-01-01", 10, "range-invalid", "2024-01-01", "later"),
    "a reversed range": ('"P0D"', "2023-01-01", 10, "range-invalid", "2023-01-01", "Swap"),
    "a reversed range of durations": (
        *('2024-01-01\nto = "P0D"', '"P1D"\nto = "P2D"'),
        *(10, "range-invalid", "P2D", "Swap"),
    ),
    "a wrong grid": ('grid = "daily"', 'grid = "lovely"', 12, "grid-invalid", "'lovely'", "Use one of"),
    "a hole in a grid": (
        'grid = "daily"\n',
        "grid = [{ period = 'monthly', from = 2024-01-01, to = 2024-02-01 },\n"
        "  { period = 'daily', from = 2024-02-03, to = '-' }]\n",
        *(12, "grid-invalid", "a hole", "Start each part where"),
    ),
    "an overlap in a grid": (
        'grid = "daily"\n',
        "grid = [{ period = 'monthly', from = 2024-01-01, to = 2024-02-05 },\n"
        "  { period = 'daily', from = 2024-02-03, to = '-' }]\n",
        *(12, "grid-invalid", "an overlap", "Start each part where"),
    ),
    "a grid that begins too late": (
        'grid = "daily"\n',
        "grid = [{ period = 'daily', from = 2024-02-03 }]\n",
        *(10, "range-invalid", "the grid starts at 2024-02-03", "first part"),
    ),
    "a wrong period in a grid": (
        'grid = "daily"\n',
        "grid = [{ period = 'monthly', from = 2024-01-01, to = 2024-02-01 },\n"
        "  { period = 'dayly', from = 2024-02-01 }]\n",
        *(13, "job-file-invalid", "time.grid[1].period is 'dayly'", "'daily'"),
    ),
    "a wrong key in a grid": (
        'grid = "daily"\n',
        "grid = [{ type = 'monthly', from = 2024-01-01 }]\n",
        *(12, "job-file-invalid", "time.grid[0].type", "Remove it"),
    ),
    "no flag": ("partial = false", "partial = 'no'", 13, "job-file-invalid", "is the string 'no'", "Set partial"),
    "a negative grace": ("grace_days = 3", "grace_days = -3", 14, "job-file-invalid", "is -3", "Set grace_days"),
    "a grace beyond all": ("grace_days = 3", "grace_days = 99999999", 14, "job-invalid", "99999999 days", "0 for none"),
    "a grace that is no number": (
        "grace_days = 3",
        "grace_days = true",
        14,
        "job-file-invalid",
        "is True",
        "Set grace_days",
    ),
    "a settle that is no time": ("15 minutes", "15 minuets", 16, "invalid-option", "'15 minuets'", "'minute'"),
    "a grace with append": ('"merge"\nkeys = ["id"]', '"append"', 32, "job-invalid", "3 days again", "merge"),
    "a unit twice": (
        '["c1", "c2"]',
        '["c1", "c2", "c1"]',
        20,
        "duplicate-unit",
        'customer":"c1"',
        "Remove the duplicate",
    ),
    "a unit twice in a text": (
        '["c1", "c2"]',
        '"c1, c1 "',
        20,
        "duplicate-unit",
        'customer":"c1"',
        "Remove the duplicate",
    ),
    "no units in a list": ('["c1", "c2"]', "[]", 20, "units-invalid", "empty one", "at least one"),
    "a blank unit": ('["c1", "c2"]', '"c1,,c2"', 20, "units-invalid", "is blank", "remove it"),
    "units of other fields": ('["c1", "c2"]', '["c1", {id = 3}]', 20, "units-invalid", "other fields", "remove it"),
    "a unit that is a list": ('["c1", "c2"]', '["c1", [1]]', 20, "job-invalid", "[1]", "string"),
    "listed and read units": (
        'list = ["c1", "c2"]\n',
        'list = ["c1", "c2"]\n' + INPUT.removeprefix("[units]\n"),
        *(21, "job-file-invalid", "Both list and", "Remove list"),
    ),
    "neither listed nor read units": ('list = ["c1", "c2"]\n', "", 18, "job-file-invalid", "units.list", "list ="),
    "an input without fields": (
        'list = ["c1", "c2"]\n',
        '[units.input]\npath = "ids.csv"\n',
        *(20, "invalid-option", "The fields are []", "fields ="),
    ),
    "an input from two places": (
        'list = ["c1", "c2"]\n',
        '[units.input]\npath = "ids.csv"\nfields = ["id"]\nurl = "sqlite:///x"\n',
        *(21, "invalid-option", "Both path and url", "exactly one"),
    ),
    "an input with a wrong filter": (
        'list = ["c1", "c2"]\n',
        '[units.input]\npath = "ids.csv"\nfields = ["id"]\nfilters = { id = "(" }\n',
        *(23, "invalid-option", "not a regular expression", "Success"),
    ),
    "an input of an unknown format": (
        'list = ["c1", "c2"]\n',
        '[units.input]\npath = "ids.csv"\nfields = ["id"]\nformat = "cvs"\n',
        *(23, "job-file-invalid", "'cvs'", "'csv'"),
    ),
    "an input of a job that is not there": (
        'list = ["c1", "c2"]\n',
        '[units.input]\npreceding = true\nfields = ["id"]\n',
        *(21, "job-file-invalid", "no preceding job", "after ="),
    ),
    "a preceding job that is not there": (
        'zone = "Europe/Berlin"',
        'zone = "Europe/Berlin"\nafter = "nowhere.toml"',
        *(4, "job-file-missing", "nowhere.toml", "Check the path"),
    ),
    "an unknown variable": ("{{shop}}", "{{shpo}}", 24, "unknown-variable", "'shpo'", "'shop'"),
    "a variable that is not set": ("{{shop}}", "{{env.STAG}}", 24, "unknown-variable", "env.STAG", "env.STAGE"),
    "a variable of a cell in the target": (
        *("{{job.name}}", "{{range.from}}", 31, "unknown-variable", "range.from", "[source] only"),
    ),
    "an unknown field of a unit": (
        'table = "orders"',
        'query = "SELECT * FROM orders WHERE c = {{unit.custmer}}"',
        *(22, "invalid-option", "'custmer'", "'customer'"),
    ),
    "half a variable": ("{{shop}}", "{{shop}", 24, "job-file-invalid", "braces", "Close"),
    "a variable that is a list": ('shop = "north"', "shop = [1]", 6, "job-file-invalid", "'shop'", "in quotes"),
    "an unknown kind of source": ('"sql"', '"sqll"', 23, "job-file-invalid", "'sqll'", "'sql'"),
    "a secret that is missing": ("SHOP_PASSWORD", "SHOP_PASSWRD", 25, "secret-missing", "SHOP_PASSWRD", "Set the"),
    "a secret in plain words": ("env:SHOP_PASSWORD", "swordfish", 25, "secret-exposed", "source.password", "env:NAME"),
    "a password in a URL": (
        "reader@db",
        "reader:swordfish@db",
        24,
        "secret-exposed",
        "contains a password",
        "env:NAME",
    ),
    "no URL": ('url = "postgresql://reader@db/{{shop}}"\n', "", 22, "job-file-invalid", "source.url", "url ="),
    "a URL without a scheme": ("postgresql://reader@db/{{shop}}", "db", 24, "invalid-option", "no scheme", "sqlite"),
    "a table and a query": (
        '"orders"\nwater',
        '"orders"\nquery = "x"\nwater',
        26,
        "invalid-option",
        "Both table and query",
        "exactly one",
    ),
    "no watermark": ('watermark = "updated_at"\n', "", 22, "invalid-option", "no watermark column", "watermark ="),
    "a type that is none": (
        *('zone = "UTC"', 'watermark_type = "datetime"'),
        *(28, "job-file-invalid", "'datetime'", "'date'"),
    ),
    "a text without a pattern": (
        *('zone = "UTC"', 'watermark_type = "text"'),
        *(22, "invalid-option", "pattern is None", "pattern ="),
    ),
    "nulls that are read and not merged": (
        'zone = "UTC"\n\n[target]\npath = "landed/{{job.name}}"\nmode = "merge"\nkeys = ["id"]',
        'nulls = "read"\n\n[target]\npath = "x"\nmode = "replace"',
        *(28, "invalid-option", "without a watermark are read", "skip"),
    ),
    "an unknown mode": ('"merge"', '"upsert"', 32, "job-file-invalid", "'upsert'", "append"),
    "merge without keys": ('keys = ["id"]\n', "", 30, "invalid-option", "no keys", "keys ="),
    "keys without merge": ('"merge"', '"replace"', 33, "invalid-option", "1 keys", "Remove keys"),
    "no place to land": ('path = "landed/{{job.name}}"\n', "", 30, "invalid-option", "neither path", "path ="),
    "a stream that is replaced": (
        'path = "landed/{{job.name}}"\nmode = "merge"\nkeys = ["id"]',
        'stream = "orders"\nmode = "replace"',
        *(32, "invalid-option", "is a stream", "append"),
    ),
    "an unknown drift": ("evolve", "evolv", 34, "job-file-invalid", "'evolv'", "'evolve'"),
    "a limit of nothing": ("cells = 500", "cells = 0", 37, "job-file-invalid", "limits.cells is 0", "Set cells"),
    "a limit in words": ("cells = 500", "cells = 'many'", 37, "job-file-invalid", "'many'", "Set cells"),
}


@pytest.mark.parametrize(("old", "new", "line", "code", "fact", "remedy"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_refused_with_its_line_and_remedy(
    old: str, new: str, line: int, code: str, fact: str, remedy: str, tmp_path: Path
) -> None:
    assert WHOLE.count(old) >= 1
    path = tmp_path / "orders.toml"
    path.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(FloodmarkError) as caught:
        load_job(path, environment=ENVIRONMENT)
    error = caught.value
    assert (error.code, error.fields["line"], error.fields["file"]) == (code, line, str(path))
    assert error.fact.startswith(f"{path}, line {line}: ")
    assert fact in error.fact
    assert remedy in error.remedy
    assert "swordfish" not in f"{error} {error!r} {error.fields}"
