"""Mutations of valid input: bytes with a few changes, and JSON values with another value in one place."""

import copy
import random
from collections.abc import Iterator
from typing import Any

_EDGES = (0, 1, 2, 4, 7, 8, 16, 64, 127, 128, 255)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, "", "x", "s", "0",
    "-1", "9" * 30, "a" * 300, "a/b", "../..", "\x00", "\n", "\u202e", "\ud800", "\U0001f600", "null", "'; --", [], {},
    [[]], [{}], [None], {"": 0}, {"0": 0}, {"0": -1}, {"-1": 1}, {"99999999999999999999": 1}, {"kind": "bound"},
)  # fmt: skip


def mutated_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return bytes with one to four changes: of bits, bytes and words, and of whole pieces."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(len(changed) + 1)
        end = min(len(changed), place + chance.choice((1, 4, 8, 32, 200)))
        match chance.randrange(8):
            case 0 if place < len(changed):
                changed[place] ^= 1 << chance.randrange(8)
            case 1 if place < len(changed):
                changed[place] = chance.choice(_EDGES)
            case 2:
                width = chance.choice((2, 4, 8))
                number = chance.choice((0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**62, chance.getrandbits(63)))
                word = (number % 2 ** (8 * width)).to_bytes(width, "little")
                # Offsets and lengths are aligned.
                start = place - place % width
                changed[start : start + width] = word
            case 3:
                del changed[place:end]
            case 4:
                changed[place:place] = changed[place:end]
            case 5:
                changed[place:place] = chance.randbytes(chance.choice((1, 8, 64)))
            case 6:
                other = chance.randrange(len(changed) + 1)
                changed[place:end] = changed[other : other + end - place]
            case _ if chance.random() < 0.2:
                del changed[place:]
    return bytes(changed)


def mutated_json(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with one to three changes: another value, a field more, less or under another name."""
    changed = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(_places(changed))
        if not places:
            return chance.choice(_VALUES)
        holder, key = chance.choice(places)
        match chance.randrange(6):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[chance.choice(("", "kind", "x" * 300, f"{key} ", str(key).upper()))] = holder[key]
            case 2 if isinstance(holder, list):
                holder.extend([holder[key]] * chance.choice((1, 3, 50)))
            case 3:
                other, name = chance.choice(places)
                if name in other if isinstance(other, dict) else name < len(other):
                    holder[key] = copy.deepcopy(other[name])
            case _:
                holder[key] = copy.deepcopy(chance.choice(_VALUES))
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return the holder and the key or index of each value inside of a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)
