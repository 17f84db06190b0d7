"""Checks of what callers hand in: ends, watermarks, ids."""

from collections.abc import Mapping
from typing import Final

from floodmark._util.ints import check_int64, check_watermark
from floodmark.errors import InvalidValue

_LONGEST: Final = 500


def check_ends(ends: Mapping[int, int]) -> dict[int, int]:
    """Return ends, {partition: offset}, as ints, or refuse them.

    >>> check_ends({0: -1})
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The offset of partition 0 is -1. ... [invalid-value]
    """
    if not isinstance(ends, Mapping):
        raise InvalidValue(
            f"The ends are {ends!r}.",
            rule="They are a map from partitions to offsets.",
            remedy="Pass for example {0: 120, 1: 80}; an end is the offset behind the last record.",
            ends=ends,
        )
    checked = {check_int64(partition, "partition"): check_int64(end, "offset") for partition, end in ends.items()}
    for partition, end in checked.items():
        if partition < 0 or end < 0:
            raise InvalidValue(
                f"The offset of partition {partition} is {end}.",
                rule="Partitions and offsets count from 0.",
                remedy="Leave a partition out whose end is not known.",
                partition=partition,
                offset=end,
            )
    return checked


def check_watermarks(watermarks: Mapping[str, int]) -> dict[str, int]:
    """Return watermarks, {key: time}, or refuse them.

    >>> check_watermarks({"": 5})
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The time key is ''. ... [invalid-value]
    """
    return {check_text("time key", key): check_watermark(time) for key, time in watermarks.items()}


def check_text(what: str, value: object) -> str:
    """Return the id of a source or holder, or the name of a key, or refuse it.

    >>> check_text("source", "kafka/orders")
    'kafka/orders'
    """
    if isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable():
        return value
    raise InvalidValue(
        f"The {what} is {value!r}.",
        rule=f"It is printable text of at most {_LONGEST} characters, and not empty.",
        remedy="Use a name that stays the same when the program is started again.",
        what=what,
        value=value,
    )
