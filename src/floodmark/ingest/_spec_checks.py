"""What sources and targets check of what they are told, and how they are written down."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption
from floodmark.ingest._secrets import Secret


def refused(option: str, fact: str, rule: str, remedy: str) -> InvalidOption:
    """Return the error of an option that makes no sense."""
    return InvalidOption(fact, rule=rule, remedy=remedy, option=option)


def require_one_of(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that is not among the known ones.

    >>> require_one_of("nulls", "skp", ["fail", "skip"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: nulls is 'skp'. It is one of 'fail', 'skip'. Did you mean 'skip'? [invalid-option]
    """
    if value not in known:
        raise refused(
            option,
            f"{option} is {value!r}.",
            f"It is one of {', '.join(map(repr, known))}.",
            did_you_mean(str(value), known, otherwise=f"Write for example {known[0]!r}."),
        )


def require_text(option: str, value: object) -> None:
    """Refuse what is no text, or a blank one."""
    if not isinstance(value, str) or not value.strip():
        raise refused(option, f"{option} is {value!r}.", "It is a text that is not blank.", "Give it, or leave it out.")


def require_above_zero(option: str, value: float | None) -> None:
    """Refuse a number that is not above 0; None means that there is none."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        raise refused(option, f"{option} is {value!r}.", "It is a number above 0.", "Give one, or leave it out.")


def plain(value: Any) -> Any:
    """Return a spec as JSON has it: what is None is left out, a secret is its reference.

    >>> plain({"auth": Secret("env", "TOKEN"), "pages": (1, 2), "none": None})
    {'auth': 'env:TOKEN', 'pages': [1, 2]}
    """
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        kind = getattr(value, "kind", None)
        found = {one.name: getattr(value, one.name) for one in fields(value)}
        return plain({"kind": kind, **found})
    return value


def secrets_in(value: Any) -> tuple[Secret, ...]:
    """Return the secrets that a spec refers to.

    >>> [str(secret) for secret in secrets_in({"auth": Secret("env", "TOKEN"), "n": 1})]
    ['env:TOKEN']
    """
    if isinstance(value, Secret):
        return (value,)
    if isinstance(value, Mapping):
        return tuple(secret for one in value.values() for secret in secrets_in(one))
    if isinstance(value, tuple | list):
        return tuple(secret for one in value for secret in secrets_in(one))
    if hasattr(value, "__dataclass_fields__"):
        return tuple(secret for one in fields(value) for secret in secrets_in(getattr(value, one.name)))
    return ()
