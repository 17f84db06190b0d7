"""What a database or its driver says, as errors of Floodmark's: the fact, the rule, the way out, and no secret."""

from typing import Final

from floodmark.errors import FloodmarkError, SourceAway, SourceFailed, SourceRefused, UnknownTable

_AWAY: Final = (
    "connection refused",
    "could not connect",
    "could not translate host name",
    "failed to resolve host",
    "is the server running",
    "timeout expired",
    "timed out",
    "server closed the connection",
    "connection to server was lost",
    "terminating connection",
    "connection is lost",
    "the connection is closed",
    "no route to host",
    "starting up",
    "shutting down",
    "too many clients",
    "too many connections",
    "database is locked",
    "ssl syscall",
)
_REFUSED: Final = ("password", "authentication", "permission denied", "not permitted", "role", "access denied")
_NO_TABLE: Final = ("no such table", "unknown database")


def source_error(error: BaseException, shown: str, secrets: tuple[str, ...] = ()) -> FloodmarkError:
    """Return the error of what a driver said about a database.

    >>> source_error(OSError("IO: connection refused"), "postgresql://db/shop").code
    'source-away'
    """
    state = _state(error)
    said = _said(error, secrets)
    low = said.lower()
    if state in ("42P01", "3F000", "3D000") or any(text in low for text in _NO_TABLE):
        return no_table(said, shown)
    if state.startswith("28") or state == "42501" or (not state and _has(low, _REFUSED) and not _has(low, _AWAY)):
        return SourceRefused(
            f"{shown} does not let the job read: {said}.",
            rule="The user of the URL may connect, and may select from what is read.",
            remedy="Correct the user, or the password that the source refers to; grant SELECT to the user.",
        )
    if not state and "does not exist" in low and "database" in low:
        return no_table(said, shown)
    if state[:2] in ("08", "57", "53") or _has(low, _AWAY):
        return SourceAway(
            f"{shown} does not answer, or has stopped to: {said}.",
            rule="A part is read whole or not at all.",
            remedy="See whether the database runs and can be reached; the cell stays due and is read again.",
        )
    return SourceFailed(
        f"{shown} cannot answer the query: {said}.",
        rule="A source is read by SELECT, with its own conditions and those of the cell.",
        remedy="Correct the table, the query, the condition or the type of the watermark.",
        state=state,
    )


def no_table(said: str, shown: str) -> UnknownTable:
    """Return the error of a table or a database that is not there."""
    return UnknownTable(
        f"{shown} has no such table: {said}.",
        rule="Names are taken as they are written, upper and lower case; a dot is between a schema and its table.",
        remedy="Correct the table or the URL.",
    )


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _state(error: BaseException) -> str:
    for one in (error, getattr(error, "orig", None)):
        state = getattr(one, "sqlstate", None)
        if isinstance(state, str) and state.strip("\0"):
            return state
    return ""


def _said(error: BaseException, secrets: tuple[str, ...]) -> str:
    """Return the first line of what was said; what a driver adds quotes the query, which is known."""
    text = str(getattr(error, "orig", None) or error)
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    line = lines[0]
    for mark in ("ERROR:", "FATAL:"):
        line = line.partition(mark)[2].strip() or line
    return line.rstrip(".")[:500]
