"""The sinks of a home: where each writes, how far it has come, and what it holds."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Row, Table, Text, delete, select, update

from floodmark._util.text import did_you_mean
from floodmark._util.times import as_utc
from floodmark.bindings import Bindings, Hold
from floodmark.bindings.coordination import QueryReaders
from floodmark.bindings.offsets import source_of_key
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.control.tables import METADATA
from floodmark.errors import SinkExists, SinkVersionOld, UnknownSink
from floodmark.sinks.progress import Progress, check_sink_name
from floodmark.sinks.target import SinkMode

SINKS: Final = Table(
    "sink",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("target", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("query_id", Text),
    Column("progress", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("starts", BigInteger, nullable=False, server_default="0"),
)
"""`progress` is a copy for display: the record stored with the rows is authoritative."""

STREAM_SINKS: Final = Table(
    "stream_sink",
    METADATA,
    Column("sink", Text, primary_key=True),
    Column("stream_id", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("progress", Text),
    Column("transaction_id", Text),
    Column("earlier", Text),
)
"""The authoritative progress of sinks that write to streams: see `StreamSinkRecords`."""


@dataclass(frozen=True, slots=True)
class SinkInfo:
    """What a home knows about a sink. Times are in microseconds, by the store's clock."""

    name: str
    target: str
    """URL of the target, such as kafka://host:9092/orders."""
    mode: str
    """atomic: a batch appears at once; parallel: group by group; staged: readers must filter by manifest."""
    version: int
    query_id: str | None
    progress: Progress | None
    """A copy of the progress record; it may be older than the record in the target."""
    created_at: int
    updated_at: int
    starts: int
    """How many processes have started to write for it; the last of them is the one that writes."""


def holder_of(sink: str) -> str:
    """Return the holder name of a sink's holds.

    >>> holder_of("out")
    'sink/out'
    """
    return f"sink/{sink}"


