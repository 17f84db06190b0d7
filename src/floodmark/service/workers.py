"""The threads that work on the store: a bounded pool for requests, and one thread that stores marks in batches."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from floodmark.errors import FloodmarkError, ServiceBusy
from floodmark.service.messages import unexpected_failure
from floodmark.streams.ports import MarkRequest, OutcomeOrError

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Runs what blocks in a bounded number of threads. When too much waits, what comes is refused at once."""

    __slots__ = ("_executor", "_most", "_under_way")

    def __init__(self, threads: int, waiting: int) -> None:
        """Start no thread yet."""
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="floodmark service")
        self._most = threads + waiting
        self._under_way = 0

    async def run(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Return what a function returns, when a thread has run it."""
        if self._under_way >= self._most:
            raise service_busy("requests", self._most)
        self._under_way += 1
        future = self._executor.submit(work, *args, **options)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda done: _call_in_loop(loop, self._ended))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let what runs come to its end, and forget what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _ended(self) -> None:
        self._under_way -= 1


def service_busy(what: str, most: int) -> ServiceBusy:
    """Return the error for what comes when too much waits already."""
    return ServiceBusy(
        f"The service has {most} {what} under way.",
        rule="More are not put off, so that those under way are answered in time.",
        remedy="Try again in a moment, or run more services.",
        most=most,
    )


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The loop has ended, and nobody counts any more.
        return


_MARKS_PER_BATCH: Final = 500
_LOG: Final = logging.getLogger("floodmark.service")

WaitingMarks = tuple[Sequence[MarkRequest], "asyncio.Future[list[OutcomeOrError]]"]


class MarkStore(Protocol):
    """A `Registry`."""

    def note_many(self, notes: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Take many marks in one transaction."""


class MarkQueue:
    """Takes marks of many requests, and settles them in a thread of its own."""

    __slots__ = ("_ended", "_most", "_registry", "_thread", "_waiting", "_wake", "_work")

    def __init__(self, registry: MarkStore, wake: Callable[[], None], most: int) -> None:
        """Start the thread. `wake` is called when marks were stored; no more than `most` may wait."""
        self._registry = registry
        self._wake = wake
        self._most = most
        self._waiting: list[WaitingMarks] = []
        self._work = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="floodmark marks", daemon=True)
        self._thread.start()

    async def note(self, notes: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Return what became of the marks, in their order, when they are stored."""
        future: asyncio.Future[list[OutcomeOrError]] = asyncio.get_running_loop().create_future()
        with self._work:
            if len(self._waiting) >= self._most or self._ended:
                raise service_busy("marks", self._most)
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

    def _take(self) -> list[WaitingMarks]:
        """Return the requests that come next, of about so many marks; at least one."""
        count = 0
        for place, (notes, _) in enumerate(self._waiting):
            count += len(notes)
            if count >= _MARKS_PER_BATCH:
                taken, self._waiting = self._waiting[: place + 1], self._waiting[place + 1 :]
                return taken
        taken, self._waiting = self._waiting, []
        return taken

    def _settle(self, batch: list[WaitingMarks]) -> None:
        try:
            settled = self._registry.note_many([note for notes, _ in batch for note in notes])
        except BaseException:
            # What makes a transaction fail may be in one request: so that the others do not bear it, each goes alone.
            settled = [result for notes, _ in batch for result in self._alone(notes)]
        results: list[tuple[asyncio.Future[list[OutcomeOrError]], list[OutcomeOrError]]] = []
        start = 0
        for notes, future in batch:
            results.append((future, settled[start : start + len(notes)]))
            start += len(notes)
        self._wake()
        try:
            batch[0][1].get_loop().call_soon_threadsafe(_set_results, results)
        except RuntimeError:
            # The loop has ended: nobody waits for an answer any more.
            return

    def _alone(self, notes: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        try:
            return self._registry.note_many(notes)
        except FloodmarkError as error:
            return [error] * len(notes)
        except Exception:
            _LOG.exception("Marks could not be stored.")
            return [unexpected_failure()] * len(notes)


def _set_results(results: list[tuple["asyncio.Future[list[OutcomeOrError]]", list[OutcomeOrError]]]) -> None:
    for future, settled in results:
        if not future.done():
            future.set_result(settled)
