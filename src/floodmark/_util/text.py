"""Text: the nearest known word for a misspelled one, and characters that databases cannot store."""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that looks most like this one, whatever its case, or None.

    >>> nearest("Ordrs", ["orders", "payments"]), nearest("x", ["orders"])
    ('orders', None)
    """
    from difflib import get_close_matches  # only a mistake needs it

    spelled = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), spelled, n=1)
    return spelled[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """Return the question after the nearest known word, or what to say where none is near.

    >>> did_you_mean("ordrs", ["orders", "payments"])
    "Did you mean 'orders'?"
    >>> did_you_mean("x", ["orders"], otherwise="There is 'orders'.")
    "There is 'orders'."
    """
    near = nearest(word, known)
    return otherwise if near is None else f"Did you mean {near!r}?"


def replace_unstorable(text: str) -> str:
    """Return a text that others wrote with a sign in the place of each character that cannot be kept.

    >>> replace_unstorable("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
    True
    """
    return text if is_storable(text) else "".join(one if is_storable(one) else "\ufffd" for one in text)


def is_storable(text: str) -> bool:
    # PostgreSQL keeps no NUL, and nobody keeps half of a surrogate pair.
    if text.isascii():
        return "\0" not in text
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)
