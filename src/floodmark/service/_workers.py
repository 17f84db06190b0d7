"""The threads that work on the store, and how much may wait for them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from floodmark.errors import ServiceBusy

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
            raise busy("requests", self._most)
        self._under_way += 1
        future = self._executor.submit(work, *args, **options)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda done: _back_in(loop, self._ended))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let what runs come to its end, and forget what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _ended(self) -> None:
        self._under_way -= 1


def busy(what: str, most: int) -> ServiceBusy:
    """Return the error for what comes when too much waits already."""
    return ServiceBusy(
        f"The service has {most} {what} under way.",
        rule="More are not put off, so that those under way are answered in time.",
        remedy="Try again in a moment, or run more services.",
        most=most,
    )


def _back_in(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The loop has ended, and nobody counts any more.
        return
