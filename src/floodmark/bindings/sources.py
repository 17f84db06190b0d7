"""The sources of bindings: what a source is, its settings, and its row in the home.

A transaction that changes a source, its pairs or its holds first locks the source's row: `find_source(..., lock=True)`.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, select, update

from floodmark._util.codec import JsonValue, from_json, to_json
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, duration_micros
from floodmark.bindings.history import check_text
from floodmark.bindings.tables import SOURCES, TABLES_BY_SOURCE
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import InvalidOption, SourceRecreated, UnknownSource

_MIN_SETTINGS: Final = {"tick": 100_000, "compaction_window": 0, "release_after": 1}
_OPTIONAL_SETTINGS: Final = ("compaction_window", "release_after")

DEFAULT_SETTINGS: Final[Mapping[str, int | None]] = {
    "tick": 1_000_000,
    "compaction_window": None,
    "release_after": None,
}
"""The settings of a source that is registered without any, in microseconds."""


@dataclass(frozen=True, slots=True)
class BindingSource:
    """What is known of a source. Times and durations are in microseconds."""

    source: str
    """Its id, which stays when everything that reads it is started again."""
    kind: str
    """What it reads, such as "stream" or "kafka"."""
    identity: JsonValue
    """What tells it from another one that gets its name later, such as the id of a topic."""
    tick: int
    """How often a timestamp is closed."""
    compaction_window: int | None
    """How far behind `upper` timestamps can be read; None keeps them all."""
    release_after: int | None
    """After how long a hold is released whose owner was not heard; None never does."""
    origin: int
    """Its first timestamp."""
    since: int
    """The lowest timestamp that can be read."""
    upper: int
    """The open timestamp. Everything below is durable."""
    minted_at: int | None
    """When a timestamp was last closed."""
    created_at: int
    source_id: int
    """What tells it from a source that was dropped."""


def load_source(row: Row[Any]) -> BindingSource:
    """Return a row of the table of sources as what it says."""
    values = dict(row._mapping)
    return BindingSource(**{**values, "identity": from_json(values["identity"])})


def check_source_settings(settings: Mapping[str, Duration | None]) -> dict[str, int | None]:
    """Return the settings of a source in microseconds, or refuse them.

    >>> check_source_settings({"tick": "50 milliseconds"})
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: tick is '50 milliseconds'. ... [invalid-option]
    """
    checked: dict[str, int | None] = {}
    for name, value in settings.items():
        if name not in _MIN_SETTINGS:
            raise InvalidOption(
                f"There is no option {name!r}.",
                rule=f"The options are {', '.join(_MIN_SETTINGS)}.",
                remedy=did_you_mean(name, _MIN_SETTINGS, otherwise="Leave it out."),
                option=name,
                value=value,
            )
        if value is None and name in _OPTIONAL_SETTINGS:
            checked[name] = None
            continue
        micros = duration_micros(value, name)  # type: ignore[arg-type]
        if micros < _MIN_SETTINGS[name]:
            raise InvalidOption(
                f"{name} is {value!r}.",
                rule=f"It is at least {_MIN_SETTINGS[name]} microseconds.",
                remedy="Give a longer time.",
                option=name,
                value=value,
                least=_MIN_SETTINGS[name],
            )
        checked[name] = micros
    return checked


_SELECT_SOURCES: Final = select(SOURCES)


def find_source(connection: Connection, source: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of a source; locked, nobody binds, holds or compacts before the end of the transaction."""
    wanted = _SELECT_SOURCES.where(SOURCES.c.source == source)
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


class SourceStore:
    """All sources of a home."""

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def register(
        self, source: str, kind: str, identity: JsonValue, settings: Mapping[str, Duration | None]
    ) -> BindingSource:
        """Make a source known, or return the one that is."""
        given = check_source_settings(settings)
        with self._home.write() as connection:
            now = self._home.now(connection)
            values = {
                "source_id": uuid.uuid4().int >> 66,
                "source": check_text("source", source),
                "kind": check_text("kind", kind),
                "identity": to_json(identity, "identity"),
                **DEFAULT_SETTINGS,
                **given,
                # Nothing is bound: what is seen first, a whole snapshot, belongs to this moment.
                **dict.fromkeys(("origin", "since", "upper", "created_at"), now),
            }
            if insert_if_absent(connection, SOURCES, values):
                return load_source(find_source(connection, source))
            row = find_source(connection, source)
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
        given = check_source_settings(settings)
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            if given:
                connection.execute(update(SOURCES).where(SOURCES.c.source_id == row.source_id).values(given))
            return load_source(find_source(connection, source))

    def get(self, source: str) -> BindingSource:
        """Return a source as it is now."""
        with self._home.read() as connection:
            return load_source(find_source(connection, source))

    def all(self) -> tuple[BindingSource, ...]:
        """Return all sources, by their ids."""
        with self._home.read() as connection:
            return tuple(load_source(row) for row in connection.execute(_SELECT_SOURCES.order_by(SOURCES.c.source)))

    def drop(self, source: str) -> None:
        """Forget a source and everything that was bound."""
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            for table in TABLES_BY_SOURCE:
                connection.execute(delete(table).where(table.c.source_id == row.source_id))
