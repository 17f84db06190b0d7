"""`connect`, and `StreamHome`, with which programs create, find and delete streams and reader groups."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from floodmark._util.options import require_one_of
from floodmark._util.times import Duration, duration_micros
from floodmark.control import Home
from floodmark.control.home import HOME_VARIABLE
from floodmark.errors import HomeUnusable, InvalidOption, StreamExists
from floodmark.streams.backend import LocalBackend
from floodmark.streams.controller import Controller
from floodmark.streams.definition import TimeColumns, check_same_definition, make_settings
from floodmark.streams.groups.requests import GroupRef
from floodmark.streams.ports import Backend
from floodmark.streams.readers.group import GroupBounds, ReaderGroup, create_group
from floodmark.streams.stream import Stream

LOG_VARIABLE: Final = "FLOODMARK_LOG"
"""The environment variable with the default of `connect(log=...)`."""


def connect(
    location: str | Path | None = None,
    *,
    controller: bool = True,
    clock: Callable[[], int] | None = None,
    token: str | None = None,
    ca: str | Path | None = None,
    log: str | None = None,
    log_options: Mapping[str, str] | None = None,
    patience: Duration = "30 seconds",
) -> "StreamHome":
    """Open a home, which keeps streams, their watermarks and reader groups.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/orders")
    ...     [stream.name for stream in home.streams()]
    ['shop/orders']

    Args:
        location: One of the following; FLOODMARK_HOME if left out, else the directory `.floodmark`.
            A directory, which is created if it does not exist: metadata and events are in a SQLite file there.
            A `postgresql://` URL: many machines share the home.
            An `http://` or `https://` URL of a Floodmark service. Name several services of one home with commas
            between them, to continue when one of them fails.
        controller: Advance watermarks in this process too, in a background thread that starts with the first writer
            that has an id. If False, another process must run a controller.
        clock: Returns the time in microseconds since the epoch, in place of the clock of the store. For tests.
        token: Authenticates to the service; FLOODMARK_TOKEN if left out.
        ca: A file with the CA certificates to trust in place of the system's; FLOODMARK_CA if left out.
        log: `kafka://host:port` to keep the events of new streams in Kafka; FLOODMARK_LOG if left out. Existing
            streams stay where they are, and are found without this option.
        log_options: Options of the Kafka client such as `kafka.sasl.password`. Each may also be set by an environment
            variable such as FLOODMARK_KAFKA_SASL_PASSWORD. They are not stored in the home.
        patience: How long an operation waits for a PostgreSQL server that went away, for example to restart, before it
            fails with `HomeUnusable`.
    """
    address = location or os.environ.get(HOME_VARIABLE)
    if isinstance(address, str) and address.lower().startswith(("http://", "https://")):
        # Imported only when needed: most homes are not behind a service.
        from floodmark.streams.remote.backend import open_remote

        _check_unused(address, clock=clock, log=log, log_options=log_options)
        return StreamHome(open_remote(address, token=token, ca=ca))
    _check_unused(address, token=token, ca=ca)
    log_url = log or os.environ.get(LOG_VARIABLE)
    servers = None if not log_url else _servers_of(log_url, log_options)
    home = Home.open(location, clock=clock, patience=duration_micros(patience, "patience") / 1e6)
    return StreamHome(LocalBackend(home, log=servers, log_options=log_options), controller=controller)


class StreamHome:
    """A home: its streams and reader groups. Open one with `connect`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/orders", schema="id BIGINT, at TIMESTAMP", time_columns="at")
    ...     group = home.create_group("billing", "shop/orders")
    ...     group.streams
    ('shop/orders',)

    Many threads and processes may use the same home. Close writers and readers before the home.
    """

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
        """The backend that a `Controller` works on. A home behind a service has none."""
        if not isinstance(self._backend, LocalBackend):
            raise HomeUnusable(
                f"{self._backend!r} is behind a service.",
                rule="Only the service has access to the store of this home.",
                remedy="Connect to the store itself, by its directory or postgresql:// URL.",
            )
        return self._backend

    @property
    def home(self) -> Home:
        """The underlying home, for administration. Not available behind a service."""
        return self.local.home

    @property
    def controller(self) -> Controller | None:
        """The controller of this process, or None if it has not started."""
        return self._controller

    def create_stream(
        self,
        name: str,
        schema: Any = None,
        segments: int = 1,
        time_columns: TimeColumns | None = None,
        unit: str = "us",
        retention_bytes: int | None = None,
        *,
        if_exists: str = "fail",
        **durations: Duration | None,
    ) -> Stream:
        """Create a stream.

        >>> with connect() as home:
        ...     home.create_stream("shop/orders", schema="id BIGINT, at TIMESTAMP", time_columns="at", segments=4)
        Stream('shop/orders')

        Args:
            name: Names of letters, digits, `_`, `-` and `.`, separated by `/`.
            schema: The columns in Spark's DDL syntax, or a pyarrow.Schema. Without a schema, events are stored as JSON.
            segments: The number of segments at the start; the stream can be scaled later.
            time_columns: The columns with event times, as {time key: column}, or as columns that are their own time
                keys. The first one is the default key. Without them the stream has one time key, "time".
            unit: The unit of event times: "s", "ms", "us" or "ns".
            retention_bytes: Remove the oldest events as long as the rest has at least this many bytes; see `retention`.
            if_exists: "fail" raises `StreamExists` if there is a stream with this name. "open" returns it, if it has
                the same definition; if not, `StreamDiffers` names the differences. The number of segments is compared
                with that at its creation.
            **durations: Each as text such as "10 seconds", or as a timedelta:

                - `writer_timeout` ("1 minute"): how long the watermark waits for a writer that does not note time.
                - `first_mark_delay` ("0 seconds"): the delay from the first mark to the first watermark.
                - `rate_floor` ("10 milliseconds"): the minimum time between two entries of the marks log.
                - `marks_retention` (None: forever): how long entries of the marks log are kept, also in the marks topic
                  of a stream in Kafka; the newest watermark and what follows it stay.
                - `retention` (None: forever): how long events are kept, counted from their arrival by the clock of the
                  store (in Kafka: by the timestamp of the record). Older events are removed, whole batches at a time,
                  but none that a reader group, a query or a sink may still read; see `Stream.retention`.
                - `forget_after` (None: forever): how long the record of a timed-out writer is kept.
                - `transaction_timeout` ("1 minute"): open transactions are aborted after this time.
        """
        require_one_of("if_exists", if_exists, ("fail", "open"))
        settings = make_settings(
            schema=schema, time_columns=time_columns, unit=unit, retention_bytes=retention_bytes, **durations
        )
        try:
            return Stream(self._backend, self._backend.catalog.create(name, settings, segments))
        except StreamExists:
            if if_exists == "fail":
                raise
        existing = self._backend.catalog.find(name)
        check_same_definition(existing, settings, segments)
        return Stream(self._backend, existing)

    def stream(self, name: str) -> Stream:
        """Return the stream with that name, or raise `UnknownStream`.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/orders")
        ...     home.stream("shop/order")
        Traceback (most recent call last):
        floodmark.errors.UnknownStream: There is no stream 'shop/order'. ... 'shop/orders'? [unknown-stream]
        """
        return Stream(self._backend, self._backend.catalog.find(name))

    def streams(self) -> list[Stream]:
        """Return all streams, sorted by name."""
        return [Stream(self._backend, info) for info in self._backend.catalog.all()]

    def delete_stream(self, name: str) -> None:
        """Delete a stream with its events and marks."""
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
        """Create a group of readers that divide the segments of these streams among them.

        Args:
            name: The name of the group.
            streams: The names of the streams, or one name.
            start: Where the group starts; the head of the streams if left out. A cut, {stream: cut or time}, a
                `GroupCut`, or a time. With a time it starts after the newest watermark that is entirely below the
                time, and skips rows before the time by their time column. Rows that a writer wrote ahead of its own
                marks may be before that start.
            end: Where the group ends; if left out, at the end of the streams once they are sealed. With a time it ends
                at the first cut that has all rows below the time, and skips rows from the time on.
            key: The time key of `start`, `end` and the group's lag; the default key of each stream if left out.
            after_last: What to do with a time that the marks log has not reached yet: "wait" or "refuse".
        """
        options: dict[str, Any] = {"start": start, "end": end, "key": key, "after_last": after_last}
        return create_group(self._backend, name, streams, **options)

    def group(self, name: str) -> ReaderGroup:
        """Return the reader group with that name, or raise `UnknownGroup`.

        >>> with connect() as home:
        ...     home.group("billing")
        Traceback (most recent call last):
        floodmark.errors.UnknownGroup: There is no group 'billing'. ... [unknown-group]
        """
        return ReaderGroup(self._backend, self._backend.groups.find(name))

    def groups(self) -> list[ReaderGroup]:
        """Return all reader groups, sorted by name."""
        return [ReaderGroup(self._backend, state) for state in self._backend.groups.all()]

    def delete_group(self, name: str) -> None:
        """Delete a reader group. Its readers cannot continue; its streams are not changed."""
        state = self._backend.groups.find(name)
        self._backend.groups.delete(GroupRef(state.name, state.group_id))

    def close(self) -> None:
        """Close the home. Close its writers and readers first. Idempotent."""
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
        """Notify the controller of this process that a writer record changed; start it on the first call."""
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
    """Return the brokers of a `kafka://` URL, or refuse the URL."""
    if not log.startswith("kafka://"):
        raise InvalidOption(
            f"The log is {log!r}.",
            rule="A log has the form kafka://host:port.",
            remedy="Pass such a URL, or leave log out (and FLOODMARK_LOG unset) to keep events in the home.",
            option="log",
        )
    from floodmark.kafka import KafkaSettings

    return KafkaSettings.of(log, options).servers


def _check_unused(address: object, **options: object) -> None:
    """Refuse options that have no effect for this kind of home."""
    for name, value in options.items():
        if value is not None:
            is_service = isinstance(address, str) and address.lower().startswith("http")
            raise InvalidOption(
                f"{name} was given for a home {'behind a service' if is_service else 'that is not behind a service'}.",
                rule="clock, log and log_options apply to a home opened in this process, token and ca to a service.",
                remedy=f"Leave {name} out, or check the location.",
                option=name,
            )
