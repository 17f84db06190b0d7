"""Marks that come at the same time are stored together: one transaction for all that wait, then the next."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from floodmark.errors import FloodmarkError
from floodmark.service._statuses import failed
from floodmark.service._workers import busy
from floodmark.streams._settling import Note, Settled

_AT_ONCE: Final = 500
_LOG: Final = logging.getLogger("floodmark.service")

Waiting = tuple[Sequence[Note], "asyncio.Future[list[Settled]]"]


class NotesMany(Protocol):
    """A `Registry`."""

    def note_many(self, notes: Sequence[Note]) -> list[Settled]:
        """Take many marks in one transaction."""


class MarkQueue:
    """Takes marks of many requests, and settles them in a thread of its own."""

    __slots__ = ("_ended", "_most", "_registry", "_thread", "_waiting", "_wake", "_work")

    def __init__(self, registry: NotesMany, wake: Callable[[], None], most: int) -> None:
        """Start the thread. `wake` is called when marks were stored; no more than `most` may wait."""
        self._registry = registry
        self._wake = wake
        self._most = most
        self._waiting: list[Waiting] = []
        self._work = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="floodmark marks", daemon=True)
        self._thread.start()

    async def note(self, notes: Sequence[Note]) -> list[Settled]:
        """Return what became of the marks, in their order, when they are stored."""
        future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        with self._work:
            if len(self._waiting) >= self._most or self._ended:
                raise busy("marks", self._most)
            self._waiting.append((notes, future))
            if len(self._waiting) == 1:
                self._work.notify()
        return await future

    def close(self) -> None:
        """Settle what waits, and end."""
        with self._work:
            self._ended = True
            self._work.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._waiting and not self._ended:
                    self._work.wait()
                batch = self._take()
            if not batch:
                return
            self._settle(batch)

    def _take(self) -> list[Waiting]:
        """Return the requests that come next, of about so many marks; at least one."""
        count = 0
        for place, (notes, _) in enumerate(self._waiting):
            count += len(notes)
            if count >= _AT_ONCE:
                taken, self._waiting = self._waiting[: place + 1], self._waiting[place + 1 :]
                return taken
        taken, self._waiting = self._waiting, []
        return taken

    def _settle(self, batch: list[Waiting]) -> None:
        try:
            settled = self._registry.note_many([note for notes, _ in batch for note in notes])
        except BaseException:
            # What makes a transaction fail may be in one request: so that the others do not bear it, each goes alone.
            settled = [result for notes, _ in batch for result in self._alone(notes)]
        results: list[tuple[asyncio.Future[list[Settled]], list[Settled]]] = []
        start = 0
        for notes, future in batch:
            results.append((future, settled[start : start + len(notes)]))
            start += len(notes)
        self._wake()
        try:
            batch[0][1].get_loop().call_soon_threadsafe(_tell, results)
        except RuntimeError:
            # The loop has ended: nobody waits for an answer any more.
            return

    def _alone(self, notes: Sequence[Note]) -> list[Settled]:
        try:
            return self._registry.note_many(notes)
        except FloodmarkError as error:
            return [error] * len(notes)
        except Exception:
            _LOG.exception("Marks could not be stored.")
            return [failed()] * len(notes)


def _tell(results: list[tuple["asyncio.Future[list[Settled]]", list[Settled]]]) -> None:
    for future, settled in results:
        if not future.done():
            future.set_result(settled)
