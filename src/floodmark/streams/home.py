"""The home of streams: `connect`, and where streams and reader groups are created, found and deleted."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from floodmark._util.times import Duration
from floodmark.control import Home
from floodmark.control.home import HOME_VARIABLE
from floodmark.errors import HomeUnusable, InvalidOption
from floodmark.streams.backend import LocalBackend
from floodmark.streams.controller import Controller
from floodmark.streams.definition import TimeColumns, make_settings
from floodmark.streams.groups.requests import GroupRef
from floodmark.streams.ports import Backend
from floodmark.streams.readers.group import GroupBounds, ReaderGroup, create_group
from floodmark.streams.stream import Stream

LOG_VARIABLE: Final = "FLOODMARK_LOG"
"""Where the events of new streams are, if nobody says otherwise."""


def connect(
    location: str | Path | None = None,
    *,
    controller: bool = True,
    clock: Callable[[], int] | None = None,
    token: str | None = None,
    ca: str | Path | None = None,
    log: str | None = None,
    log_options: Mapping[str, str] | None = None,
) -> "StreamHome":
    """Open the home at a directory, a `postgresql://` URL, or behind the service at an `http://` or `https://` URL.

    A directory that is not there is made. Without a location it is where FLOODMARK_HOME says, else `.floodmark`. With
    `controller` this process looks after watermarks too, from the first writer with an id on; without, some other
    process must.

    Behind a service nothing else is different. Several services of one home are named with commas between them: while
    one of them answers, all goes on. What a service may be asked for is up to a `token`, else to FLOODMARK_TOKEN;
    `ca`, else FLOODMARK_CA, is a file with the authorities whose certificates are trusted, in place of the system's.

    With `log="kafka://host:port"`, else FLOODMARK_LOG, the events of streams that are created here are in Kafka; those
    of others stay where they are, and nobody has to say so again. `log_options` are options of Kafka's client such as
    kafka.sasl.password; each may also come from a variable such as FLOODMARK_KAFKA_SASL_PASSWORD, as it must where no
    program can be told. None of them is stored.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/orders")
    ...     [stream.name for stream in home.streams()]
    ['shop/orders']
    """
    place = location or os.environ.get(HOME_VARIABLE)
    if isinstance(place, str) and place.lower().startswith(("http://", "https://")):
        # Loaded when it is needed: most homes are not behind a service.
        from floodmark.streams.remote.backend import open_remote

        _check_unused(place, clock=clock, log=log, log_options=log_options)
        return StreamHome(open_remote(place, token=token, ca=ca))
    _check_unused(place, token=token, ca=ca)
    where = log or os.environ.get(LOG_VARIABLE)
    servers = None if not where else _servers_of(where, log_options)
    home = Home.open(location, clock=clock)
    return StreamHome(LocalBackend(home, log=servers, log_options=log_options), controller=controller)


class StreamHome:
    """The streams of a home. Get one from `connect`; many threads and processes may use the same home."""

    __slots__ = ("_backend", "_controller", "_lock", "_with_controller")

    def __init__(self, backend: Backend, *, controller: bool = True) -> None:
        """Use `connect`."""
        self._backend = backend
        self._with_controller = controller
        if isinstance(backend, LocalBackend):
            backend.on_wake = self._wake
        self._controller: Controller | None = None
        self._lock = threading.Lock()

    @property
    def local(self) -> LocalBackend:
        """What a `Controller` works on; a home behind a service has none."""
        if not isinstance(self._backend, LocalBackend):
            raise HomeUnusable(
                f"{self._backend!r} is behind a service.",
                rule="Its store is reached by the service alone.",
                remedy="Ask where the service runs, or connect to the store itself.",
            )
        return self._backend

    @property
    def home(self) -> Home:
        """The home itself; one behind a service is not to be had."""
        return self.local.home

    @property
    def controller(self) -> Controller | None:
        """The controller in this process, once there is one."""
        return self._controller

    def create_stream(
        self,
        name: str,
        schema: Any = None,
        segments: int = 1,
        time_columns: TimeColumns | None = None,
        unit: str = "us",
        **durations: Duration | None,
    ) -> Stream:
        """Create a stream under a name such as "shop/orders".

        Args:
            name: Parts of letters, digits, `_`, `-` and `.`, with `/` between them.
            schema: Text as Spark writes schemas, or a pyarrow.Schema; without one, events are kept as JSON.
            segments: How many segments share the key space at the beginning.
            time_columns: {key: column}, or columns that are their own keys; the first is the default key.
            unit: The unit of times: "s", "ms", "us" or "ns".
            **durations: Each as text ("10 seconds") or a timedelta. `writer_timeout` (1 minute): how long the
                watermark waits for a writer. `first_mark_delay` (0): how long after the first mark the first watermark
                comes. `rate_floor` (10 ms): the least time between two entries of the marks log. `marks_retention`
                (None, for ever): how long entries are kept. `forget_after` (None, for ever): how long a writer that
                timed out is remembered. `transaction_timeout` (1 minute): after which a transaction is aborted.
        """
        settings = make_settings(schema=schema, time_columns=time_columns, unit=unit, **durations)
        return Stream(self._backend, self._backend.catalog.create(name, settings, segments))

    def stream(self, name: str) -> Stream:
        """Return the stream of that name.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/orders")
        ...     home.stream("shop/order")
        Traceback (most recent call last):
        floodmark.errors.UnknownStream: There is no stream 'shop/order'. ... 'shop/orders'? [unknown-stream]
        """
        return Stream(self._backend, self._backend.catalog.find(name))

    def streams(self) -> list[Stream]:
        """Return all streams, by their names."""
        return [Stream(self._backend, info) for info in self._backend.catalog.all()]

    def delete_stream(self, name: str) -> None:
        """Forget a stream, with its events and marks."""
        self.stream(name).delete()

    def create_group(
        self,
        name: str,
        streams: Sequence[str] | str,
        *,
        start: GroupBounds = None,
        end: GroupBounds = None,
        key: str | None = None,
        after_last: str = "wait",
    ) -> ReaderGroup:
        """Create a group of readers that share the segments of these streams.

        Args:
            name: Its name.
            streams: The names of the streams.
            start: Where it begins; without one, at the head. A cut, {stream: cut}, a `GroupCut`, or a time: that is
                behind the newest watermark wholly below it, and rows before it are left out by their time column.
                What a writer wrote ahead of its own marks may lie before that place.
            end: Where it ends; without one, never, unless its streams are sealed. A time stands for the first cut at
                which all before it has come; rows from it on are left out.
            key: The time key of those times, and by which the group measures how far behind it is; without one, the
                default key of each stream.
            after_last: What to do about a time that the marks log has not come to: "wait" for it, or "refuse".
        """
        options: dict[str, Any] = {"start": start, "end": end, "key": key, "after_last": after_last}
        return create_group(self._backend, name, streams, **options)

    def group(self, name: str) -> ReaderGroup:
        """Return the reader group of that name.

        >>> with connect() as home:
        ...     home.group("billing")
        Traceback (most recent call last):
        floodmark.errors.UnknownGroup: There is no group 'billing'. ... [unknown-group]
        """
        return ReaderGroup(self._backend, self._backend.groups.find(name))

    def groups(self) -> list[ReaderGroup]:
        """Return all reader groups, by their names."""
        return [ReaderGroup(self._backend, state) for state in self._backend.groups.all()]

    def delete_group(self, name: str) -> None:
        """Forget a reader group. Its readers end with it; its streams stay as they are."""
        state = self._backend.groups.find(name)
        self._backend.groups.delete(GroupRef(state.name, state.group_id))

    def close(self) -> None:
        """Let go of the home; to say so twice is no error. Writers should be closed before."""
        with self._lock:
            controller, self._controller = self._controller, None
            self._with_controller = False
        if controller is not None:
            controller.stop()
        self._backend.close()

    def __enter__(self) -> "StreamHome":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StreamHome({self._backend!r})"

    def _wake(self) -> None:
        """Tell the controller of this process that a writer was heard; the first one brings it into being."""
        controller = self._controller
        if controller is None:
            with self._lock:
                if not self._with_controller:
                    return
                if self._controller is None:
                    self._controller = Controller(self)
                    self._controller.start()
                controller = self._controller
        controller.wake()


def _servers_of(log: str, options: Mapping[str, str] | None) -> str:
    """Return the brokers that the address of a log names, or refuse it."""
    if not log.startswith("kafka://"):
        raise InvalidOption(
            f"The log is {log!r}.",
            rule="It is Kafka, as kafka://host:port, or the home itself.",
            remedy="Leave it out to keep events in the home.",
            option="log",
        )
    from floodmark.kafka import KafkaSettings

    return KafkaSettings.of(log, options).servers


def _check_unused(place: object, **options: object) -> None:
    """Refuse an option that would change nothing: who gave it expects something of it."""
    for name, value in options.items():
        if value is not None:
            is_service = isinstance(place, str) and place.lower().startswith("http")
            raise InvalidOption(
                f"{name} was given for a home {'behind a service' if is_service else 'that is not behind a service'}.",
                rule="A clock and a log are for a home that is opened here, a token and a ca are for a service.",
                remedy="Leave it out, or check the location.",
                option=name,
            )
