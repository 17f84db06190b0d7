"""The streams of a home: created, found, changed, scaled, sealed and deleted."""

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
# The rest of a row is long, and mostly known.
_VERSIONS: Final = select(STREAMS.c.stream_id, STREAMS.c.version).where(
    STREAMS.c.stream_id.in_(bindparam("ids", expanding=True))
)


class LogProvisioner(Protocol):
    """Makes and removes what the events of a stream are kept in, if that is not the home."""

    def make(self, name: str, stream_id: int, segments: int) -> LogTopic | None:
        """Return where the events of a new stream are kept; None for the home itself."""

    def remove(self, place: LogTopic) -> None:
        """Remove the events of a stream that is no more."""


def marks_counter(bucket: int) -> str:
    """Return what changes when a writer of a stream in this bucket is heard: see `Home.changes`."""
    return f"marks/{bucket}"


class Catalog:
    """All streams of a home. Changes of one are made one after the other."""

    __slots__ = ("_cache", "_home", "_topics")

    def __init__(self, home: Home, topics: LogProvisioner) -> None:
        """Keep them in this home; `topics` has a place for the events of those that are not kept there."""
        self._home = home
        self._topics = topics
        self._cache: dict[int, StreamInfo] = {}

    def create(
        self, name: str, settings: StreamSettings, segments: int = 1, *, stream_id: int | None = None
    ) -> StreamInfo:
        """Make a stream under a name that no other has.

        Who brings a `stream_id` may ask again if the answer was lost: the stream of that name and id is then returned.
        """
        layout = Layout.create(segments)
        number = new_stream_id() if stream_id is None else stream_id
        check_stream_name(name)
        log = self._topics.make(name, number, segments)
        info = StreamInfo(
            id=number,
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
                    )
                )
                _add_segments(connection, info.id, (segment.id for segment in layout.segments))
                _add_keys(connection, info, settings.keys)
        except IntegrityError as error:
            return self._created_before(info, error)
        return info

    def find(self, name: str) -> StreamInfo:
        """Return the stream of a name, or refuse a name that none has."""
        with self._home.read() as connection:
            row = connection.execute(select(STREAMS).where(STREAMS.c.name == name)).one_or_none()
            if row is not None:
                return self.info(row)
            known = connection.execute(select(STREAMS.c.name)).scalars().all()
        raise UnknownStream(
            f"There is no stream {name!r}.",
            rule="A stream is created before it is used.",
            remedy=did_you_mean(str(name), known, otherwise="Create it with create_stream()."),
            stream=name,
        )

    @property
    def has_topics(self) -> bool:
        """Whether the events of some stream are not in the home."""
        with self._home.read() as connection:
            return connection.execute(select(STREAMS.c.stream_id).where(STREAMS.c.log.is_not(None))).first() is not None

    def find_id(self, stream_id: int) -> StreamInfo | None:
        """Return the stream of an id, which may have changed or gone since it was last seen; None for an unknown id."""
        known = self.cached(stream_id)
        if known is not None:
            return known
        with self._home.read() as connection:
            return self.infos(connection, [stream_id]).get(stream_id)

    def cached(self, stream_id: int) -> StreamInfo | None:
        """Return the stream of an id as this process has seen it last, or None if it never has."""
        return self._cache.get(stream_id)

    def all(self) -> list[StreamInfo]:
        """Return all streams, by their names."""
        with self._home.read() as connection:
            return [self.info(row) for row in connection.execute(select(STREAMS).order_by(STREAMS.c.name))]

    def refresh(self, stream: StreamInfo) -> StreamInfo:
        """Return what the stream is now."""
        with self._home.read() as connection:
            return self.require(connection, stream)

    def newest_known(self, stream: StreamInfo) -> StreamInfo:
        """Return the newest that this process has seen of the stream; others may have changed it since."""
        known = self._cache.get(stream.id, stream)
        return known if known.version > stream.version else stream

    def require(self, connection: Connection, stream: StreamInfo, *, lock: bool = False) -> StreamInfo:
        """Return what the stream is now, in this transaction; locked, nobody changes it before the end."""
        wanted = select(STREAMS).where(STREAMS.c.stream_id == stream.id)
        row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
        if row is None:
            raise stream_deleted(connection, stream)
        return self.info(row)

    def info(self, row: Row[Any]) -> StreamInfo:
        """Return a row of the table of streams as what it says."""
        known = self._cache.get(row.stream_id)
        if known is not None and known.version == row.version:
            return known
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
        """Return what streams are now, in this transaction, by their ids. Those that are gone are left out."""
        found: dict[int, StreamInfo] = {}
        unknown: list[int] = []
        for row in connection.execute(_VERSIONS, {"ids": sorted(ids)}):
            known = self._cache.get(row.stream_id)
            if known is not None and known.version == row.version:
                found[known.id] = known
            else:
                unknown.append(row.stream_id)
        if unknown:
            rows = connection.execute(select(STREAMS).where(STREAMS.c.stream_id.in_(unknown)))
            found.update((row.stream_id, self.info(row)) for row in rows)
        return found

    def alter(self, stream: StreamInfo, changes: Mapping[str, Any]) -> StreamInfo:
        """Change settings. The unit, and a key, can only go while no time was noted in it."""
        with self._home.write() as connection:
            now = self.require(connection, stream, lock=True)
            settings = alter_settings(now.settings, changes)
            gone = [key for key in now.settings.keys if key not in settings.keys]
            _check_unmarked(connection, now, now.settings.keys if settings.unit != now.settings.unit else gone)
            for table in (KEYS, MARKS):
                connection.execute(delete(table).where(table.c.stream_id == now.id, table.c.time_key.in_(gone)))
            _add_keys(connection, now, [key for key in settings.keys if key not in now.settings.keys])
            connection.execute(update(KEYS).where(KEYS.c.stream_id == now.id).values(changed=KEYS.c.changed + 1))
            announce_change(connection, marks_counter(now.bucket))
            return self._store(connection, replace(now, settings=settings))

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open others in their place, in one step: no event falls between."""
        with self._home.write() as connection:
            now = self.require(connection, stream, lock=True)
            check_not_sealed(now)
            layout = change(now.layout)
            going = [segment.id for segment in now.layout.current if layout.is_sealed(segment.id)]
            _seal_segments(connection, now.id, going)
            return self.change_layout(connection, now, layout)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Let the stream take no more events; to say so twice is no error."""
        with self._home.write() as connection:
            now = self.require(connection, stream, lock=True)
            _seal_segments(connection, now.id, [segment.id for segment in now.layout.current])
            return self.change_layout(connection, now, now.layout, is_sealed=True)

    def change_layout(
        self, connection: Connection, stream: StreamInfo, layout: Layout, *, is_sealed: bool = False
    ) -> StreamInfo:
        """Let a stream that is locked have a layout whose old segments are sealed, or that is sealed as a whole."""
        fresh = [segment.id for segment in layout.segments[len(stream.layout.segments) :]]
        if fresh:
            _add_segments(connection, stream.id, fresh)
        return self._store(connection, replace(stream, layout=layout, is_sealed=is_sealed))

    def delete(self, stream: StreamInfo) -> None:
        """Forget the stream, its events and its marks."""
        with self._home.write() as connection:
            log = self.require(connection, stream, lock=True).log
            for table in ALL_TABLES:
                connection.execute(delete(table).where(table.c.stream_id == stream.id))
        self._cache.pop(stream.id, None)
        if log is not None:
            self._topics.remove(log)

    def check_free(self, name: str, stream_id: int) -> None:
        """Refuse a name that another stream has, before anything is made outside of the home for it."""
        with self._home.read() as connection:
            wanted = select(STREAMS.c.stream_id).where(STREAMS.c.name == name)
            known = connection.execute(wanted).scalar_one_or_none()
        if known is not None and known != stream_id:
            raise _stream_exists(name)

    def _created_before(self, info: StreamInfo, error: IntegrityError) -> StreamInfo:
        """Return the stream that was to be created, if it is there already, or refuse the name or the id."""
        with self._home.read() as connection:
            wanted = select(STREAMS).where((STREAMS.c.name == info.name) | (STREAMS.c.stream_id == info.id))
            rows = connection.execute(wanted).all()
        if [(row.name, row.stream_id) for row in rows] == [(info.name, info.id)]:
            return self.info(rows[0])
        if any(row.stream_id == info.id for row in rows):
            raise InvalidValue(
                f"The id {info.id} of the new stream {info.name!r} belongs to another stream.",
                rule="Each stream has an id of its own.",
                remedy="Leave the id out, or make one at random.",
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
            )
        )
        return changed


