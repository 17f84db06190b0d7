"""A service as a process: it runs until it is told to end."""

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from floodmark._util.times import Duration
from floodmark.service._limits import ServiceLimits
from floodmark.service._listener import Tls
from floodmark.service._service import Service
from floodmark.streams import Controller, connect

_LOG: Final = logging.getLogger("floodmark.service")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(
    home: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    tls: Tls | None = None,
    limits: ServiceLimits | None = None,
    ttl: Duration = "10 seconds",
    log: str | None = None,
    on_start: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a home until this process gets SIGTERM or SIGINT; to be called from the main thread.

    A controller looks after the watermarks of its share of the streams; if it dies, those of other services wait `ttl`
    before they take over. At the end nothing new is taken, what is under way is finished, and the share is given up.
    `on_start` is called with the address once requests are answered. `log` is that of `connect`.
    """
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {number: signal.signal(number, tell) for number in _SIGNALS}
    try:
        with connect(home, controller=False, log=log) as local:
            controller = Controller(local, ttl=ttl)
            local.local.on_wake = controller.wake
            with controller, Service(local, host=host, port=port, tls=tls, limits=limits) as service:
                on_start(service.url)
                told.wait()
                _LOG.info("The service at %s ends.", service.url)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
