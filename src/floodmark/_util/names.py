"""Names of inputs, groups and origins, and ids that are stored."""

from collections.abc import Container

from floodmark._util.text import is_storable
from floodmark.errors import DuplicateName, InvalidOption, InvalidValue

Name = str | int
"""The name of an input or origin: a partition, a writer, a file drop, an upstream query."""


def check_new_name(name: Name, what: str, existing: Container[Name]) -> None:
    """Raise an error if `name` is not valid or exists already.

    >>> check_new_name("p0", "input", existing=["p0"])
    Traceback (most recent call last):
    floodmark.errors.DuplicateName: The input 'p0' exists already. ... [duplicate-name]
    """
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise InvalidOption(
            f"The {what} is {name!r}.",
            rule=f"The name of the {what} must be a string or an int.",
            remedy="Use a name such as 'orders-3'.",
            name=name,
        )
    if name in existing:
        raise DuplicateName(
            f"The {what} {name!r} exists already.",
            rule="Each name is used once, also if its owner has finished.",
            remedy="Use another name, or remove the old one first.",
            name=name,
        )


def check_id(what: str, value: object) -> str:
    """Return `value` if it is a valid id, or raise an error.

    >>> check_id("incarnation", "")
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The incarnation is ''. It must be a non-empty string ... [invalid-value]
    """
    if isinstance(value, str) and value and is_storable(value):
        return value
    raise InvalidValue(
        f"The {what} is {value!r}.",
        rule="It must be a non-empty string of characters that every database can store.",
        remedy="Create one with uuid4().hex, or use the id that Spark gives.",
        what=what,
        value=value,
    )
