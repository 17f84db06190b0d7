"""Building blocks of job options: frozen mappings, references to secrets, and checks of values."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption, SecretExposed, SecretMissing


class Frozen(Mapping[str, Any]):
    """An immutable, hashable and picklable mapping; equal to any mapping with the same contents.

    >>> Frozen({"mode": "merge", "keys": ["id"]})
    Frozen({'mode': 'merge', 'keys': ('id',)})
    """

    __slots__ = ("_items",)

    def __init__(self, contents: Mapping[str, Any]) -> None:
        """Copy a mapping deeply."""
        self._items = {name: _freeze(value) for name, value in contents.items()}

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


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Frozen(value)
    if isinstance(value, list | tuple):
        return tuple(_freeze(item) for item in value)
    return value


SECRET_NAMES: Final = frozenset(
    ("password", "passwd", "pwd", "token", "access_token", "api_key", "apikey", "api-key", "secret", "client_secret")
)
"""Names of parameters whose values are secrets."""

_SECRET_RULE: Final = "A secret must be a reference: env:NAME (an environment variable) or file:PATH."


@dataclass(frozen=True, slots=True)
class Secret:
    """A reference to a secret. The value itself never appears in a repr, a log or the store.

    >>> secret = Secret.parse("env:SHOP_TOKEN", "source.auth.secret")
    >>> str(secret), secret.value({"SHOP_TOKEN": "a-b-c"})
    ('env:SHOP_TOKEN', 'a-b-c')
    >>> secret.check({})
    Traceback (most recent call last):
    floodmark.errors.SecretMissing: The secret env:SHOP_TOKEN is missing. ... [secret-missing]
    """

    kind: Literal["env", "file"]
    name: str

    @classmethod
    def parse(cls, text: str, option: str, *, folder: Path | None = None) -> "Secret":
        """Parse a reference; errors do not show the text, which may be a secret. Paths are relative to `folder`."""
        kind, colon, name = text.partition(":")
        if not colon or not name.strip() or kind not in ("env", "file"):
            raise SecretExposed(
                f"{option} is not a reference to a secret.",
                rule=_SECRET_RULE,
                remedy=f'Put the secret into an environment variable, and set {option} = "env:NAME".',
                option=option,
            )
        if kind == "file" and folder is not None:
            name = os.fspath(folder / name)
        return cls("env" if kind == "env" else "file", name)

    @staticmethod
    def is_reference(text: str) -> bool:
        """Return whether a string is a reference to a secret.

        >>> Secret.is_reference("env:SHOP_URL"), Secret.is_reference("sqlite:///shop.db")
        (True, False)
        """
        return text.startswith(("env:", "file:")) and not text.startswith("file://")

    def check(self, environment: Mapping[str, str] | None = None) -> None:
        """Raise `SecretMissing` if the secret does not exist."""
        self.value(environment)

    def value(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the value of the secret, without the trailing line break of a file."""
        if self.kind == "env":
            value = (os.environ if environment is None else environment).get(self.name)
            why = "The environment variable is not set or empty."
        else:
            try:
                value = Path(self.name).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
                why = "The file is empty."
            except (OSError, UnicodeError) as error:
                value, why = None, f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'not UTF-8'}."
        if not value:
            raise SecretMissing(
                f"The secret {self} is missing. {why}",
                rule="All secrets of a job must exist and must not be empty before it starts.",
                remedy=f"Set the environment variable {self.name}."
                if self.kind == "env"
                else f"Write the secret into the file {self.name}.",
                secret=str(self),
            )
        return value

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def refuse_password(url: str, option: str) -> None:
    """Raise `SecretExposed` for a URL that contains a password; the error does not show it.

    >>> refuse_password("postgresql://ann@db/shop", "source.url")
    >>> refuse_password("postgresql://ann:x@db/shop", "source.url")
    Traceback (most recent call last):
    floodmark.errors.SecretExposed: The URL source.url contains a password. ... [secret-exposed]
    """
    authority = url.partition("://")[2].partition("?")[0]
    user, at, _ = authority.rpartition("@")
    options = url.partition("?")[2].lower()
    names = {pair.partition("=")[0] for pair in options.split("&")}
    if (at and ":" in user) or names & SECRET_NAMES:
        raise SecretExposed(
            f"The URL {option} contains a password.",
            rule=_SECRET_RULE,
            remedy='Remove it and set password = "env:NAME", or set url = "env:NAME" for the whole URL.',
            option=option,
        )


def invalid_option(option: str, fact: str, rule: str, remedy: str) -> InvalidOption:
    """Return the error for an invalid option."""
    return InvalidOption(fact, rule=rule, remedy=remedy, option=option)


def require_one_of(option: str, value: str, choices: Sequence[str]) -> None:
    """Raise `InvalidOption` if a value is not one of the choices.

    >>> require_one_of("nulls", "skp", ["fail", "skip"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: nulls is 'skp'. ... Did you mean 'skip'? [invalid-option]
    """
    if value not in choices:
        raise invalid_option(
            option,
            f"{option} is {value!r}.",
            f"It must be one of {', '.join(map(repr, choices))}.",
            did_you_mean(str(value), choices, otherwise=f"Use for example {choices[0]!r}."),
        )


def require_text(option: str, value: object) -> None:
    """Raise `InvalidOption` unless a value is a string that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise invalid_option(
            option,
            f"{option} is {value!r}.",
            "It must be a string that is not blank.",
            f"Set {option} to a value, or remove it.",
        )


def require_above_zero(option: str, value: float | None) -> None:
    """Raise `InvalidOption` unless a value is None or a number above 0."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        raise invalid_option(
            option,
            f"{option} is {value!r}.",
            "It must be a number above 0.",
            f"Set {option} to 1 or more, or remove it.",
        )


def plain_values(value: Any) -> Any:
    """Convert a spec to plain JSON values, without None; a secret becomes its reference.

    >>> plain_values({"auth": Secret("env", "TOKEN"), "pages": (1, 2), "none": None})
    {'auth': 'env:TOKEN', 'pages': [1, 2]}
    """
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple | list):
        return [plain_values(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        kind = getattr(value, "kind", None)
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        return plain_values({"kind": kind, **values})
    return value


def secrets_in(value: Any) -> tuple[Secret, ...]:
    """Return the secret references within a spec.

    >>> [str(secret) for secret in secrets_in({"auth": Secret("env", "TOKEN"), "n": 1})]
    ['env:TOKEN']
    """
    if isinstance(value, Secret):
        return (value,)
    if isinstance(value, Mapping):
        return tuple(secret for item in value.values() for secret in secrets_in(item))
    if isinstance(value, tuple | list):
        return tuple(secret for item in value for secret in secrets_in(item))
    if hasattr(value, "__dataclass_fields__"):
        return tuple(secret for field in fields(value) for secret in secrets_in(getattr(value, field.name)))
    return ()
