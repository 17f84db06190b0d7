"""Claims about units that are written out."""

import pytest

from floodmark.errors import DuplicateUnit, FloodmarkError, JobInvalid, UnitsInvalid
from floodmark.ingest.job.unit import listed_units

LISTS: dict[str, tuple[object, list[str]]] = {
    "commas, as DIL writes them": ("a, b ,c", ['{"id":"a"}', '{"id":"b"}', '{"id":"c"}']),
    "one": ("a", ['{"id":"a"}']),
    "the word null is a text": ("null,0", ['{"id":"null"}', '{"id":"0"}']),
    "a list": (["b", "a"], ['{"id":"b"}', '{"id":"a"}']),
    "a list in a text": ('["a", 7]', ['{"id":"a"}', '{"id":7}']),
    "numbers and truths": ([1, 2.5, True], ['{"id":1}', '{"id":2.5}', '{"id":true}']),
    "tables": ([{"z": 1, "a": "x"}, {"a": "y", "z": 2}], ['{"a":"x","z":1}', '{"a":"y","z":2}']),
}


@pytest.mark.parametrize(("value", "keys"), LISTS.values(), ids=LISTS)
def test_units_keep_their_order_and_have_keys_with_sorted_fields(value: object, keys: list[str]) -> None:
    assert [unit.key for unit in listed_units("id", value)] == keys


BAD: dict[str, tuple[object, type[FloodmarkError]]] = {
    "nothing": ("", UnitsInvalid),
    "blanks": ("  ", UnitsInvalid),
    "an empty list": ([], UnitsInvalid),
    "a number": (7, UnitsInvalid),
    "a blank part": ("a,,b", UnitsInvalid),
    "a comma at the end": ("a,b,", UnitsInvalid),
    "a JSON list that is open": ('["a"', UnitsInvalid),
    "an empty table": ([{}], UnitsInvalid),
    "None": ([None], UnitsInvalid),
    "other fields": ([{"a": 1}, {"b": 1}], UnitsInvalid),
    "a list in a list": ([["a"]], JobInvalid),
    "the same text": ("a, b, a", DuplicateUnit),
    "the same fields in another order": ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], DuplicateUnit),
}


@pytest.mark.parametrize(("value", "error"), BAD.values(), ids=BAD)
def test_what_is_no_list_of_different_units_is_refused(value: object, error: type[FloodmarkError]) -> None:
    with pytest.raises(error):
        listed_units("id", value)


def test_a_number_and_its_text_are_two_units() -> None:
    assert len(listed_units("id", [1, "1"])) == 2
