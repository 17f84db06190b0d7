"""The sources of a home: registered, found, altered and dropped. Who changes one has its row locked."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, select, update

from floodmark._util.codec import JsonValue, from_json, to_json
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration
from floodmark.bindings._checks import check_text
from floodmark.bindings._schema import ALL_TABLES, SOURCES
from floodmark.bindings._source import DEFAULTS, BindingSource, check_settings, load_source
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import InvalidOption, SourceRecreated, UnknownSource

_ONE: Final = select(SOURCES)


def find(connection: Connection, source: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of a source; locked, nobody binds, holds or compacts before the end of the transaction."""
    wanted = _ONE.where(SOURCES.c.source == source)
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        known = connection.execute(select(SOURCES.c.source)).scalars().all()
        raise UnknownSource(
            f"There is no source {source!r}.",
            rule="A source is registered before anything is bound.",
            remedy=did_you_mean(str(source), known, otherwise="Register it."),
            source=source,
        )
    return row


def check_identity(row: Row[Any], identity: JsonValue) -> None:
    """Refuse to go on if what is read is not what was bound."""
    # As it would come back: a tuple becomes a list.
    given, stored = from_json(to_json(identity, "identity")), from_json(row.identity)
    if given != stored:
        raise SourceRecreated(
            f"The source {row.source!r} is {given}, and what was bound under its id is {stored}.",
            rule="Offsets that were bound belong to one topic or stream, also when another one gets its name.",
            remedy="Register it under another id, or drop the source and everything that was bound.",
            source=row.source,
            identity=given,
            bound=stored,
        )


class Sources:
    """All sources of a home."""

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def register(
        self, source: str, kind: str, identity: JsonValue, settings: Mapping[str, Duration | None]
    ) -> BindingSource:
        """Make a source known, or return the one that is."""
        given = check_settings(settings)
        with self._home.write() as connection:
            now = self._home.now(connection)
            values = {
                "source_id": uuid.uuid4().int >> 66,
                "source": check_text("source", source),
                "kind": check_text("kind", kind),
                "identity": to_json(identity, "identity"),
                **DEFAULTS,
                **given,
                # Nothing is bound: what is seen first, a whole snapshot, belongs to this moment.
                **dict.fromkeys(("origin", "since", "upper", "created_at"), now),
            }
            if insert_if_absent(connection, SOURCES, values):
                return load_source(find(connection, source))
            row = find(connection, source)
            check_identity(row, identity)
            known = row._mapping
            differing = {name: value for name, value in {"kind": kind, **given}.items() if value != known[name]}
            if differing:
                stored = {name: known[name] for name in differing}
                raise InvalidOption(
                    f"The source {source!r} was registered with {stored}, and now with {differing}.",
                    rule="Everybody who reads a source shares its settings.",
                    remedy="Leave them out, or change them with alter().",
                    source=source,
                    stored=stored,
                    given=differing,
                )
            return load_source(row)

    def alter(self, source: str, settings: Mapping[str, Duration | None]) -> BindingSource:
        """Change settings of a source."""
        given = check_settings(settings)
        with self._home.write() as connection:
            row = find(connection, source, lock=True)
            if given:
                connection.execute(update(SOURCES).where(SOURCES.c.source_id == row.source_id).values(given))
            return load_source(find(connection, source))

    def get(self, source: str) -> BindingSource:
        """Return a source as it is now."""
        with self._home.read() as connection:
            return load_source(find(connection, source))

    def all(self) -> tuple[BindingSource, ...]:
        """Return all sources, by their ids."""
        with self._home.read() as connection:
            return tuple(load_source(row) for row in connection.execute(_ONE.order_by(SOURCES.c.source)))

    def drop(self, source: str) -> None:
        """Forget a source and everything that was bound."""
        with self._home.write() as connection:
            row = find(connection, source, lock=True)
            for table in ALL_TABLES:
                connection.execute(delete(table).where(table.c.source_id == row.source_id))
