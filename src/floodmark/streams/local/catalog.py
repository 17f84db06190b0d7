"""The streams of a home: create, find, alter, scale, seal, delete."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from floodmark._util.codec import from_json, to_json
from floodmark._util.text import did_you_mean
from floodmark.control import Home
from floodmark.control.store.change_counters import announce_change
from floodmark.errors import InvalidOption, InvalidValue, StreamDeleted, StreamExists, UnknownStream
from floodmark.streams.definition import (
    BUCKETS,
    LogTopic,
    StreamInfo,
    StreamSettings,
    alter_settings,
    bucket_of,
    check_not_sealed,
    check_stream_name,
    new_stream_id,
)
from floodmark.streams.layout.layout import Layout
from floodmark.streams.local.tables import ALL_TABLES, KEYS, MARKS, SEGMENTS, STREAMS

_OPEN: Final = "open"
_SEALED: Final = "sealed"
_CACHED: Final = 10_000
# Only the versions: the other columns are long and usually cached.
_VERSIONS: Final = select(STREAMS.c.stream_id, STREAMS.c.version).where(
    STREAMS.c.stream_id.in_(bindparam("ids", expanding=True))
)


class LogProvisioner(Protocol):
    """Creates and removes the Kafka topics of streams."""

    def make(self, name: str, stream_id: int, segments: int) -> LogTopic | None:
        """Create the topic of a new stream; return None for events in the home."""

    def remove(self, topic: LogTopic) -> None:
        """Remove the topic of a deleted stream."""


def marks_counter(bucket: int) -> str:
    """Return the counter that rises when a writer of a stream in this bucket reports; see `Home.changes`."""
    return f"marks/{bucket}"


class Catalog:
    """All streams of a home. Changes of one stream are serialized."""

    __slots__ = ("_cache", "_home", "_topics")

    def __init__(self, home: Home, topics: LogProvisioner) -> None:
        """Use the streams of this home; `topics` provides the Kafka topics of streams with events in Kafka."""
        self._home = home
        self._topics = topics
        self._cache: dict[int, StreamInfo] = {}

    def create(
        self, name: str, settings: StreamSettings, segments: int = 1, *, stream_id: int | None = None
    ) -> StreamInfo:
        """Create a stream under an unused name.

        With a `stream_id` the call is idempotent: it returns the stream if name and id match.
        """
        layout = Layout.create(segments)
        new_id = new_stream_id() if stream_id is None else stream_id
        check_stream_name(name)
        log = self._topics.make(name, new_id, segments)
        info = StreamInfo(
            id=new_id,
            name=name,
            bucket=bucket_of(name, BUCKETS),
            settings=settings,
            layout=layout,
            is_sealed=False,
            version=1,
            created_at=self._home.now(),
            log=log,
        )
        try:
            with self._home.write() as connection:
                connection.execute(
                    insert(STREAMS).values(
                        stream_id=info.id,
                        name=name,
                        bucket=info.bucket,
                        state=_OPEN,
                        settings=to_json(settings.save(), "settings"),
                        layout=to_json(layout.save(), "layout"),
                        version=1,
                        created_at=info.created_at,
                        log=None if log is None else log.save(),
                        retains=int(settings.has_retention),
                    )
                )
                _add_segments(connection, info.id, (segment.id for segment in layout.segments))
                _add_keys(connection, info, settings.keys)
        except IntegrityError as error:
            return self._existing(info, error)
        return info

    def find(self, name: str) -> StreamInfo:
        """Return the stream with a name, or raise `UnknownStream`."""
        with self._home.read() as connection:
            row = connection.execute(select(STREAMS).where(STREAMS.c.name == name)).one_or_none()
            if row is not None:
                return self.info(row)
            names = connection.execute(select(STREAMS.c.name)).scalars().all()
        raise UnknownStream(
            f"There is no stream {name!r}.",
            rule="A stream must be created before it is used.",
            remedy=did_you_mean(str(name), names, otherwise="Create it with create_stream()."),
            stream=name,
        )

    @property
    def has_topics(self) -> bool:
        """Whether any stream has its events in Kafka."""
        with self._home.read() as connection:
            return connection.execute(select(STREAMS.c.stream_id).where(STREAMS.c.log.is_not(None))).first() is not None

    def find_id(self, stream_id: int) -> StreamInfo | None:
        """Return the stream with an id, possibly from the cache and outdated; None for an unknown id."""
        cached = self.cached(stream_id)
        if cached is not None:
            return cached
        with self._home.read() as connection:
            return self.infos(connection, [stream_id]).get(stream_id)

    def cached(self, stream_id: int) -> StreamInfo | None:
        """Return the cached stream with an id, or None."""
        return self._cache.get(stream_id)

    def all(self) -> list[StreamInfo]:
        """Return all streams, sorted by name."""
        with self._home.read() as connection:
            return [self.info(row) for row in connection.execute(select(STREAMS).order_by(STREAMS.c.name))]

    def refresh(self, stream: StreamInfo) -> StreamInfo:
        """Return the current state of the stream."""
        with self._home.read() as connection:
            return self.require(connection, stream)

    def newest_known(self, stream: StreamInfo) -> StreamInfo:
        """Return the newest version of the stream that this process has seen."""
        cached = self._cache.get(stream.id, stream)
        return cached if cached.version > stream.version else stream

    def require(self, connection: Connection, stream: StreamInfo, *, lock: bool = False) -> StreamInfo:
        """Return the current state of the stream, optionally locked until the transaction ends."""
        query = select(STREAMS).where(STREAMS.c.stream_id == stream.id)
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        if row is None:
            raise stream_deleted(connection, stream)
        return self.info(row)

    def info(self, row: Row[Any]) -> StreamInfo:
        """Load a stream from its row."""
        cached = self._cache.get(row.stream_id)
        if cached is not None and cached.version == row.version:
            return cached
        info = StreamInfo(
            id=row.stream_id,
            name=row.name,
            bucket=row.bucket,
            settings=StreamSettings.load(from_json(row.settings)),
            layout=Layout.load(from_json(row.layout)),
            is_sealed=row.state == _SEALED,
            version=row.version,
            created_at=row.created_at,
            log=None if row.log is None else LogTopic.load(row.log),
        )
        if len(self._cache) >= _CACHED:
            self._cache.clear()
        self._cache[info.id] = info
        return info

    def infos(self, connection: Connection, ids: Iterable[int]) -> dict[int, StreamInfo]:
        """Return the current states of streams by id. Deleted streams are left out."""
        infos: dict[int, StreamInfo] = {}
        outdated: list[int] = []
        for row in connection.execute(_VERSIONS, {"ids": sorted(ids)}):
            cached = self._cache.get(row.stream_id)
            if cached is not None and cached.version == row.version:
                infos[cached.id] = cached
            else:
                outdated.append(row.stream_id)
        if outdated:
            rows = connection.execute(select(STREAMS).where(STREAMS.c.stream_id.in_(outdated)))
            infos.update((row.stream_id, self.info(row)) for row in rows)
        return infos

    def alter(self, stream: StreamInfo, changes: Mapping[str, Any]) -> StreamInfo:
        """Change settings. The unit and existing keys can change only before time was noted in them."""
        with self._home.write() as connection:
            current = self.require(connection, stream, lock=True)
            settings = alter_settings(current.settings, changes)
            removed = [key for key in current.settings.keys if key not in settings.keys]
            _check_unmarked(
                connection, current, current.settings.keys if settings.unit != current.settings.unit else removed
            )
            for table in (KEYS, MARKS):
                connection.execute(delete(table).where(table.c.stream_id == current.id, table.c.time_key.in_(removed)))
            _add_keys(connection, current, [key for key in settings.keys if key not in current.settings.keys])
            connection.execute(update(KEYS).where(KEYS.c.stream_id == current.id).values(changed=KEYS.c.changed + 1))
            announce_change(connection, marks_counter(current.bucket))
            return self._store(connection, replace(current, settings=settings))

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open their successors in one transaction."""
        with self._home.write() as connection:
            current = self.require(connection, stream, lock=True)
            check_not_sealed(current)
            layout = change(current.layout)
            sealed = [segment.id for segment in current.layout.current if layout.is_sealed(segment.id)]
            _seal_segments(connection, current.id, sealed)
            return self.change_layout(connection, current, layout)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal the stream. Idempotent."""
        with self._home.write() as connection:
            current = self.require(connection, stream, lock=True)
            _seal_segments(connection, current.id, [segment.id for segment in current.layout.current])
            return self.change_layout(connection, current, current.layout, is_sealed=True)

    def change_layout(
        self, connection: Connection, stream: StreamInfo, layout: Layout, *, is_sealed: bool = False
    ) -> StreamInfo:
        """Store the new layout of a locked stream, after its old segments were sealed, or seal the stream."""
        fresh = [segment.id for segment in layout.segments[len(stream.layout.segments) :]]
        if fresh:
            _add_segments(connection, stream.id, fresh)
        return self._store(connection, replace(stream, layout=layout, is_sealed=is_sealed))

    def delete(self, stream: StreamInfo) -> None:
        """Delete the stream, its events and its marks."""
        with self._home.write() as connection:
            log = self.require(connection, stream, lock=True).log
            for table in ALL_TABLES:
                connection.execute(delete(table).where(table.c.stream_id == stream.id))
        self._cache.pop(stream.id, None)
        if log is not None:
            self._topics.remove(log)

    def check_free(self, name: str, stream_id: int) -> None:
        """Raise `StreamExists` if another stream has the name, before a topic is created for it."""
        with self._home.read() as connection:
            query = select(STREAMS.c.stream_id).where(STREAMS.c.name == name)
            existing = connection.execute(query).scalar_one_or_none()
        if existing is not None and existing != stream_id:
            raise _stream_exists(name)

    def _existing(self, info: StreamInfo, error: IntegrityError) -> StreamInfo:
        """Return the stream if it was created before, or raise an error for a name or id in use."""
        with self._home.read() as connection:
            query = select(STREAMS).where((STREAMS.c.name == info.name) | (STREAMS.c.stream_id == info.id))
            rows = connection.execute(query).all()
        if [(row.name, row.stream_id) for row in rows] == [(info.name, info.id)]:
            return self.info(rows[0])
        if any(row.stream_id == info.id for row in rows):
            raise InvalidValue(
                f"The id {info.id} of the new stream {info.name!r} belongs to another stream.",
                rule="Each stream of a home has a unique id.",
                remedy="Leave the id out, or pass a random one.",
                stream=info.name,
                stream_id=info.id,
            ) from error
        if info.log is not None:
            self._topics.remove(info.log)
        raise _stream_exists(info.name) from error

    def _store(self, connection: Connection, info: StreamInfo) -> StreamInfo:
        changed = replace(info, version=info.version + 1)
        connection.execute(
            update(STREAMS)
            .where(STREAMS.c.stream_id == info.id)
            .values(
                state=_SEALED if changed.is_sealed else _OPEN,
                settings=to_json(changed.settings.save(), "settings"),
                layout=to_json(changed.layout.save(), "layout"),
                version=changed.version,
                retains=int(changed.settings.has_retention),
            )
        )
        return changed


def _stream_exists(name: str) -> StreamExists:
    return StreamExists(
        f"The stream {name!r} already exists.",
        rule="Each stream of a home has a unique name.",
        remedy="Open it with stream(), delete it first, or choose another name.",
        stream=name,
    )


def stream_deleted(connection: Connection, stream: StreamInfo) -> StreamDeleted:
    """Return the error for a deleted stream; it says whether the name is in use again."""
    is_recreated = (
        connection.execute(select(STREAMS.c.stream_id).where(STREAMS.c.name == stream.name)).first() is not None
    )
    return StreamDeleted(
        f"The stream {stream.name!r} was deleted{' and created again' if is_recreated else ''}.",
        rule="Writers and readers of a deleted stream cannot be used any more.",
        remedy="Open the new stream with stream()." if is_recreated else "Create it again with create_stream().",
        stream=stream.name,
        created_anew=is_recreated,
    )


def _add_segments(connection: Connection, stream: int, numbers: Iterable[int]) -> None:
    rows = [{"stream_id": stream, "segment": number, "end_offset": 0, "sealed": 0} for number in numbers]
    connection.execute(insert(SEGMENTS), rows)


def _seal_segments(connection: Connection, stream: int, numbers: list[int]) -> None:
    # Lock segments in id order, as writers do, to avoid deadlocks.
    for number in sorted(numbers):
        is_segment = (SEGMENTS.c.stream_id == stream, SEGMENTS.c.segment == number)
        connection.execute(update(SEGMENTS).where(*is_segment).values(sealed=1))


def _add_keys(connection: Connection, stream: StreamInfo, keys: Iterable[str]) -> None:
    rows = [
        {
            "stream_id": stream.id,
            "time_key": key,
            "bucket": stream.bucket,
            "writers_version": 0,
            "last_seq": 0,
            "last_lower": None,
            "changed": 0,
        }
        for key in keys
    ]
    if rows:
        connection.execute(insert(KEYS), rows)


def _check_unmarked(connection: Connection, stream: StreamInfo, keys: Iterable[str]) -> None:
    checked = list(keys)
    has_mark = (MARKS.c.stream_id == stream.id, MARKS.c.time_key.in_(checked), MARKS.c.time.is_not(None))
    marks = connection.execute(select(func.count()).select_from(MARKS).where(*has_mark)).scalar_one()
    has_entry = (KEYS.c.stream_id == stream.id, KEYS.c.time_key.in_(checked), KEYS.c.last_seq > 0)
    entries = connection.execute(select(func.count()).select_from(KEYS).where(*has_entry)).scalar_one()
    if marks or entries:
        raise InvalidOption(
            f"Time was noted for the keys {', '.join(map(repr, checked))} of the stream {stream.name!r}.",
            rule="The unit, or a key, can be changed or removed only before time is noted in it.",
            remedy="Keep the unit and these keys, or create another stream.",
            stream=stream.name,
            keys=checked,
        )
