"""What streams and writers may be called."""

import re
from typing import Final

from floodmark.errors import InvalidName

_STREAM: Final = re.compile(r"[A-Za-z0-9_][\w.\-]*(/[A-Za-z0-9_][\w.\-]*)*", re.ASCII)
_LONGEST: Final = 200


def check_stream_name(name: object) -> str:
    """Return `name` if a stream may have it.

    >>> check_stream_name("shop/orders")
    'shop/orders'
    >>> check_stream_name("shop/")
    Traceback (most recent call last):
    floodmark.errors.InvalidName: The name of the stream is 'shop/'. ... [invalid-name]
    """
    if isinstance(name, str) and len(name) <= _LONGEST and _STREAM.fullmatch(name):
        return name
    raise InvalidName(
        f"The name of the stream is {name!r}.",
        rule=f"It has parts of letters, digits, '_', '-' and '.', with '/' between, of at most {_LONGEST} characters.",
        remedy="Use for example 'shop/orders'.",
        what="stream",
        name=name,
    )


def check_writer_id(writer: object) -> str:
    """Return `writer` if a writer may be called so.

    >>> check_writer_id("till-3")
    'till-3'
    """
    if isinstance(writer, str) and 0 < len(writer) <= _LONGEST and writer.isprintable() and not writer.startswith("~"):
        return writer
    raise InvalidName(
        f"The writer id is {writer!r}.",
        rule=f"It is printable text of at most {_LONGEST} characters that does not begin with '~'.",
        remedy="Use a name that stays the same when the writer is started again.",
        what="writer",
        name=writer,
    )
