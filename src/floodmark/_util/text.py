"""Text: suggestions for misspelled words, and characters that databases cannot store."""

from collections.abc import Iterable
from typing import Final

_LONGEST_MISSPELLED: Final = 1_000
"""Longer texts are not compared: that takes time, and no name is as long."""


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the most similar candidate, ignoring case, or None if none is similar.

    >>> nearest("Ordrs", ["orders", "payments"]), nearest("x", ["orders"])
    ('orders', None)
    """
    if len(word) > _LONGEST_MISSPELLED:
        return None
    from difflib import get_close_matches  # slow to import, and needed only for an error message

    by_lowercase = {candidate.lower(): candidate for candidate in candidates}
    matches = get_close_matches(word.lower(), by_lowercase, n=1)
    return by_lowercase[matches[0]] if matches else None


def did_you_mean(word: str, candidates: Iterable[str], *, otherwise: str = "") -> str:
    """Return "Did you mean ...?" with the most similar candidate, or `otherwise` if none is similar.

    >>> did_you_mean("ordrs", ["orders", "payments"])
    "Did you mean 'orders'?"
    >>> did_you_mean("x", ["orders"], otherwise="There is 'orders'.")
    "There is 'orders'."
    """
    match = nearest(word, candidates)
    return otherwise if match is None else f"Did you mean {match!r}?"


def replace_unstorable(text: str) -> str:
    """Return text with U+FFFD in place of each character that cannot be stored.

    >>> replace_unstorable("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
    True
    """
    return text if is_storable(text) else "".join(char if is_storable(char) else "\ufffd" for char in text)


def is_storable(text: str) -> bool:
    # PostgreSQL cannot store NUL, and no database a lone surrogate.
    if text.isascii():
        return "\0" not in text
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)
