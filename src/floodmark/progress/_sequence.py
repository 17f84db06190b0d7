"""One sequence that came in chunks, some of which are still missing."""

from collections.abc import Iterable

from floodmark.errors import ChunkConflict

_NOTHING: frozenset[int] = frozenset()
"""Shared by all sequences whose chunks come in order, which is most of them."""


class OpenSequence:
    """The chunks seen of an incomplete sequence, as a set: all below `next`, and those in `ahead`.

    A set and not a count: tasks are retried, so the same chunk may be reported any number of times. `is_in_order`
    says that so far each chunk came right after the one before it.
    """

    __slots__ = ("ahead", "attempt", "is_in_order", "last", "next", "watermark")

    def __init__(self, attempt: int, chunk_base: int, chunk: int, is_last: bool, watermark: int) -> None:
        """Begin with one chunk."""
        self.attempt = attempt
        self.watermark = watermark
        self.last = chunk if is_last else None
        if chunk == chunk_base:
            self.next = chunk + 1
            self.ahead: set[int] | frozenset[int] = _NOTHING
            self.is_in_order = not is_last
        else:
            self.next = chunk_base
            self.ahead = {chunk}
            self.is_in_order = False

    def report(self, chunk: int, is_last: bool, watermark: int) -> bool:
        """Take one chunk; return whether it is new. Raises `ChunkConflict`, and then nothing has changed."""
        following = self.next
        if self.last is None:
            if is_last:
                if chunk < following or (self.ahead and max(self.ahead) >= chunk):
                    raise _conflict(f"Chunk {chunk} was reported as the last one, but others say there is more.")
                self.last = chunk
                self.is_in_order = False
        elif chunk > self.last or is_last != (chunk == self.last):
            role = "the last one" if is_last else "not the last one"
            raise _conflict(f"Chunk {chunk} was reported as {role}, but {self.last} was the last one.")
        if watermark > self.watermark:
            self.watermark = watermark
        if chunk == following:
            following += 1
            ahead = self.ahead
            if isinstance(ahead, set):
                while following in ahead:
                    ahead.remove(following)
                    following += 1
            self.next = following
            return True
        if chunk < following or chunk in self.ahead:
            return False
        if isinstance(self.ahead, set):
            self.ahead.add(chunk)
        else:
            self.ahead = {chunk}
        self.is_in_order = False
        return True

    def merged_with(self, other: "OpenSequence", chunk_base: int) -> "OpenSequence":
        """Return what both know together; the newer attempt wins, equal ones are united."""
        if self.attempt != other.attempt:
            return max(self, other, key=_attempt).copy()
        merged = self.copy()
        others = [*range(chunk_base, other.next), *sorted(other.ahead)]
        # First what lies below a last chunk, then the last one: a contradiction shows whichever side it is on.
        for chunk in others:
            if chunk != other.last:
                merged.report(chunk, False, other.watermark)
        if other.last is not None:
            merged.report(other.last, True, other.watermark)
        return merged

    def is_complete(self) -> bool:
        """Return whether every chunk up to the last has been seen."""
        return self.last is not None and self.next > self.last

    def missing(self, limit: int) -> frozenset[int]:
        """Return the first `limit` chunk numbers that are known to be missing."""
        known_end = self.last if self.last is not None else max(self.ahead, default=self.next)
        found: list[int] = []
        for chunk in range(self.next, known_end + 1):
            if len(found) == limit:
                break
            if chunk not in self.ahead:
                found.append(chunk)
        return frozenset(found)

    def copy(self) -> "OpenSequence":
        """Return an independent copy."""
        return self.load(self.attempt, self.next, self.ahead, self.last, self.watermark)

    @classmethod
    def load(
        cls, attempt: int, following: int, ahead: Iterable[int], last: int | None, watermark: int
    ) -> "OpenSequence":
        """Return a sequence with exactly these values."""
        sequence = cls(attempt, following - 1, following - 1, False, watermark)
        sequence.ahead = set(ahead)
        sequence.last = last
        sequence.is_in_order = last is None and not sequence.ahead
        return sequence


def _attempt(sequence: OpenSequence) -> int:
    return sequence.attempt


def _conflict(fact: str) -> ChunkConflict:
    return ChunkConflict(
        fact,
        rule="A sequence has one last chunk and none beyond it.",
        remedy="If a retry split the sequence in another way, report it with a higher attempt.",
    )
