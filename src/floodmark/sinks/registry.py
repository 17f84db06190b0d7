"""The sinks of a home: where each writes, how far it has come, and what it holds."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Row, Table, Text, delete, select, update

from floodmark._util.text import did_you_mean
from floodmark.bindings import Bindings, Hold
from floodmark.bindings.coordination import QueryReaders
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
)
"""`progress` is a copy for those who ask: the record beside the rows is the truth."""

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
"""Of sinks that write to streams this is the truth: see `StreamSinkRecords`."""


@dataclass(frozen=True, slots=True)
class SinkInfo:
    """What a home knows of a sink. Times are in microseconds, by the store's clock."""

    name: str
    target: str
    """Where it writes, such as kafka://host:9092/orders."""
    mode: str
    """atomic: all rows of a batch appear at once; parallel: group by group; staged: readers must know what counts."""
    version: int
    query_id: str | None
    progress: Progress | None
    """A copy of the newest progress record, perhaps an older one than is in the target."""
    created_at: int
    updated_at: int


def holder_of(sink: str) -> str:
    """Return the name under which a sink holds its sources.

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
        """Keep them in this home."""
        self._home = home

    def register(self, name: str, *, target: str, mode: SinkMode, version: int) -> SinkInfo:
        """Make a sink known, or return the one that is. A name belongs to one target and one way to write there.

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
            known = _load_sink(_find_sink(connection, name, lock=True))
            if (known.target, known.mode) != (target, mode):
                raise SinkExists(
                    f"The sink {name!r} writes to {known.target} ({known.mode}), not to {target} ({mode}).",
                    rule="What a sink has written is known by its name.",
                    remedy="Take another name, or drop the sink first.",
                    sink=name,
                    target=known.target,
                    mode=known.mode,
                )
            if version < known.version:
                raise SinkVersionOld(
                    f"The sink {name!r} was fenced off by a newer version: ours={version} theirs={known.version}.",
                    rule="What a newer version has begun no older one goes on with.",
                    remedy="Stop this program, or start its newer version.",
                    sink=name,
                    ours=version,
                    theirs=known.version,
                )
            connection.execute(update(SINKS).where(SINKS.c.name == name).values(version=version, updated_at=now))
            return _load_sink(_find_sink(connection, name))

    def record(self, name: str, progress: Progress) -> None:
        """Keep a copy of the progress of a sink, if it says more than the one that is kept."""
        with self._home.write() as connection:
            known = _load_sink(_find_sink(connection, name, lock=True)).progress
            if known is not None and known.topic_id == progress.topic_id and known.total > progress.total:
                return
            values = {"query_id": progress.query_id, "progress": progress.save().decode()}
            now = self._home.now(connection)
            connection.execute(update(SINKS).where(SINKS.c.name == name).values(**values, updated_at=now))

    def get(self, name: str) -> SinkInfo:
        """Return a sink as it is known now."""
        with self._home.read() as connection:
            return _load_sink(_find_sink(connection, name))

    def all(self) -> tuple[SinkInfo, ...]:
        """Return all sinks, by their names."""
        with self._home.read() as connection:
            return tuple(_load_sink(row) for row in connection.execute(select(SINKS).order_by(SINKS.c.name)))

    def holds(self, name: str) -> tuple[Hold, ...]:
        """Return what a sink holds."""
        holder = holder_of(self.get(name).name)
        return tuple(hold for hold in Bindings(self._home).holds() if hold.holder == holder)

    def explain(self, name: str) -> tuple[str, ...]:
        """Return sentences that say where a sink writes, how far it has come, and what it holds."""
        info = self.get(name)
        said = [f"The sink {name!r} writes to {info.target} ({info.mode}, version {info.version})."]
        progress = info.progress
        if progress is None:
            return (*said, "It has written nothing yet.")
        if not info.target.endswith(f"/{progress.topic}"):
            said.append(f"It writes to a topic of its own, {progress.topic}: it could not know what it had written.")
        said.append(f"It has written {progress.total} rows, {progress.rows} of them last, by query {info.query_id}.")
        uppers = {source.source: source.upper for source in Bindings(self._home).sources()}
        held = {hold.source: hold for hold in self.holds(name)}
        for source, offset in sorted(progress.ends.items()):
            upper, hold = uppers.get(source), held.get(source)
            behind = "which is not known to this home" if upper is None else f"of which {upper} is open"
            keeps = "holds nothing of it" if hold is None else f"holds it at {hold.ts}"
            said.append(f"Of {source!r}, {behind}, it has written up to {offset.ts}, and {keeps}.")
            if hold is not None and hold.warning is not None:
                said.append(hold.warning)
        return tuple(said)

    def drop(self, name: str) -> None:
        """Forget a sink, and release what it holds. What it has written stays, and in Kafka also the record of it."""
        bindings = Bindings(self._home)
        for hold in self.holds(name):
            bindings.release(hold.source, hold.holder)
        QueryReaders(self._home).forget(name)
        with self._home.write() as connection:
            connection.execute(delete(SINKS).where(SINKS.c.name == name))
            connection.execute(delete(STREAM_SINKS).where(STREAM_SINKS.c.sink == name))


def _find_sink(connection: Connection, name: str, *, lock: bool = False) -> Row[Any]:
    wanted = select(SINKS).where(SINKS.c.name == name)
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        known = connection.execute(select(SINKS.c.name)).scalars().all()
        raise UnknownSink(
            f"There is no sink {name!r}.",
            rule="A sink is known once it was started.",
            remedy=did_you_mean(str(name), known, otherwise="Name another home, or start it."),
            sink=name,
        )
    return row


def _load_sink(row: Row[Any]) -> SinkInfo:
    fields = row._asdict()
    return SinkInfo(**{**fields, "progress": None if row.progress is None else Progress.load(row.progress)})
