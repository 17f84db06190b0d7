"""The fields of errors as JSON values: what JSON cannot say itself is said by an object with one name that begins "$".

None, truth values, numbers, text, lists, tuples, dicts with any keys, bytes, dates, datetimes and timedeltas come back
equal. Anything else comes back as the text that `repr` gives.
"""

import base64
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, Final

import numpy as np

_MICROSECOND: Final = timedelta(microseconds=1)


def to_wire(value: object) -> Any:
    """Return a value as JSON can say it.

    >>> to_wire({"keys": ("a", 7), "at": timedelta(seconds=1)})
    {'keys': {'$tuple': ['a', 7]}, 'at': {'$timedelta': 1000000}}
    """
    if value is None or isinstance(value, bool) or type(value) in (int, str):
        return value
    if isinstance(value, np.generic):
        return to_wire(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, tuple):
        return {"$tuple": [to_wire(one) for one in value]}
    if isinstance(value, list):
        return [to_wire(one) for one in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: to_wire(one) for key, one in value.items()}
        return {"$dict": [[to_wire(key), to_wire(one)] for key, one in value.items()]}
    return _special(value)


def from_wire(value: Any) -> Any:
    """Return the value that `to_wire` was given.

    >>> from_wire(to_wire({0: (1, float("inf")), 1: [b"x"]}))
    {0: (1, inf), 1: [b'x']}
    """
    if isinstance(value, list):
        return [from_wire(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name in _READERS:
            return _READERS[name](inner)
    return {key: from_wire(one) for key, one in value.items()}


def _special(value: object) -> Any:
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, timedelta):
        return {"$timedelta": value // _MICROSECOND}
    if isinstance(value, int | str):
        # Some subclass of them, such as an enumeration's.
        return value.real if isinstance(value, int) else str.__str__(value)
    return repr(value)


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$tuple": lambda inner: tuple(from_wire(one) for one in inner),
    "$dict": lambda inner: {from_wire(key): from_wire(one) for key, one in inner},
    "$float": float,
    "$bytes": base64.b64decode,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$timedelta": lambda inner: inner * _MICROSECOND,
}
