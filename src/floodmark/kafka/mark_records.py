"""The records of a marks topic, which hold the watermarks of the topic beside it. Any Kafka client can read them."""

import json
from dataclasses import dataclass
from typing import Final

from floodmark._util.codec import parse_json
from floodmark.errors import SnapshotInvalid

_SUFFIX: Final = ".marks"


def marks_topic_of(topic: str) -> str:
    """Return the name of a topic's marks topic.

    >>> marks_topic_of("orders")
    'orders.marks'
    """
    return topic + _SUFFIX


@dataclass(frozen=True, slots=True)
class MarkRecord:
    """One record of a marks topic: once every partition is read up to its offset in `cut`, the watermark is `lower`.

    `seq` numbers the records of a key; a reader ignores a record whose number is not above the last one. A `kind` other
    than "watermark" says that the writers are idle or unknown; it repeats the current time, if there is one.

    >>> record = MarkRecord("at", 1, "watermark", 100, 102, "us", ("till-3",), {0: 20})
    >>> MarkRecord.load(record.save()) == record
    True
    >>> record.save()
    b'{"key":"at","seq":1,"kind":"watermark","lower":100,"upper":102,"unit":"us","writers":["till-3"],"cut":{"0":20}}'
    """

    key: str
    seq: int
    kind: str
    lower: int | None
    upper: int | None
    unit: str
    writers: tuple[str, ...]
    cut: dict[int, int]

    def save(self) -> bytes:
        """Return the value of the record, as JSON."""
        saved = {
            "key": self.key,
            "seq": self.seq,
            "kind": self.kind,
            "lower": self.lower,
            "upper": self.upper,
            "unit": self.unit,
            "writers": list(self.writers),
            "cut": {str(partition): offset for partition, offset in sorted(self.cut.items())},
        }
        return json.dumps(saved, separators=(",", ":")).encode()

    @classmethod
    def load(cls, value: bytes) -> "MarkRecord":
        """Return a record from its value."""
        try:
            saved = parse_json(value)
            return cls(
                key=str(saved["key"]),
                seq=int(saved["seq"]),
                kind=str(saved["kind"]),
                lower=None if saved["lower"] is None else int(saved["lower"]),
                upper=None if saved["upper"] is None else int(saved["upper"]),
                unit=str(saved["unit"]),
                writers=tuple(map(str, saved["writers"])),
                cut={int(partition): int(offset) for partition, offset in saved["cut"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SnapshotInvalid(
                f"A record of a marks topic is {value!r:.200}.",
                rule="A mark record is JSON with key, seq, kind, lower, upper, unit, writers and cut.",
                remedy="Stop other programs from writing to the marks topic, and delete it if it has such records.",
            ) from error
