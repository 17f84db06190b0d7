"""Authentication: tokens of the home; and without tokens, only requests from this machine for this machine."""

import asyncio
import time
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from floodmark.control import Home, Token, Tokens
from floodmark.control.tokens import TOKENS_TOPIC, KnownToken, split_token
from floodmark.errors import HostRefused, TokenExpired, TokenMissing, TokenRefused
from floodmark.service.workers import Workers
from floodmark.streams.remote.wire import API_PREFIX

HEALTH_PATH: Final = f"{API_PREFIX}/health"
"""The one path that needs no token."""


_SCHEME: Final = b"bearer"
_REMEDY: Final = "Make one with `floodmark token create`, and send it as 'Authorization: Bearer fmk_...'."


class Authenticator:
    """Knows the tokens of a home, as they were at most a moment ago.

    With `needs_token` every request needs one. Without, none is needed as long as the home has none and the request
    comes from this machine, for this machine.
    """

    __slots__ = (
        "_counted",
        "_home",
        "_looked_at",
        "_looking",
        "_needs_token",
        "_now",
        "_seconds",
        "_tokens",
        "_workers",
    )

    def __init__(self, home: Home, workers: Workers, *, needs_token: bool, seconds: float) -> None:
        """Look at the tokens of this home, again after so many seconds."""
        self._home = home
        self._workers = workers
        self._needs_token = needs_token
        self._seconds = seconds
        self._tokens: dict[str, KnownToken] = {}
        self._counted: int | None = None
        self._looked_at: float | None = None
        self._now = 0
        self._looking: asyncio.Task[None] | None = None

    async def admit(self, headers: Iterable[tuple[bytes, bytes]], client: str | None) -> Token | None:
        """Return the token of a request, or None if it needs none; refuse one that may not come in."""
        if self._looked_at is None or time.monotonic() - self._looked_at > self._seconds:
            await self._look_together()
        given = [value for name, value in headers if name == b"authorization"]
        if not given and not self._tokens and not self._needs_token:
            check_same_machine(headers, client)
            return None
        if not given:
            raise TokenMissing(
                "The request has no token.",
                rule="This service needs one for everything but /v1/health.",
                remedy=_REMEDY,
            )
        return self._check(given)

    def _check(self, given: list[bytes]) -> Token:
        scheme, _, text = given[0].partition(b" ")
        parts = split_token(text.strip().decode("latin-1"))
        if len(given) > 1 or scheme.lower() != _SCHEME or parts is None:
            raise TokenRefused(
                "The request has something else than a token.",
                rule="A token is sent once, as 'Authorization: Bearer fmk_...'.",
                remedy=_REMEDY,
            )
        known = self._tokens.get(parts[0])
        if known is None or not known.fits(parts[1]):
            raise TokenRefused(
                "The token is not known here.",
                rule="A token is one of this home, and not revoked.",
                remedy=_REMEDY,
            )
        if known.token.has_expired(self._store_time()):
            raise TokenExpired(
                f"The token {known.token.id!r} has expired.",
                rule="A token is good until its time has run out.",
                remedy=_REMEDY,
                token=known.token.id,
                expires_at=known.token.expires_at,
            )
        return known.token

    def _store_time(self) -> int:
        """Return the time by the store's clock, as far as it is known without asking."""
        elapsed = 0.0 if self._looked_at is None else time.monotonic() - self._looked_at
        return self._now + int(elapsed * 1e6)

    async def _look_together(self) -> None:
        """Look at the tokens; who comes while somebody looks waits for that."""
        looking = self._looking
        if looking is None:
            # A task of its own: if who asked for it goes away, others may wait for it.
            self._looking = looking = asyncio.get_running_loop().create_task(self._look())
            looking.add_done_callback(self._has_looked)
        await asyncio.shield(looking)

    def _has_looked(self, looking: "asyncio.Task[None]") -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()

    async def _look(self) -> None:
        begun = time.monotonic()
        tokens, counted, now = await self._workers.run(self._read)
        if tokens is not None:
            self._tokens = tokens
        self._counted, self._now, self._looked_at = counted, now, begun

    def _read(self) -> tuple[dict[str, KnownToken] | None, int, int]:
        # Counted before it is read: what comes in between is then read twice, and not missed.
        counted = self._home.changes(TOKENS_TOPIC)[TOKENS_TOPIC]
        if counted == self._counted:
            return None, counted, self._home.now()
        known: Any = Tokens(self._home).known()
        return {one.token.id: one for one in known}, counted, self._home.now()


RawHeaders = Iterable[tuple[bytes, bytes]]


@lru_cache(1_000)
def is_loopback(host: str | None) -> bool:
    """Return whether a host, by its name or address, is this machine itself, as every machine calls itself.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "marks.example", "")]
    [True, True, True, False, False, False]
    """
    if not host:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@lru_cache(1_000)
def host_of(header: str) -> str | None:
    """Return the host of a Host header or an origin, without its port.

    >>> host_of("127.0.0.1:8787"), host_of("[::1]:8787"), host_of("https://shop.example")
    ('127.0.0.1', '::1', 'shop.example')
    """
    try:
        return urlsplit(header if "://" in header else f"//{header}").hostname
    except ValueError:
        return None


def check_same_machine(headers: RawHeaders, client: str | None) -> None:
    """Refuse a request without a token unless it comes from this machine, for this machine, and from no foreign page.

    A page of another host that is open in a browser here can send requests here. It gives itself away by the name it
    asks for (its own, which it has let point here), or by its origin.
    """
    found: dict[bytes, list[str]] = {b"host": [], b"origin": [], b"forwarded": [], b"x-forwarded-for": []}
    for name, value in headers:
        if name in found:
            found[name].append(value.decode("latin-1"))
    hosts, origins = found[b"host"], found[b"origin"]
    if len(hosts) != 1 or not is_loopback(host_of(hosts[0])):
        raise _host_refused(f"The request is for the host {', '.join(hosts)!r:.100}.")
    for origin in origins:
        if not is_loopback(host_of(origin)):
            raise _host_refused(f"The request comes from a page of {origin!r:.100}.")
    if not is_loopback(client) or found[b"forwarded"] or found[b"x-forwarded-for"]:
        raise _host_refused("The request comes from another machine.")


def _host_refused(fact: str) -> HostRefused:
    return HostRefused(
        fact,
        rule="Without tokens a service is used from its own machine, by the name localhost or the address 127.0.0.1.",
        remedy="Use that name, or make a token with `floodmark token create` and send it along.",
    )
