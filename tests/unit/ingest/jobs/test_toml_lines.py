"""Claims about the lines of keys: each error of a job file names the right one."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.ingest.jobfile.tables import KeyPath, line_of, lines_of

TEXT = '''# a job
[job]
name = "orders"   # not [a.header]
"odd name" = 'a = b'
note = """
[not.a.header]
key = "no"
"""
flat.inner = 3

[units]
list = [
  "a",   # first
  ["b", "]"],
  { id = "x", n = [1,
     2] },
]
when = 2020-01-01 10:00:00

[[time.grid]]
type = "monthly"
[[time.grid]]
type = "daily"
[time.grid.more]
x = 1
'''

LINES: dict[str, tuple[KeyPath, int]] = {
    "a table": (("job",), 2),
    "a key": (("job", "name"), 3),
    "a quoted key": (("job", "odd name"), 4),
    "a text over lines": (("job", "note"), 5),
    "a dotted key, behind it": (("job", "flat", "inner"), 9),
    "a table behind a dotted key": (("units",), 11),
    "an element": (("units", "list", 0), 13),
    "an element with a bracket in a text": (("units", "list", 1, 1), 14),
    "a key of an inline table": (("units", "list", 2, "n"), 15),
    "an element on a line of its own": (("units", "list", 2, "n", 1), 16),
    "a time with a space": (("units", "when"), 18),
    "the first of an array of tables": (("time", "grid", 0, "type"), 21),
    "the second of an array of tables": (("time", "grid", 1, "type"), 23),
    "a table within the newest of an array": (("time", "grid", 1, "more", "x"), 25),
}


@pytest.mark.parametrize(("path", "line"), LINES.values(), ids=LINES)
def test_each_key_has_the_line_it_stands_on(path: KeyPath, line: int) -> None:
    tomllib.loads(TEXT)
    assert lines_of(TEXT)[path] == line
    assert lines_of(TEXT.replace("\n", "\r\n"))[path] == line


def test_what_is_not_there_has_the_line_of_what_is_around_it() -> None:
    lines = lines_of(TEXT)
    assert line_of(lines, ("units", "list", 2, "missing")) == 15
    assert line_of(lines, ("nowhere", "at all")) == 1


def test_no_path_is_invented() -> None:
    read: Any = tomllib.loads(TEXT)
    for path in lines_of(TEXT):
        found = read
        for part in path:
            found = found[part]


keys = st.from_regex(r"[a-z]{1,4}", fullmatch=True)
values = st.recursive(
    st.sampled_from(['"x"', "'#'", "1", "true", "1979-05-27T07:32:00Z", '"""\n[a]\n"""', '"\\""', "'''\nb = [\n'''"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "[\n" + ",\n".join(parts) + "\n]"),
    max_leaves=5,
)


@given(st.dictionaries(keys, st.dictionaries(keys, values, max_size=4), max_size=4))
def test_any_text_gives_the_lines_of_all_its_keys(tables: dict[str, dict[str, str]]) -> None:
    text = ""
    expected: dict[KeyPath, int] = {}
    for table, pairs in tables.items():
        expected[(table,)] = text.count("\n") + 1
        text += f"[{table}]  # comment\n"
        for key, value in pairs.items():
            expected[(table, key)] = text.count("\n") + 1
            text += f"{key} = {value}\n\n"
    tomllib.loads(text)
    assert {path: line for path, line in lines_of(text).items() if len(path) < 3} == expected
