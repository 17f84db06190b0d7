"""Where the services of a home are: one URL, or several that stand for the same home."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from floodmark.errors import InvalidOption

SCHEMES: Final = ("http", "https")
_RULE: Final = "It is http://HOST:PORT or https://HOST:PORT; several services of one home are separated by commas."
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Addresses:
    """The services of one home, in the order in which they were named."""

    urls: tuple[str, ...]

    def __str__(self) -> str:
        """Return them as they can be named again."""
        return ",".join(self.urls)


def is_remote(location: object) -> bool:
    """Return whether a location is that of a service.

    >>> is_remote("https://marks.example"), is_remote("postgresql://db/marks"), is_remote(None)
    (True, False, False)
    """
    return isinstance(location, str) and location.partition("://")[0].lower() in SCHEMES


def read_addresses(location: str) -> Addresses:
    """Return the services that a location names, or refuse it without showing what may be a secret.

    >>> print(read_addresses("http://a:8787,b:8788/"))
    http://a:8787,http://b:8788
    >>> read_addresses("http://someone:secret@a:8787")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the service has a user or a password. ... [invalid-option]
    """
    parts = [part.strip() for part in location.split(",")]
    scheme = parts[0].partition("://")[0].lower()
    urls: list[str] = []
    for part in parts:
        url = part if "://" in part else f"{scheme}://{part}"
        try:
            read = urlsplit(url)
            port = read.port
        except ValueError as error:
            raise _unreadable() from error
        if "@" in read.netloc:
            raise InvalidOption(
                "The URL of the service has a user or a password.",
                rule="A service is opened by a token, which is never a part of a URL: URLs end up in logs.",
                remedy="Pass it as connect(..., token=...), or set FLOODMARK_TOKEN.",
            )
        if read.scheme != scheme or not _is_whole(read):
            raise _unreadable()
        host = f"[{read.hostname}]" if read.hostname and ":" in read.hostname else read.hostname
        urls.append(f"{scheme}://{host}" + ("" if port is None else f":{port}"))
    return Addresses(tuple(dict.fromkeys(urls)))


def check_token(token: object) -> str:
    """Return a token that can be sent, or refuse it without showing it."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise InvalidOption(
        "The token cannot be sent.",
        rule="It is the text that `floodmark token create` has printed, without spaces or line ends.",
        remedy="Check connect(..., token=...), or FLOODMARK_TOKEN.",
        option="token",
    )


def _is_whole(read: SplitResult) -> bool:
    return bool(read.hostname) and read.path in ("", "/") and not read.query and not read.fragment


def _unreadable() -> InvalidOption:
    return InvalidOption(
        "The URL of the service cannot be read.",
        rule=_RULE,
        remedy="Write for example 'http://127.0.0.1:8787', or 'https://a.example:8787,b.example:8787'.",
    )
