"""Records by which readers know what counts: each closes a batch, and names what the one attempt that counts has made.

They form a chain. A record counts if its number follows that of the record that counted before it, and the first with
a number is the one that counts. So two processes that write at the same time never both close a batch, and all who
read the same records agree which of them did. Whatever no record names, is none of the sink's rows: what an attempt
has left that was killed, or came twice, or was made by a process that others have taken the place of.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from floodmark.errors import SinkProgressInvalid
from floodmark.sinks._progress import Progress

_FORM: Final = 1


class Part(NamedTuple):
    """Something that an attempt has made: a file, or the rows of one task; and how many rows it has."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Closing:
    """A record of a sink: what is closed from here on.

    >>> closing = Closing("out", 2, "b7", "a1", (Part("a1/part-0.parquet", 7),))
    >>> Closing.load(closing.save()) == closing
    True
    """

    sink: str
    number: int
    """Counted from 1, without gaps."""
    token: str
    """What tells it from another record of the same number."""
    attempt: str | None = None
    """The last attempt that counts; None before the first."""
    parts: tuple[Part, ...] = ()
    """What that attempt has made, if it is this record that closes it."""
    progress: Progress | None = None

    @property
    def rows(self) -> int:
        """How many rows it closes."""
        return sum(part.rows for part in self.parts)

    def fence(self, token: str) -> "Closing":
        """Return the record with which another process takes over: it says the same of rows, and closes none."""
        return replace(self, number=self.number + 1, token=token, parts=())

    def save(self) -> bytes:
        """Return it as JSON."""
        saved = {
            "form": _FORM,
            "sink": self.sink,
            "number": self.number,
            "token": self.token,
            "attempt": self.attempt,
            "parts": [list(part) for part in self.parts],
            "progress": None if self.progress is None else json.loads(self.progress.save()),
        }
        return json.dumps(saved, separators=(",", ":")).encode()

    @classmethod
    def load(cls, value: bytes | str) -> "Closing":
        """Return what was saved."""
        try:
            saved = json.loads(value)
            if saved["form"] != _FORM:
                raise ValueError(saved["form"])
            progress, attempt = saved["progress"], saved["attempt"]
            return cls(
                sink=str(saved["sink"]),
                number=int(saved["number"]),
                token=str(saved["token"]),
                attempt=None if attempt is None else str(attempt),
                parts=tuple(Part(str(name), int(rows)) for name, rows in saved["parts"]),
                progress=None if progress is None else Progress.load(json.dumps(progress)),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SinkProgressInvalid(
                f"A record of what is closed is {value!r:.200}.",
                rule=f"It is JSON in form {_FORM}, as this release writes it.",
                remedy="Check who else writes there, and that all run the same release.",
            ) from error


def counted(records: Iterable[Closing]) -> dict[str, list[Closing]]:
    """Return, of each sink, the records that count among those that were found, in the order in which they came.

    >>> one, late, two = (Closing("out", number, token) for number, token in ((1, "a"), (1, "b"), (2, "c")))
    >>> [record.token for record in counted([one, late, two])["out"]]
    ['a', 'c']
    """
    chains: dict[str, list[Closing]] = {}
    for record in records:
        chain = chains.setdefault(record.sink, [])
        if record.number == len(chain) + 1:
            chain.append(record)
    return chains
