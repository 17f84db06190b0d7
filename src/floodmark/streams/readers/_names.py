"""What groups and readers may be called."""

from typing import Final

from floodmark.errors import InvalidName

_LONGEST: Final = 200


def check_name(what: str, name: object) -> str:
    """Return `name` if a group, a reader or a checkpoint may have it.

    >>> check_name("group", "billing")
    'billing'
    >>> check_name("reader", "")
    Traceback (most recent call last):
    floodmark.errors.InvalidName: The name of the reader is ''. ... [invalid-name]
    """
    if isinstance(name, str) and 0 < len(name) <= _LONGEST and name.isprintable():
        return name
    raise InvalidName(
        f"The name of the {what} is {name!r}.",
        rule=f"It is printable text of at most {_LONGEST} characters.",
        remedy="Use for example 'billing'.",
        what=what,
        name=name,
    )
