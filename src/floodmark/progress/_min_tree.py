"""A tournament of numbers: the minimum of many in one look, one change in O(log n), many changes with numpy."""

from array import array

import numpy as np

from floodmark._util.ints import INT64_MAX, Int64Array

ABSENT = INT64_MAX
"""Loses every match: the value of a leaf that does not take part."""


class MinTree:
    """Leaves 0, 1, 2, ... of int64, and their minimum.

    >>> tree = MinTree(3)
    >>> tree.set(0, 7)
    >>> tree.set(2, 5)
    >>> tree.minimum
    5
    >>> tree.set(2, ABSENT)
    >>> tree.minimum
    7
    """

    __slots__ = ("_leaves", "_nodes")

    def __init__(self, size: int) -> None:
        self._leaves = 1 << max(1, size - 1).bit_length()
        self._nodes = array("q", [ABSENT]) * (2 * self._leaves)

    @property
    def minimum(self) -> int:
        """The lowest leaf, or `ABSENT`."""
        return self._nodes[1]

    def set(self, leaf: int, value: int) -> None:
        """Change one leaf."""
        nodes = self._nodes
        place = leaf + self._leaves
        nodes[place] = value
        while place > 1:
            sibling = nodes[place ^ 1]
            if sibling < value:
                value = sibling
            place >>= 1
            if nodes[place] == value:
                return
            nodes[place] = value

    def set_many(self, leaves: Int64Array, values: Int64Array | int) -> None:
        """Change many leaves at once.

        >>> tree = MinTree(4)
        >>> tree.set_many(np.array([0, 3]), np.array([9, 8]))
        >>> tree.minimum
        8
        """
        nodes = np.frombuffer(self._nodes, dtype=np.int64)
        nodes[leaves + self._leaves] = values
        level = self._leaves >> 1
        while level:
            below = nodes[2 * level : 4 * level]
            np.minimum(below[::2], below[1::2], out=nodes[level : 2 * level])
            level >>= 1

    def grown_to(self, size: int) -> "MinTree":
        """Return a tree with room for `size` leaves and the same values."""
        grown = MinTree(size)
        values = np.frombuffer(self._nodes, dtype=np.int64)[self._leaves :]
        grown.set_many(np.arange(min(self._leaves, grown._leaves)), values[: grown._leaves])
        return grown
