"""Readers that move on in time together: nobody runs far ahead of the slowest that has anything to read."""

from typing import Final

from sqlalchemy import select

from floodmark.bindings._checks import check_text
from floodmark.bindings._schema import ALIGNMENTS
from floodmark.control import Home
from floodmark.control.store.base import upsert_row

_SILENT: Final = 60_000_000
"""After so many microseconds a reader that says nothing is waited for no more."""


class AlignedReaders:
    """What the readers of an alignment have told of themselves, in microseconds of event time.

    >>> with Home.open() as home:
    ...     together = AlignedReaders(home, "orders and payments")
    ...     together.report("orders", 5_000, is_caught_up=False)
    ...     together.report("payments", 2_000, is_caught_up=False)
    ...     together.slowest_other("orders"), together.slowest_other("payments")
    (2000, 5000)
    """

    __slots__ = ("_home", "_name")

    def __init__(self, home: Home, name: str) -> None:
        """Speak in this home under a name that the readers share."""
        self._home = home
        self._name = check_text("alignment", name)

    def report(self, member: str, watermark: int | None, *, is_caught_up: bool) -> None:
        """Say how far a reader has come, and whether it has read all there is."""
        with self._home.write() as connection:
            now = self._home.now(connection)
            values = {"watermark": watermark, "is_caught_up": int(is_caught_up), "heard_at": now}
            upsert_row(connection, ALIGNMENTS, {"alignment": self._name, "member": member, **values})

    def slowest_other(self, member: str) -> int | None:
        """Return the lowest watermark of the other readers that have anything to read; None if there is none."""
        others = ALIGNMENTS.c.alignment == self._name, ALIGNMENTS.c.member != member
        with self._home.read() as connection:
            oldest = self._home.now(connection) - _SILENT
            heard = (*others, ALIGNMENTS.c.heard_at >= oldest, ALIGNMENTS.c.is_caught_up == 0)
            found = connection.execute(select(ALIGNMENTS.c.watermark).where(*heard)).scalars().all()
        known = [watermark for watermark in found if watermark is not None]
        return min(known, default=None)
