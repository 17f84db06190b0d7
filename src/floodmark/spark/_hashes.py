"""Hashes as Spark and its sketches compute them, for a few names at a time."""

from typing import Final

_ALL: Final = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
_SPARK_SEED: Final = 42
_SKETCH_SEED: Final = 9001
_BLOCK: Final = 32


def spark_hash(text: str) -> int:
    """Return what Spark's `xxhash64` of a string is, without its sign.

    >>> spark_hash("Spark") == -4294468057691064905 % 2**64
    True
    """
    data = text.encode()
    length, place = len(data), 0
    if length >= _BLOCK:
        lanes = [_SPARK_SEED + _P1 + _P2, _SPARK_SEED + _P2, _SPARK_SEED, _SPARK_SEED - _P1]
        while place + _BLOCK <= length:
            words = (int.from_bytes(data[at : at + 8], "little") for at in range(place, place + _BLOCK, 8))
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            place += _BLOCK
        result = sum(_rotated(lane & _ALL, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * _P1 + _P4) & _ALL
    else:
        result = _SPARK_SEED + _P5
    result = (result + length) & _ALL
    while place + 8 <= length:
        result ^= _round(0, int.from_bytes(data[place : place + 8], "little"))
        result, place = (_rotated(result, 27) * _P1 + _P4) & _ALL, place + 8
    if place + 4 <= length:
        result ^= int.from_bytes(data[place : place + 4], "little") * _P1 & _ALL
        result, place = (_rotated(result, 23) * _P2 + _P3) & _ALL, place + 4
    for byte in data[place:]:
        result = _rotated(result ^ byte * _P5 & _ALL, 11) * _P1 & _ALL
    result = (result ^ result >> 33) * _P2 & _ALL
    result = (result ^ result >> 29) * _P3 & _ALL
    return result ^ result >> 32


def sketch_hash(key: int) -> int:
    """Return the hash under which a sketch keeps a key of 64 bits: MurmurHash3 of it, without the last bit.

    >>> sketch_hash(5)
    1498732507761423037
    """
    word = _rotated(key * 0x87C37B91114253D5 & _ALL, 31) * 0x4CF5AD432745937F & _ALL
    other = _SKETCH_SEED ^ 8
    first = (_SKETCH_SEED ^ word ^ 8) + other & _ALL
    return (_mixed(first) + _mixed(first + other & _ALL) & _ALL) >> 1


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _ALL, 31) * _P1 & _ALL


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _ALL


def _mixed(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _ALL
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _ALL
    return word ^ word >> 33
