"""Authentication: by tokens of the home; if it never had one, local requests are admitted without."""

import asyncio
import time
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from floodmark.control import Home, Token, Tokens
from floodmark.control.tokens import TOKENS_TOPIC, StoredToken, split_token
from floodmark.errors import HostRefused, TokenExpired, TokenMissing, TokenRefused
from floodmark.service.workers import Workers
from floodmark.streams.remote.wire import API_PREFIX

HEALTH_PATH: Final = f"{API_PREFIX}/health"
"""The only path that needs no token."""


_SCHEME: Final = b"bearer"
_REMEDY: Final = "Create a token with `floodmark token create`, and send it as 'Authorization: Bearer fmk_...'."


class Authenticator:
    """Checks the token of each request against a short-lived cache of the home's tokens.

    With `needs_token` every request needs a token. Without it, a local request needs none until the home has its first
    token. Revoking the last token does not open the service again.
    """

    __slots__ = (
        "_change_count",
        "_home",
        "_needs_token",
        "_now",
        "_refreshed_at",
        "_refreshing",
        "_seconds",
        "_tokens",
        "_workers",
    )

    def __init__(self, home: Home, workers: Workers, *, needs_token: bool, seconds: float) -> None:
        """Refresh the cached tokens of this home after `seconds`."""
        self._home = home
        self._workers = workers
        self._needs_token = needs_token
        self._seconds = seconds
        self._tokens: dict[str, StoredToken] = {}
        self._change_count: int | None = None
        self._refreshed_at: float | None = None
        self._now = 0
        self._refreshing: asyncio.Task[None] | None = None

    async def admit(self, headers: Iterable[tuple[bytes, bytes]], client: str | None) -> Token | None:
        """Return the token of a request, or None if it needs none; raise an error if it is not admitted."""
        if self._refreshed_at is None or time.monotonic() - self._refreshed_at > self._seconds:
            await self._refresh_shared()
        credentials = [value for name, value in headers if name == b"authorization"]
        # The counter is 0 only if no token was ever created; see `TOKENS_TOPIC`.
        if not credentials and not self._change_count and not self._needs_token:
            check_same_machine(headers, client)
            return None
        if not credentials:
            raise TokenMissing(
                "The request has no token.",
                rule="This service needs a token for every path except /v1/health.",
                remedy=_REMEDY,
            )
        return self._check(credentials)

    def _check(self, credentials: list[bytes]) -> Token:
        scheme, _, text = credentials[0].partition(b" ")
        parts = split_token(text.strip().decode("latin-1"))
        if len(credentials) > 1 or scheme.lower() != _SCHEME or parts is None:
            raise TokenRefused(
                "The Authorization header does not hold a Floodmark token.",
                rule="A request has one Authorization header, of the form 'Authorization: Bearer fmk_...'.",
                remedy=_REMEDY,
            )
        stored = self._tokens.get(parts[0])
        if stored is None or not stored.matches_secret(parts[1]):
            raise TokenRefused(
                "The token is unknown or revoked.",
                rule="The token must belong to the home of this service.",
                remedy=_REMEDY,
            )
        if stored.token.has_expired(self._store_time()):
            raise TokenExpired(
                f"The token {stored.token.id!r} has expired.",
                rule="A token is valid until its expiry time.",
                remedy=_REMEDY,
                token=stored.token.id,
                expires_at=stored.token.expires_at,
            )
        return stored.token

    def _store_time(self) -> int:
        """Return the store's time, estimated from the last refresh."""
        elapsed = 0.0 if self._refreshed_at is None else time.monotonic() - self._refreshed_at
        return self._now + int(elapsed * 1e6)

    async def _refresh_shared(self) -> None:
        """Refresh the tokens; concurrent requests share one refresh."""
        refreshing = self._refreshing
        if refreshing is None:
            # A separate task: other requests may wait for it after the one that started it is cancelled.
            self._refreshing = refreshing = asyncio.get_running_loop().create_task(self._refresh())
            refreshing.add_done_callback(self._refresh_ended)
        await asyncio.shield(refreshing)

    def _refresh_ended(self, refreshing: "asyncio.Task[None]") -> None:
        self._refreshing = None
        if not refreshing.cancelled():
            refreshing.exception()

    async def _refresh(self) -> None:
        begun = time.monotonic()
        tokens, change_count, now = await self._workers.run(self._read)
        if tokens is not None:
            self._tokens = tokens
        self._change_count, self._now, self._refreshed_at = change_count, now, begun

    def _read(self) -> tuple[dict[str, StoredToken] | None, int, int]:
        # Read the counter before the tokens, so that a change in between is read again, not missed.
        change_count = self._home.changes(TOKENS_TOPIC)[TOKENS_TOPIC]
        if change_count == self._change_count:
            return None, change_count, self._home.now()
        tokens = {stored.token.id: stored for stored in Tokens(self._home).stored()}
        return tokens, change_count, self._home.now()


RawHeaders = Iterable[tuple[bytes, bytes]]


@lru_cache(1_000)
def is_loopback(host: str | None) -> bool:
    """Return whether a host name or address is a loopback one.

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


_PROXY_PREFIX: Final = b"x-forwarded-"
_PROXY_HEADERS: Final = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip", b"cf-connecting-ip"}
)
"""Headers that a proxy adds: the request may come from any machine that reaches the proxy."""


def check_same_machine(headers: RawHeaders, client: str | None) -> None:
    """Refuse a request without a token unless it is local and does not come from a web page of another host.

    A page of another host, open in a local browser, can send requests to this machine. Its Host header (after DNS
    rebinding, the page's own host) or its Origin header reveals it.
    """
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
    if len(hosts) != 1 or not is_loopback(host_of(hosts[0])):
        raise _host_refused(f"The request is for the host {', '.join(hosts)!r:.100}.")
    for origin in origins:
        if not is_loopback(host_of(origin)):
            raise _host_refused(f"The request comes from a web page of {origin!r:.100}.")
    if not is_loopback(client):
        raise _host_refused("The request comes from another machine.")
    for name, _ in headers:
        if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX):
            raise _host_refused(
                f"The request was passed on by a proxy: it has the header {name.decode('latin-1')!r:.100}."
            )


def _host_refused(fact: str) -> HostRefused:
    return HostRefused(
        fact,
        rule="Without tokens a service accepts only direct requests from its own machine, for localhost or 127.0.0.1.",
        remedy="Use the address 127.0.0.1, or create a token with `floodmark token create` and send it.",
    )
