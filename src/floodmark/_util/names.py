"""Names of inputs, groups and origins, and ids that are stored."""

from collections.abc import Container

from floodmark._util.text import is_storable
from floodmark.errors import DuplicateName, InvalidOption, InvalidValue

Name = str | int
"""What an input or an origin is called: a partition, a writer, a file drop, an upstream query."""


def check_new_name(name: Name, what: str, known: Container[Name]) -> None:
    """Refuse what cannot be a name, and a name that is taken.

    >>> check_new_name("p0", "input", known=["p0"])
    Traceback (most recent call last):
    floodmark.errors.DuplicateName: The input 'p0' is known already. ... [duplicate-name]
    """
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise InvalidOption(
            f"The {what} is {name!r}.",
            rule="It must be named by a string or a whole number.",
            remedy="Use a name such as 'orders-3'.",
            name=name,
        )
    if name in known:
        raise DuplicateName(
            f"The {what} {name!r} is known already.",
            rule="Each name is used once, also when what it names has ended.",
            remedy="Leave it out, use another name, or remove the old one first.",
            name=name,
        )


def check_id(what: str, value: object) -> str:
    """Return `value` if it can be an id, or refuse it.

    >>> check_id("incarnation", "")
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The incarnation is ''. It is a string that is not empty, ... [invalid-value]
    """
    if isinstance(value, str) and value and is_storable(value):
        return value
    raise InvalidValue(
        f"The {what} is {value!r}.",
        rule="It is a string that is not empty, of characters that every database can keep.",
        remedy="Make one with uuid4().hex, or take the one that Spark gives.",
        what=what,
        value=value,
    )
