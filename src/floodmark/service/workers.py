"""The threads that use the store: a bounded pool for requests, and one thread that stores marks in batches."""

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
    """Runs blocking functions in a bounded number of threads. When too many wait, further ones are refused at once."""

    __slots__ = ("_executor", "_most", "_under_way")

    def __init__(self, threads: int, waiting: int) -> None:
        """Allow so many threads, and so many calls waiting for one."""
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="floodmark service")
        self._most = threads + waiting
        self._under_way = 0

    async def run(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Run a function in a thread and return its result."""
        if self._under_way >= self._most:
            raise service_busy("requests", self._most)
        self._under_way += 1
        future = self._executor.submit(work, *args, **options)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda done: _call_in_loop(loop, self._ended))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Finish running calls and cancel waiting ones."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _ended(self) -> None:
        self._under_way -= 1


def service_busy(what: str, most: int) -> ServiceBusy:
    """Return the error for a request when the service is overloaded."""
    return ServiceBusy(
        f"The service has {most} {what} in progress.",
        rule="The service refuses more, so that those in progress are answered in time.",
        remedy="Retry after a second, or start more services for this home.",
        most=most,
    )


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The loop has ended, and with it the count.
        return


_MARKS_PER_BATCH: Final = 500
_LOG: Final = logging.getLogger("floodmark.service")

WaitingMarks = tuple[Sequence[MarkRequest], "asyncio.Future[list[OutcomeOrError]]"]


class MarkStore(Protocol):
    """The part of `Registry` that a `MarkQueue` uses."""

    def note_many(self, requests: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Store many marks in one transaction."""


class MarkQueue:
    """Collects the marks of many requests and stores them in batches, in its own thread."""

    __slots__ = ("_ended", "_most", "_registry", "_thread", "_waiting", "_wake", "_work")

    def __init__(self, registry: MarkStore, wake: Callable[[], None], most: int) -> None:
        """Start the thread. `wake` is called after marks are stored; at most `most` requests may wait."""
        self._registry = registry
        self._wake = wake
        self._most = most
        self._waiting: list[WaitingMarks] = []
        self._work = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="floodmark marks", daemon=True)
        self._thread.start()

    async def note(self, notes: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Store marks and return their outcomes, in order."""
        future: asyncio.Future[list[OutcomeOrError]] = asyncio.get_running_loop().create_future()
        with self._work:
            if len(self._waiting) >= self._most or self._ended:
                raise service_busy("marks", self._most)
            self._waiting.append((notes, future))
            if len(self._waiting) == 1:
                self._work.notify()
        return await future

    def close(self) -> None:
        """Store the waiting marks, and stop."""
        with self._work:
            self._ended = True
            self._work.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._waiting and not self._ended:
                    self._work.wait()
                batch = self._next_batch()
            if not batch:
                return
            self._store(batch)

    def _next_batch(self) -> list[WaitingMarks]:
        """Return the next requests, with about `_MARKS_PER_BATCH` marks together."""
        count = 0
        for index, (notes, _) in enumerate(self._waiting):
            count += len(notes)
            if count >= _MARKS_PER_BATCH:
                batch, self._waiting = self._waiting[: index + 1], self._waiting[index + 1 :]
                return batch
        batch, self._waiting = self._waiting, []
        return batch

    def _store(self, batch: list[WaitingMarks]) -> None:
        try:
            outcomes = self._registry.note_many([note for notes, _ in batch for note in notes])
        except BaseException:
            # One bad request may have failed the whole transaction: store each request alone.
            outcomes = [result for notes, _ in batch for result in self._store_alone(notes)]
        results: list[tuple[asyncio.Future[list[OutcomeOrError]], list[OutcomeOrError]]] = []
        start = 0
        for notes, future in batch:
            results.append((future, outcomes[start : start + len(notes)]))
            start += len(notes)
        self._wake()
        try:
            batch[0][1].get_loop().call_soon_threadsafe(_set_results, results)
        except RuntimeError:
            # The loop has ended, and with it the waiting requests.
            return

    def _store_alone(self, notes: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        try:
            return self._registry.note_many(notes)
        except FloodmarkError as error:
            return [error] * len(notes)
        except Exception:
            _LOG.exception("Storing marks failed.")
            return [unexpected_failure()] * len(notes)


def _set_results(results: list[tuple["asyncio.Future[list[OutcomeOrError]]", list[OutcomeOrError]]]) -> None:
    for future, outcomes in results:
        if not future.done():
            future.set_result(outcomes)
