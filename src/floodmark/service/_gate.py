"""Who may come in: tokens are looked at, and where none is needed, where the request comes from."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

from floodmark.control import Home, Token, Tokens
from floodmark.control.tokens import TOKENS_TOPIC, KnownToken, split_token
from floodmark.errors import TokenExpired, TokenMissing, TokenRefused
from floodmark.service._hosts import check_is_for_here
from floodmark.service._workers import Workers

_SCHEME: Final = b"bearer"
_REMEDY: Final = "Make one with `floodmark token create`, and send it as 'Authorization: Bearer fmk_...'."


class Gate:
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
            check_is_for_here(headers, client)
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
