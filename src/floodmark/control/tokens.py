"""Tokens: who may do what in the streams of a home, when it is reached through a service.

The home keeps only the hash of a token's secret. The secret is 256 random bits, so a plain SHA-256 is enough: there is
nothing to guess, and nothing to slow down.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex
from typing import Final, Literal, get_args

from sqlalchemy import delete, insert, select

from floodmark._util.codec import from_json, to_json
from floodmark._util.text import did_you_mean
from floodmark._util.times import check_ttl
from floodmark.control.home import Home
from floodmark.control.store.change_counters import announce_change
from floodmark.control.tables import TOKENS
from floodmark.errors import InvalidName, InvalidOption, UnknownToken

Scope = Literal["read", "write", "admin"]
"""What a token is good for; each includes those before it."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
TOKENS_TOPIC: Final = "tokens"
"""What changes when a token is created or revoked: see `Home.changes`."""

_LONGEST: Final = 200
_TOKEN_TEXT: Final = re.compile(r"fmk_([0-9a-f]{12})_([0-9a-f]{64})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][\w.\-]*(/[A-Za-z0-9_][\w.\-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; its secret is not.

    >>> token = Token("0123456789ab", "tills", "write", ("shop",), created_at=0, expires_at=None)
    >>> token.allows("write", "shop/orders"), token.allows("read", "shop"), token.allows("write", "shopping")
    (True, True, False)
    """

    id: str
    label: str
    scope: Scope
    prefixes: tuple[str, ...]
    """The streams it is good for: each of these names, and those that go on after it with a '/'; "" is all."""
    created_at: int
    expires_at: int | None

    def allows(self, scope: Scope, stream: str) -> bool:
        """Return whether it is good for that, in a stream of that name."""
        return self.includes(scope) and self.covers(stream)

    def includes(self, scope: Scope) -> bool:
        """Return whether it is good for that in any stream at all."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    def covers(self, stream: str) -> bool:
        """Return whether it is good for a stream of that name."""
        return any(prefix in ("", stream) or stream.startswith(f"{prefix}/") for prefix in self.prefixes)

    def has_expired(self, now: int) -> bool:
        """Return whether its time has run out."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token together with the hash of its secret."""

    token: Token
    secret_hash: str

    def fits(self, secret: str) -> bool:
        """Return whether a secret is that of the token, in a time that does not depend on how much of it is right."""
        return compare_digest(_hash(secret), self.secret_hash)

    def __repr__(self) -> str:
        return f"KnownToken({self.token!r})"


class Tokens:
    """The tokens of a home.

    >>> with Home.open() as home:
    ...     token, text = Tokens(home).create("write", ["shop"], label="tills")
    ...     text == f"fmk_{token.id}_{text[-64:]}", [(token.scope, token.prefixes) for token in Tokens(home).all()]
    (True, [('write', ('shop',))])
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def create(
        self, scope: Scope, prefixes: tuple[str, ...] | list[str] = ("",), *, label: str = "", ttl: int | None = None
    ) -> tuple[Token, str]:
        """Make a token, and return it with its text. The text is not to be had a second time.

        Without a `ttl`, in microseconds, it is good until it is revoked.
        """
        checked = _check_scope(scope), _check_prefixes(prefixes), _check_label(label)
        lasts = None if ttl is None else check_ttl(ttl)
        number, secret = token_hex(6), token_hex(32)
        with self._home.write() as connection:
            now = self._home.now(connection)
            token = Token(number, checked[2], checked[0], checked[1], now, None if lasts is None else now + lasts)
            connection.execute(
                insert(TOKENS).values(
                    token_id=number,
                    secret_hash=_hash(secret),
                    label=token.label,
                    scopes=token.scope,
                    prefixes=to_json(list(token.prefixes), "prefixes"),
                    created_at=now,
                    expires_at=token.expires_at,
                )
            )
            announce_change(connection, TOKENS_TOPIC)
        return token, f"fmk_{number}_{secret}"

    def revoke(self, token_id: str) -> None:
        """Let a token be good for nothing any more, or refuse an id that none has."""
        with self._home.write() as connection:
            if connection.execute(delete(TOKENS).where(TOKENS.c.token_id == token_id)).rowcount:
                announce_change(connection, TOKENS_TOPIC)
                return
            known = connection.execute(select(TOKENS.c.token_id)).scalars().all()
        # Whoever passes the whole token by mistake must not find it in an error.
        shown = parts[0] if (parts := split_token(token_id)) else token_id
        raise UnknownToken(
            f"There is no token {shown!r}.",
            rule="A token is revoked by its id, the part between the first two '_'.",
            remedy=did_you_mean(shown, known, otherwise="List them with `floodmark tokens`."),
            token=shown,
        )

    def all(self) -> tuple[Token, ...]:
        """Return all tokens, the oldest first; also those that have expired."""
        return tuple(known.token for known in self.known())

    def known(self) -> tuple[KnownToken, ...]:
        """Return all tokens with the hashes of their secrets."""
        with self._home.read() as connection:
            rows = connection.execute(select(TOKENS).order_by(TOKENS.c.created_at, TOKENS.c.token_id)).all()
        return tuple(
            KnownToken(
                Token(
                    row.token_id,
                    row.label,
                    row.scopes,
                    tuple(from_json(row.prefixes)),
                    row.created_at,
                    row.expires_at,
                ),
                row.secret_hash,
            )
            for row in rows
        )


def split_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token's text, or None if it is none.

    >>> split_token("fmk_0123456789ab_" + "7" * 64)[0]
    '0123456789ab'
    >>> split_token("fmk_0123456789ab_7") is None
    True
    """
    parts = _TOKEN_TEXT.fullmatch(text)
    return None if parts is None else (parts[1], parts[2])


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _check_scope(scope: object) -> Scope:
    for known in SCOPES:
        if scope == known:
            return known
    raise InvalidOption(
        f"The scope is {scope!r}.",
        rule=f"It is one of {', '.join(map(repr, SCOPES))}.",
        remedy=did_you_mean(str(scope), SCOPES, otherwise="To read asks for least."),
        option="scope",
        value=scope,
    )


def _check_prefixes(prefixes: object) -> tuple[str, ...]:
    given = tuple(prefixes) if isinstance(prefixes, list | tuple) else ()
    if not given:
        raise InvalidOption(
            f"The prefixes are {prefixes!r}.",
            rule="A token is good for at least one prefix of the names of streams; '' is all of them.",
            remedy="Pass a list such as ['shop'].",
            option="prefixes",
            value=prefixes,
        )
    for prefix in given:
        if prefix != "" and not (isinstance(prefix, str) and len(prefix) <= _LONGEST and _PREFIX.fullmatch(prefix)):
            raise InvalidName(
                f"The prefix is {prefix!r}.",
                rule="It is the name of a stream, or its beginning up to a '/', without that '/'.",
                remedy="Use for example 'shop', which is good for 'shop' and 'shop/orders'.",
                what="prefix",
                name=prefix,
            )
    return given


def _check_label(label: object) -> str:
    if isinstance(label, str) and len(label) <= _LONGEST and (not label or label.isprintable()):
        return label
    raise InvalidOption(
        f"The label is {label!r}.",
        rule=f"It is printable text of at most {_LONGEST} characters.",
        remedy="Say in a few words who uses the token.",
        option="label",
        value=label,
    )
