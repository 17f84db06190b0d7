"""Claims about properties files, as Java's own reader takes them."""

import pytest

from floodmark.errors import JobFileInvalid
from floodmark.ingest.jobfile.dil_properties import read_properties

ENTRIES = {
    "equals": ("a.b=c", {"a.b": "c"}),
    "colon": ("a.b : c", {"a.b": "c"}),
    "only a blank": ("a.b   c d ", {"a.b": "c d "}),
    "a second separator belongs to the value": ("a==b", {"a": "=b"}),
    "no value": ("a", {"a": ""}),
    "comments and empty lines": ("# x\n  ! y\n\n a=1", {"a": "1"}),
    "a line that goes on": ("a=[1,\\\n     2,\\\n 3]", {"a": "[1,2,3]"}),
    "a line that goes on, of Windows": ("a=1\\\r\n  2\r\nb=3", {"a": "12", "b": "3"}),
    "a backslash that is escaped does not go on": ("a=x\\\\\nb=2", {"a": "x\\", "b": "2"}),
    "three do": ("a=x\\\\\\\n  y", {"a": "x\\y"}),
    "a comment sign in a line that goes on": ("a=1\\\n#2", {"a": "1#2"}),
    "the last line goes on": ("a=1\\", {"a": "1"}),
    "escaped separators in keys": (r"a\=b\:c\ d = e", {"a=b:c d": "e"}),
    "escapes": (r"a = \tx\ny\u00e9\q", {"a": "\tx\nyéq"}),
    "two escapes that are one character": (r"a = \ud83d\ude00", {"a": "😀"}),
    "the last one counts": ("a=1\na=2", {"a": "2"}),
    "JSON": ('a = [{"name": "x", "re": "\\\\d+"}]', {"a": '[{"name": "x", "re": "\\d+"}]'}),
}


@pytest.mark.parametrize(("text", "expected"), ENTRIES.values(), ids=ENTRIES)
def test_entries_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert {key: entry.value for key, entry in read_properties(text).items()} == expected


def test_an_entry_has_the_line_on_which_it_begins() -> None:
    found = read_properties("# head\n\na=1\\\n  2\\\n  3\nb=4\n")
    assert {key: entry.line for key, entry in found.items()} == {"a": 3, "b": 6}


def test_half_an_escape_is_refused_with_its_line() -> None:
    with pytest.raises(JobFileInvalid, match=r"old\.properties, line 2: Invalid escape \\u12") as caught:
        read_properties("a=1\nb=\\u12", "old.properties")
    assert caught.value.fields == {"file": "old.properties", "line": 2}
