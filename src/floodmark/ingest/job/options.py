"""What options of sources, targets and units are made of: frozen mappings, secrets, and their checks."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption, SecretExposed, SecretMissing


class Frozen(Mapping[str, Any]):
    """What it was made of, for ever; equal to any mapping with the same contents, and can be hashed and pickled.

    >>> Frozen({"mode": "merge", "keys": ["id"]})
    Frozen({'mode': 'merge', 'keys': ('id',)})
    """

    __slots__ = ("_items",)

    def __init__(self, contents: Mapping[str, Any]) -> None:
        """Copy it, with what it contains."""
        self._items = {name: _frozen(value) for name, value in contents.items()}

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"Frozen({self._items!r})"


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Frozen(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(one) for one in value)
    return value


SECRET_NAMES: Final = frozenset(
    ("password", "passwd", "pwd", "token", "access_token", "api_key", "apikey", "api-key", "secret", "client_secret")
)
"""Parameters whose values are secrets, whoever names them so."""

_RULE: Final = "A secret is referred to, as env:NAME (a variable of the environment) or file:PATH."


@dataclass(frozen=True, slots=True)
class Secret:
    """A reference to a secret. What it refers to is in no repr, no log and no store.

    >>> secret = Secret.parse("env:SHOP_TOKEN", "source.auth.secret")
    >>> str(secret), secret.value({"SHOP_TOKEN": "a-b-c"})
    ('env:SHOP_TOKEN', 'a-b-c')
    >>> secret.check({})
    Traceback (most recent call last):
    floodmark.errors.SecretMissing: The secret env:SHOP_TOKEN is not there. ... [secret-missing]
    """

    kind: Literal["env", "file"]
    name: str

    @classmethod
    def parse(cls, text: str, option: str, *, folder: Path | None = None) -> "Secret":
        """Read a reference, or refuse it without showing what it may be. A path is relative to `folder`."""
        kind, colon, name = text.partition(":")
        if not colon or not name.strip() or kind not in ("env", "file"):
            raise SecretExposed(
                f"{option} is no reference to a secret.",
                rule=_RULE,
                remedy=f'Put the secret where only the job can read it, and write {option} = "env:NAME".',
                option=option,
            )
        if kind == "file" and folder is not None:
            name = os.fspath(folder / name)
        return cls("env" if kind == "env" else "file", name)

    @staticmethod
    def is_reference(text: str) -> bool:
        """Return whether a text is meant as a reference.

        >>> Secret.is_reference("env:SHOP_URL"), Secret.is_reference("sqlite:///shop.db")
        (True, False)
        """
        return text.startswith(("env:", "file:")) and not text.startswith("file://")

    def check(self, environment: Mapping[str, str] | None = None) -> None:
        """Refuse a secret that is not there, before anything runs that needs it."""
        self.value(environment)

    def value(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the secret itself. A file's last line break is no part of it."""
        if self.kind == "env":
            found = (os.environ if environment is None else environment).get(self.name)
            why = "It is a variable of the environment."
        else:
            try:
                found = Path(self.name).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
                why = "The file is empty."
            except (OSError, UnicodeError) as error:
                found, why = None, f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'no text'}."
        if not found:
            raise SecretMissing(
                f"The secret {self} is not there. {why}",
                rule="A job starts only when each secret that it refers to is there, and not empty.",
                remedy=f"Set the variable {self.name}." if self.kind == "env" else f"Write it into {self.name}.",
                secret=str(self),
            )
        return found

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def refuse_password(url: str, option: str) -> None:
    """Refuse a URL with a password in it, without showing it.

    >>> refuse_password("postgresql://ann@db/shop", "source.url")
    >>> refuse_password("postgresql://ann:x@db/shop", "source.url")
    Traceback (most recent call last):
    floodmark.errors.SecretExposed: The URL source.url has a password in it. ... [secret-exposed]
    """
    authority = url.partition("://")[2].partition("?")[0]
    user, at, _ = authority.rpartition("@")
    options = url.partition("?")[2].lower()
    names = {pair.partition("=")[0] for pair in options.split("&")}
    if (at and ":" in user) or names & SECRET_NAMES:
        raise SecretExposed(
            f"The URL {option} has a password in it.",
            rule=_RULE,
            remedy='Write the URL without it and add password = "env:NAME", or write url = "env:NAME" for all of it.',
            option=option,
        )


def invalid_option(option: str, fact: str, rule: str, remedy: str) -> InvalidOption:
    """Return the error of an option that makes no sense."""
    return InvalidOption(fact, rule=rule, remedy=remedy, option=option)


def require_one_of(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that is not among the known ones.

    >>> require_one_of("nulls", "skp", ["fail", "skip"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: nulls is 'skp'. It is one of 'fail', 'skip'. Did you mean 'skip'? [invalid-option]
    """
    if value not in known:
        raise invalid_option(
            option,
            f"{option} is {value!r}.",
            f"It is one of {', '.join(map(repr, known))}.",
            did_you_mean(str(value), known, otherwise=f"Write for example {known[0]!r}."),
        )


def require_text(option: str, value: object) -> None:
    """Refuse what is no text, or a blank one."""
    if not isinstance(value, str) or not value.strip():
        raise invalid_option(
            option, f"{option} is {value!r}.", "It is a text that is not blank.", "Give it, or leave it out."
        )


def require_above_zero(option: str, value: float | None) -> None:
    """Refuse a number that is not above 0; None means that there is none."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        raise invalid_option(option, f"{option} is {value!r}.", "It is a number above 0.", "Give one, or leave it out.")


def plain_values(value: Any) -> Any:
    """Return a spec as JSON has it: what is None is left out, a secret is its reference.

    >>> plain_values({"auth": Secret("env", "TOKEN"), "pages": (1, 2), "none": None})
    {'auth': 'env:TOKEN', 'pages': [1, 2]}
    """
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain_values(one) for key, one in value.items() if one is not None}
    if isinstance(value, tuple | list):
        return [plain_values(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        kind = getattr(value, "kind", None)
        found = {one.name: getattr(value, one.name) for one in fields(value)}
        return plain_values({"kind": kind, **found})
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
