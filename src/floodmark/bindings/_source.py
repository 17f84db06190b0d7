"""A source of bindings: what it is, how often it ticks, what it keeps, and how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row

from floodmark._util.codec import JsonValue, from_json
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, duration_micros
from floodmark.errors import InvalidOption

_LEAST: Final = {"tick": 100_000, "compaction_window": 0, "release_after": 1}
_MAY_BE_NONE: Final = ("compaction_window", "release_after")

DEFAULTS: Final[Mapping[str, int | None]] = {"tick": 1_000_000, "compaction_window": None, "release_after": None}
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


def check_settings(settings: Mapping[str, Duration | None]) -> dict[str, int | None]:
    """Return the settings of a source in microseconds, or refuse them.

    >>> check_settings({"tick": "50 milliseconds"})
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: tick is '50 milliseconds'. ... [invalid-option]
    """
    checked: dict[str, int | None] = {}
    for name, value in settings.items():
        if name not in _LEAST:
            raise InvalidOption(
                f"There is no option {name!r}.",
                rule=f"The options are {', '.join(_LEAST)}.",
                remedy=did_you_mean(name, _LEAST, otherwise="Leave it out."),
                option=name,
                value=value,
            )
        if value is None and name in _MAY_BE_NONE:
            checked[name] = None
            continue
        micros = duration_micros(value, name)  # type: ignore[arg-type]
        if micros < _LEAST[name]:
            raise InvalidOption(
                f"{name} is {value!r}.",
                rule=f"It is at least {_LEAST[name]} microseconds.",
                remedy="Give a longer time.",
                option=name,
                value=value,
                least=_LEAST[name],
            )
        checked[name] = micros
    return checked