class Sinks:
    r"""All sinks of a home.

    >>> with Home.open(clock=lambda: 5) as home:
    ...     sinks = Sinks(home)
    ...     _ = sinks.register("out", target="kafka://one:9092/orders", mode="atomic", version=1)
    ...     print(*sinks.explain("out"), sep="\n")
    The sink 'out' writes to kafka://one:9092/orders (atomic, version 1).
    It has written nothing yet.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Read and write the sinks of `home`."""
        self._home = home

    def register(self, name: str, *, target: str, mode: SinkMode, version: int) -> SinkInfo:
        """Register a sink, or return the registered one. A name belongs to one target and one mode.

        >>> with Home.open() as home:
        ...     _ = Sinks(home).register("out", target="kafka://one:9092/orders", mode="atomic", version=1)
        ...     Sinks(home).register("out", target="kafka://one:9092/bills", mode="atomic", version=1)
        Traceback (most recent call last):
        floodmark.errors.SinkExists: The sink 'out' writes to kafka://one:9092/orders (atomic), ... [sink-exists]
        """
        check_sink_name(name)
        with self._home.write() as connection:
            now = self._home.now(connection)
            row = {"name": name, "target": target, "mode": mode, "version": version}
            if insert_if_absent(connection, SINKS, {**row, "created_at": now, "updated_at": now}):
                return _load_sink(_find_sink(connection, name))
            registered = _load_sink(_find_sink(connection, name, lock=True))
            if (registered.target, registered.mode) != (target, mode):
                raise SinkExists(
                    f"The sink {name!r} writes to {registered.target} ({registered.mode}), not to {target} ({mode}).",
                    rule="A sink's name belongs to one target and one mode.",
                    remedy=f"Choose another name, or drop the sink {name!r} first.",
                    sink=name,
                    target=registered.target,
                    mode=registered.mode,
                )
            if version < registered.version:
                raise SinkVersionOld(
                    f"The sink {name!r} was fenced off by a newer version: ours={version} theirs={registered.version}.",
                    rule="A sink does not resume with an older version than it was written with.",
                    remedy=f"Stop this program, or start it with version {registered.version} or higher.",
                    sink=name,
                    ours=version,
                    theirs=registered.version,
                )
            connection.execute(update(SINKS).where(SINKS.c.name == name).values(version=version, updated_at=now))
            return _load_sink(_find_sink(connection, name))

    def take_start(self, name: str) -> int:
        """Return the number of a new start of a sink; the process with the highest number is the one that writes."""
        starts = update(SINKS).where(SINKS.c.name == name).values(starts=SINKS.c.starts + 1).returning(SINKS.c.starts)
        with self._home.write() as connection:
            return int(connection.execute(starts).scalar_one())

    def record(self, name: str, progress: Progress) -> None:
        """Store a copy of a sink's progress, unless the stored copy is newer."""
        with self._home.write() as connection:
            stored = _load_sink(_find_sink(connection, name, lock=True)).progress
            if stored is not None and stored.topic_id == progress.topic_id and stored.total > progress.total:
                return
            values = {"query_id": progress.query_id, "progress": progress.save().decode()}
            now = self._home.now(connection)
            connection.execute(update(SINKS).where(SINKS.c.name == name).values(**values, updated_at=now))

    def get(self, name: str) -> SinkInfo:
        """Return one sink."""
        with self._home.read() as connection:
            return _load_sink(_find_sink(connection, name))

    def all(self) -> tuple[SinkInfo, ...]:
        """Return all sinks, in name order."""
        with self._home.read() as connection:
            return tuple(_load_sink(row) for row in connection.execute(select(SINKS).order_by(SINKS.c.name)))

    def holds(self, name: str) -> tuple[Hold, ...]:
        """Return the holds of a sink."""
        holder = holder_of(self.get(name).name)
        return tuple(hold for hold in Bindings(self._home).holds() if hold.holder == holder)

    def explain(self, name: str) -> tuple[str, ...]:
        """Return sentences that say where a sink writes, how far it has written, and what it holds."""
        info = self.get(name)
        lines = [f"The sink {name!r} writes to {info.target} ({info.mode}, version {info.version})."]
        progress = info.progress
        if progress is None:
            return (*lines, "It has written nothing yet.")
        if not info.target.endswith(f"/{progress.topic}"):
            lines.append(f"It writes to a new topic, {progress.topic}, because it could not know what it had written.")
        lines.append(
            f"It has written {progress.total} rows, {progress.rows} in its last batch, by query {info.query_id}."
        )
        uppers = {source.source: source.upper for source in Bindings(self._home).sources()}
        held = {hold.source: hold for hold in self.holds(name)}
        for key, offset in sorted(progress.ends.items()):
            source = source_of_key(key)
            upper, hold = uppers.get(source), held.get(source)
            behind = "which is not known to this home" if upper is None else f"of which {as_utc(upper)} is open"
            keeps = "holds nothing of it" if hold is None else f"holds it at {as_utc(hold.ts)}"
            written = "nothing" if offset.ts is None else f"up to {as_utc(offset.ts)}"
            lines.append(f"Of {source!r}, {behind}, it has written {written}, and {keeps}.")
            if hold is not None and hold.warning is not None:
                lines.append(hold.warning)
        return tuple(lines)

    def drop(self, name: str) -> None:
        """Remove a sink and release its holds. Its rows stay, and so do progress records in Kafka."""
        bindings = Bindings(self._home)
        for hold in self.holds(name):
            bindings.release(hold.source, hold.holder)
        QueryReaders(self._home).forget(name)
        with self._home.write() as connection:
            connection.execute(delete(SINKS).where(SINKS.c.name == name))
            connection.execute(delete(STREAM_SINKS).where(STREAM_SINKS.c.sink == name))


def _find_sink(connection: Connection, name: str, *, lock: bool = False) -> Row[Any]:
    query = select(SINKS).where(SINKS.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        names = connection.execute(select(SINKS.c.name)).scalars().all()
        raise UnknownSink(
            f"There is no sink {name!r}.",
            rule="A sink is registered when it is first started.",
            remedy=did_you_mean(str(name), names, otherwise="Open the home that the sink was started in, or start it."),
            sink=name,
        )
    return row


def _load_sink(row: Row[Any]) -> SinkInfo:
    fields = row._asdict()
    return SinkInfo(**{**fields, "progress": None if row.progress is None else Progress.load(row.progress)})
