"""The sources of bindings: what a source is, its settings, and its row in the home.

Lock order: a transaction that changes a source, its pairs or its holds first locks the source's row with
`find_source(..., lock=True)`.
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
    "compaction_window": 7 * 86_400_000_000,
    "release_after": None,
}
"""Settings of a new source, in microseconds. A source that is registered already keeps its own."""

NEVER: Final = "never"
"""How an option says that a setting is None."""


@dataclass(frozen=True, slots=True)
class BindingSource:
    """A source of bindings. Times and durations are in microseconds."""

    source: str
    """Its id, which stays the same across restarts of its readers."""
    kind: str
    """What is read: "stream" or "kafka"."""
    identity: JsonValue
    """Distinguishes it from a later topic or stream of the same name, such as the id of a topic."""
    tick: int
    """Interval at which timestamps are closed."""
    compaction_window: int | None
    """How far behind `upper` timestamps stay readable; None keeps all."""
    release_after: int | None
    """How long a hold's owner may be silent before the hold is released; None: forever."""
    origin: int
    """Its first timestamp."""
    since: int
    """The lowest readable timestamp."""
    upper: int
    """The open timestamp. All timestamps below it are durable."""
    minted_at: int | None
    """When a timestamp was last closed."""
    created_at: int
    source_id: int
    """Distinguishes it from a dropped source of the same id."""


def load_source(row: Row[Any]) -> BindingSource:
    """Return a source from its row."""
    values = dict(row._mapping)
    return BindingSource(**{**values, "identity": from_json(values["identity"])})


def check_source_settings(settings: Mapping[str, Duration | None]) -> dict[str, int | None]:
    """Return settings of a source in microseconds, or raise an error if they are not valid.

    >>> check_source_settings({"tick": "2 seconds", "compaction_window": "never"})
    {'tick': 2000000, 'compaction_window': None}
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
                remedy=did_you_mean(name, _MIN_SETTINGS, otherwise=f"Remove {name!r}."),
                option=name,
                value=value,
            )
        if value in (None, NEVER) and name in _OPTIONAL_SETTINGS:
            checked[name] = None
            continue
        micros = duration_micros(value, name)  # type: ignore[arg-type]
        if micros < _MIN_SETTINGS[name]:
            raise InvalidOption(
                f"{name} is {value!r}.",
                rule=f"{name} must be at least {_MIN_SETTINGS[name]} microseconds.",
                remedy=f"Set {name} to at least {_MIN_SETTINGS[name] // 1_000} milliseconds.",
                option=name,
                value=value,
                least=_MIN_SETTINGS[name],
            )
        checked[name] = micros
    return checked


_SELECT_SOURCES: Final = select(SOURCES)


def find_source(connection: Connection, source: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of a source. With `lock`, other processes cannot bind, hold or compact until the commit."""
    query = _SELECT_SOURCES.where(SOURCES.c.source == source)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        names = connection.execute(select(SOURCES.c.source)).scalars().all()
        raise UnknownSource(
            f"There is no source {source!r}.",
            rule="A source must be registered before it is used.",
            remedy=did_you_mean(str(source), names, otherwise="Register it, or open the home that it is in."),
            source=source,
        )
    return row


def check_identity(row: Row[Any], identity: JsonValue) -> None:
    """Raise an error if the source was recreated since it was bound."""
    # Compare after a round trip through JSON: a tuple becomes a list.
    current, stored = from_json(to_json(identity, "identity")), from_json(row.identity)
    if current != stored:
        raise SourceRecreated(
            f"The source {row.source!r} is {current}, and what was bound under its id is {stored}.",
            rule="Bound offsets belong to one topic or stream; a later one of the same name is another source.",
            remedy="Register it under another source id, or drop the source and its bindings.",
            source=row.source,
            identity=current,
            bound=stored,
        )


class SourceStore:
    """The sources of a home."""

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Read and write the sources of `home`."""
        self._home = home

    def register(
        self, source: str, kind: str, identity: JsonValue, settings: Mapping[str, Duration | None]
    ) -> BindingSource:
        """Register a source, or return the registered one."""
        checked = check_source_settings(settings)
        with self._home.write() as connection:
            now = self._home.now(connection)
            values = {
                "source_id": uuid.uuid4().int >> 66,
                "source": check_text("source", source),
                "kind": check_text("kind", kind),
                "identity": to_json(identity, "identity"),
                **DEFAULT_SETTINGS,
                **checked,
                # All offsets that exist at the first tick are bound to this timestamp.
                **dict.fromkeys(("origin", "since", "upper", "created_at"), now),
            }
            if insert_if_absent(connection, SOURCES, values):
                return load_source(find_source(connection, source))
            row = find_source(connection, source)
            check_identity(row, identity)
            stored_row = row._mapping
            differing = {name: value for name, value in {"kind": kind, **checked}.items() if value != stored_row[name]}
            if differing:
                stored = {name: stored_row[name] for name in differing}
                raise InvalidOption(
                    f"The source {source!r} was registered with {stored}, and now with {differing}.",
                    rule="All readers of a source share its settings.",
                    remedy="Omit these settings, or change them for all readers: `floodmark bindings alter`.",
                    source=source,
                    stored=stored,
                    given=differing,
                )
            return load_source(row)

    def alter(self, source: str, settings: Mapping[str, Duration | None]) -> BindingSource:
        """Change settings of a source."""
        checked = check_source_settings(settings)
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            if checked:
                connection.execute(update(SOURCES).where(SOURCES.c.source_id == row.source_id).values(checked))
            return load_source(find_source(connection, source))

    def get(self, source: str) -> BindingSource:
        """Return one source."""
        with self._home.read() as connection:
            return load_source(find_source(connection, source))

    def all(self) -> tuple[BindingSource, ...]:
        """Return all sources, ordered by id."""
        with self._home.read() as connection:
            return tuple(load_source(row) for row in connection.execute(_SELECT_SOURCES.order_by(SOURCES.c.source)))

    def drop(self, source: str) -> None:
        """Delete a source with its bindings and holds."""
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            for table in TABLES_BY_SOURCE:
                connection.execute(delete(table).where(table.c.source_id == row.source_id))
