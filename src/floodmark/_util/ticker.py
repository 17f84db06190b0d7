"""A thread that repeats an action at an interval until it is stopped."""

import threading
from collections.abc import Callable
from typing import Final

from floodmark.errors import FloodmarkError, HomeBusy, ServiceBusy, ServiceUnavailable

TRANSIENT_ERRORS: Final = (HomeBusy, ServiceBusy, ServiceUnavailable)
"""Temporary errors: the action is retried at the next interval."""


class Ticker:
    """Calls `action` after each interval. Its thread ends when it is stopped, or after an error that is not temporary.

    >>> done = threading.Event()
    >>> ticker = Ticker(0.001, done.set, "example")
    >>> done.wait(5)
    True
    >>> ticker.stop()
    """

    __slots__ = ("_action", "_interval", "_stopped", "_thread")

    def __init__(self, interval: float, action: Callable[[], None], name: str) -> None:
        """Start the thread; the first call comes after one interval, in seconds."""
        self._interval = interval
        self._action = action
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop calling the action; a running call completes."""
        self._stopped.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._action()
            except TRANSIENT_ERRORS:
                continue
            except FloodmarkError:
                # The action's owner keeps the error and raises it at its next call.
                return
