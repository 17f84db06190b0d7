"""Secrets, which a job refers to and never contains."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from floodmark.errors import SecretExposed, SecretMissing

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