def _stream_exists(name: str) -> StreamExists:
    return StreamExists(
        f"There is a stream {name!r} already.",
        rule="A name belongs to one stream.",
        remedy="Open it with stream(), delete it first, or take another name.",
        stream=name,
    )


def stream_deleted(connection: Connection, stream: StreamInfo) -> StreamDeleted:
    """Return the error for a stream that is no more, which says whether its name has another one now."""
    is_anew = connection.execute(select(STREAMS.c.stream_id).where(STREAMS.c.name == stream.name)).first() is not None
    return StreamDeleted(
        f"The stream {stream.name!r} was deleted{', and created anew' if is_anew else ''}.",
        rule="What was opened on a stream ends with it.",
        remedy="Open the new one with stream()." if is_anew else "Create it again, or stop using it.",
        stream=stream.name,
        created_anew=is_anew,
    )


def _add_segments(connection: Connection, stream: int, numbers: Iterable[int]) -> None:
    rows = [{"stream_id": stream, "segment": number, "end_offset": 0, "sealed": 0} for number in numbers]
    connection.execute(insert(SEGMENTS), rows)


def _seal_segments(connection: Connection, stream: int, numbers: list[int]) -> None:
    # One by one and in order, as writers lock them: so nobody waits in a circle.
    for number in sorted(numbers):
        here = (SEGMENTS.c.stream_id == stream, SEGMENTS.c.segment == number)
        connection.execute(update(SEGMENTS).where(*here).values(sealed=1))


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
    wanted = list(keys)
    here = (MARKS.c.stream_id == stream.id, MARKS.c.time_key.in_(wanted), MARKS.c.time.is_not(None))
    marks = connection.execute(select(func.count()).select_from(MARKS).where(*here)).scalar_one()
    log = (KEYS.c.stream_id == stream.id, KEYS.c.time_key.in_(wanted), KEYS.c.last_seq > 0)
    entries = connection.execute(select(func.count()).select_from(KEYS).where(*log)).scalar_one()
    if marks or entries:
        raise InvalidOption(
            f"Times of {', '.join(map(repr, wanted))} were noted in the stream {stream.name!r}.",
            rule="The unit, and a key, can only be given up while no time was noted in it.",
            remedy="Keep them, or create another stream.",
            stream=stream.name,
            keys=wanted,
        )
