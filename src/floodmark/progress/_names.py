"""Names of inputs, groups and origins."""

from collections.abc import Container

from floodmark.errors import DuplicateName, InvalidOption

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
