"""Access tokens of the HTTP service: what each may do, and in which streams.

The home stores only the hash of a token's secret. The secret is 256 random bits and cannot be guessed, so a plain
SHA-256 is enough.
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
"""What a token permits; each scope includes those before it."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
TOKENS_TOPIC: Final = "tokens"
"""Change counter that rises when a token is created or revoked; see `Home.changes`.

It is never reset: above 0 the home has or has had a token, and its service requires one.
"""

_LONGEST: Final = 200
_TOKEN_TEXT: Final = re.compile(r"fmk_([0-9a-f]{12})_([0-9a-f]{64})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][\w.\-]*(/[A-Za-z0-9_][\w.\-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret.

    >>> token = Token("0123456789ab", "tills", "write", ("shop",), created_at=0, expires_at=None)
    >>> token.allows("write", "shop/orders"), token.allows("read", "shop"), token.allows("write", "shopping")
    (True, True, False)
    """

    id: str
    label: str
    scope: Scope
    prefixes: tuple[str, ...]
    """The streams it covers: these names and every name below them after a '/'; "" covers all streams."""
    created_at: int
    expires_at: int | None

    def allows(self, scope: Scope, stream: str) -> bool:
        """Return whether it permits `scope` in that stream."""
        return self.includes(scope) and self.covers(stream)

    def includes(self, scope: Scope) -> bool:
        """Return whether it permits `scope` at all, in any stream."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    def covers(self, stream: str) -> bool:
        """Return whether it covers a stream of that name."""
        return any(prefix in ("", stream) or stream.startswith(f"{prefix}/") for prefix in self.prefixes)

    def has_expired(self, now: int) -> bool:
        """Return whether it has expired at `now`."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token together with the hash of its secret."""

    token: Token
    secret_hash: str

    def matches_secret(self, secret: str) -> bool:
        """Return whether this is the token's secret, compared in constant time."""
        return compare_digest(_hash(secret), self.secret_hash)

    def __repr__(self) -> str:
        return f"StoredToken({self.token!r})"


class Tokens:
    """The tokens of a home.

    >>> with Home.open() as home:
    ...     token, text = Tokens(home).create("write", ["shop"], label="tills")
    ...     text == f"fmk_{token.id}_{text[-64:]}", [(token.scope, token.prefixes) for token in Tokens(home).all()]
    (True, [('write', ('shop',))])
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Use the tokens of this home."""
        self._home = home

    def create(
        self, scope: Scope, prefixes: tuple[str, ...] | list[str] = ("",), *, label: str = "", ttl: int | None = None
    ) -> tuple[Token, str]:
        """Create a token and return it with its text. The text cannot be retrieved later.

        `ttl` is in microseconds; without one the token is valid until it is revoked.
        """
        checked_scope, checked_prefixes, checked_label = (
            _check_scope(scope),
            _check_prefixes(prefixes),
            _check_label(label),
        )
        checked_ttl = None if ttl is None else check_ttl(ttl)
        token_id, secret = token_hex(6), token_hex(32)
        with self._home.write() as connection:
            now = self._home.now(connection)
            expires_at = None if checked_ttl is None else now + checked_ttl
            token = Token(token_id, checked_label, checked_scope, checked_prefixes, now, expires_at)
            connection.execute(
                insert(TOKENS).values(
                    token_id=token_id,
                    secret_hash=_hash(secret),
                    label=token.label,
                    scopes=token.scope,
                    prefixes=to_json(list(token.prefixes), "prefixes"),
                    created_at=now,
                    expires_at=token.expires_at,
                )
            )
            announce_change(connection, TOKENS_TOPIC)
        return token, f"fmk_{token_id}_{secret}"

    def revoke(self, token_id: str) -> None:
        """Revoke a token, or raise `UnknownToken`.

        Also after the last one is revoked, a service of the home requires a token.
        """
        with self._home.write() as connection:
            if connection.execute(delete(TOKENS).where(TOKENS.c.token_id == token_id)).rowcount:
                announce_change(connection, TOKENS_TOPIC)
                return
            token_ids = connection.execute(select(TOKENS.c.token_id)).scalars().all()
            # The caller may have passed the whole token; its secret must not appear in the error.
        shown = parts[0] if (parts := split_token(token_id)) else token_id
        raise UnknownToken(
            f"There is no token {shown!r}.",
            rule="A token is revoked by its id: the 12 characters between the two '_' of its text.",
            remedy=did_you_mean(shown, token_ids, otherwise="List the ids with `floodmark tokens`."),
            token=shown,
        )

    def all(self) -> tuple[Token, ...]:
        """Return all tokens, expired ones included, oldest first."""
        return tuple(stored.token for stored in self.stored())

    def stored(self) -> tuple[StoredToken, ...]:
        """Return all tokens with the hashes of their secrets."""
        with self._home.read() as connection:
            rows = connection.execute(select(TOKENS).order_by(TOKENS.c.created_at, TOKENS.c.token_id)).all()
        return tuple(
            StoredToken(
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
    """Split the text of a token into its id and secret; return None for any other text.

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
    for valid_scope in SCOPES:
        if scope == valid_scope:
            return valid_scope
    raise InvalidOption(
        f"The scope is {scope!r}.",
        rule=f"A scope is one of {', '.join(map(repr, SCOPES))}.",
        remedy=did_you_mean(str(scope), SCOPES, otherwise="Use 'read' unless the token has to write."),
        option="scope",
        value=scope,
    )


def _check_prefixes(prefixes: object) -> tuple[str, ...]:
    checked = tuple(prefixes) if isinstance(prefixes, list | tuple) else ()
    if not checked:
        raise InvalidOption(
            f"The prefixes are {prefixes!r}.",
            rule="A token covers at least one prefix of stream names; '' covers all streams.",
            remedy="Pass a list such as ['shop'], or [''] for all streams.",
            option="prefixes",
            value=prefixes,
        )
    for prefix in checked:
        if prefix != "" and not (isinstance(prefix, str) and len(prefix) <= _LONGEST and _PREFIX.fullmatch(prefix)):
            raise InvalidName(
                f"The prefix is {prefix!r}.",
                rule="A prefix is the name of a stream, or its beginning up to a '/', without that '/'.",
                remedy="Use for example 'shop', which covers 'shop' and 'shop/orders'.",
                what="prefix",
                name=prefix,
            )
    return checked


def _check_label(label: object) -> str:
    if isinstance(label, str) and len(label) <= _LONGEST and (not label or label.isprintable()):
        return label
    raise InvalidOption(
        f"The label is {label!r}.",
        rule=f"A label is printable text of at most {_LONGEST} characters.",
        remedy="Name the user of the token in a few words, such as 'tills of shop 7'.",
        option="label",
        value=label,
    )
