"""The partitions of several topics as those of one source: a number for each, and places in them as people write."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from floodmark.errors import InvalidOption

MOST_PARTITIONS: Final = 1_000_000
"""More than any topic has."""

EARLIEST: Final = -2
LATEST: Final = -1


def part_of(place: int, partition: int) -> int:
    """Return the number of a partition of the topic at this place in the sorted list of topics.

    >>> part_of(0, 3), part_of(2, 3)
    (3, 2000003)
    """
    return place * MOST_PARTITIONS + partition


def place_of(part: int) -> tuple[int, int]:
    """Return the place of the topic, and the partition in it.

    >>> place_of(part_of(2, 3))
    (2, 3)
    """
    return divmod(part, MOST_PARTITIONS)


def offsets_from(text: str, option: str, topics: Sequence[str], counts: Mapping[str, int]) -> dict[int, int]:
    """Return offsets that were written as JSON, as Spark's own source takes them: -2 is earliest, -1 is latest.

    >>> offsets_from('{"orders": {"0": 23, "1": -2}}', "startingOffsets", ["orders"], {"orders": 2})
    {0: 23, 1: -2}
    """
    try:
        given = {
            str(topic): {int(partition): _offset(offset) for partition, offset in offsets.items()}
            for topic, offsets in json.loads(text).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise _refused(option, text, "It is earliest, latest, or JSON: {topic: {partition: offset}}.") from error
    wanted = {topic: set(range(counts[topic])) for topic in topics}
    if {topic: set(offsets) for topic, offsets in given.items()} != wanted:
        shown = ", ".join(f"{topic} 0 to {counts[topic] - 1}" for topic in topics)
        raise _refused(option, text, f"It names each partition of each topic that is read, and no other: {shown}.")
    return {
        part_of(place, partition): offset
        for place, topic in enumerate(topics)
        for partition, offset in sorted(given[topic].items())
    }


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError("no offset")
    return value


def _refused(option: str, text: str, rule: str) -> InvalidOption:
    return InvalidOption(
        f"{option} is {text!r:.100}.",
        rule=rule,
        remedy="""Write for example {"orders": {"0": 23, "1": -2}}; -2 is earliest and -1 is latest.""",
        option=option,
        value=text,
    )
