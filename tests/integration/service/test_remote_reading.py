"""Events that are read over HTTP, when the line is cut and when the reader has enough."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark.streams.local.log import TableLog
from support.service.service_tools import Served


def test_a_read_that_fails_half_way_is_not_taken_for_the_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is cut, and the client asks for the rest, which is then refused or given."""
    remote = served.connect()
    stream = remote.create_stream("s", "id BIGINT")
    with stream.writer("w") as writer:
        for start in range(0, 60_000, 20_000):
            writer.write_batch(pa.table({"id": np.arange(start, start + 20_000)}))
            writer.flush()
    log = TableLog
    chunks = log._chunks
    failures = [2]

    def failing(self: Any, *args: Any) -> Any:
        for place, chunk in enumerate(chunks(self, *args)):
            if place == 1 and failures[0]:
                failures[0] -= 1
                raise ZeroDivisionError
            yield chunk

    monkeypatch.setattr(log, "_chunks", failing)
    ids = [number for chunk in stream.read(0) for number in chunk.batch["id"].to_pylist()]
    assert (ids, failures) == (list(range(60_000)), [0])


def test_a_reader_that_stops_half_way_leaves_the_connection_usable(served: Served) -> None:
    remote = served.connect()
    stream = remote.create_stream("s", "id BIGINT")
    with stream.writer("w") as writer:
        for _ in range(4):
            writer.write_batch(pa.table({"id": np.arange(40_000)}))
            writer.flush()
    for _ in range(3):
        chunks = stream.read(0)
        assert next(chunks).first == 0
        chunks.close()  # type: ignore[attr-defined]
        assert stream.tail() == {0: 160_000}
    assert sum(chunk.batch.num_rows for chunk in stream.read(0)) == 160_000
