"""What tests of reader groups read, and how their readers crash."""

import json
from typing import Any

from floodmark.streams import ReadBatch, Reader, ReaderGroup, StreamHome

NOW = "0 seconds"


def payloads(batch: ReadBatch) -> list[Any]:
    return [json.loads(row["payload"]) for row in batch.batch.to_pylist()]


def drain(*readers: Reader, rounds: int = 3) -> list[Any]:
    """Read with all of them, in turn, until none has had anything for some rounds; return all payloads."""
    found: list[Any] = []
    quiet = 0
    while quiet < rounds:
        quiet += 1
        for reader in readers:
            while (batch := reader.read(NOW)) is not None:
                quiet = 0
                found += payloads(batch)
    return found


def settle(*readers: Reader) -> None:
    """Let readers report until nothing is on its way from one to another any more."""
    for _ in range(4 * len(readers) + 8):
        for reader in readers:
            reader._acknowledge()
            reader._member.synced_at = -1.0
            reader._exchange_with_group()


def crash(reader: Reader) -> None:
    """Let a reader fall silent, as if its process had been killed."""
    reader._member.stop()
    reader._is_closed = True


def fill(home: StreamHome, stream: str, events: int, first: int = 0, writer: str | None = None) -> None:
    """Write numbers; each is its own key."""
    with home.stream(stream).writer(writer) as opened:
        numbers = range(first, first + events)
        opened.write_batch(list(numbers), key=[f"k{number}" for number in numbers])


def counts(group: ReaderGroup) -> list[int]:
    return sorted(len(reader.segments) for reader in group.state.readers)
