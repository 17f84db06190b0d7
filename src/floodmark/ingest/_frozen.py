"""A mapping that nobody can change, to be kept in frozen objects."""

from collections.abc import Iterator, Mapping
from typing import Any


class Frozen(Mapping[str, Any]):
    """What it was made of, for ever; equal to any mapping with the same contents, and can be hashed and pickled.

    >>> Frozen({"mode": "merge", "keys": ["id"]})
    Frozen({'mode': 'merge', 'keys': ('id',)})
    """

    __slots__ = ("_items",)

    def __init__(self, contents: Mapping[str, Any]) -> None:
        """Copy it, with what it contains."""
        self._items = {name: _frozen(value) for name, value in contents.items()}

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"Frozen({self._items!r})"


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Frozen(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(one) for one in value)
    return value
