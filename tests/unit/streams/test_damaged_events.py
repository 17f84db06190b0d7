"""Stored events that are not as they were written: one clear error, and no value that was changed."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from sqlalchemy import select, update

from floodmark.errors import EventsDamaged
from floodmark.streams import Stream, StreamHome
from floodmark.streams.local.stored_batch import checksum_of
from floodmark.streams.local.tables import BATCHES, TRANSACTION_BATCHES
from support.examples import examples

KINDS = ("sqlite", "postgres")
SCHEMA = "id BIGINT NOT NULL, at TIMESTAMP, name STRING, tags ARRAY<STRING>"


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def stream(local: StreamHome) -> Stream:
    return local.create_stream("shop/orders", SCHEMA)


def write(stream: Stream, first: int, count: int = 50) -> None:
    rows = range(first, first + count)
    columns = {"id": rows, "at": [None] * count, "name": [f"n{row}" for row in rows], "tags": [["a", None]] * count}
    with stream.writer("w") as writer:
        writer.write_batch(pa.table(columns))


def body_at(home: StreamHome, offset: int) -> bytes:
    with home.home.read() as connection:
        return bytes(connection.execute(select(BATCHES.c.body).where(BATCHES.c.first_offset == offset)).scalar_one())


def store(home: StreamHome, offset: int, **values: object) -> None:
    with home.home.write() as connection:
        connection.execute(update(BATCHES).where(BATCHES.c.first_offset == offset).values(values))


def damaged(body: bytes, seed: int) -> Iterator[bytes]:
    """Return bytes cut short, emptied, grown, replaced, and with one or more of them changed."""
    chance = random.Random(seed)
    yield from (b"", body[:7], body[:100], body[: len(body) // 2], body[:-1], body + b"\0" * 8, b"\xff" * len(body))
    yield chance.randbytes(len(body))
    for _ in range(examples(300)):
        changed = bytearray(body)
        for _ in range(chance.choice((1, 1, 1, 2, 8))):
            changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
        if changed != body:
            yield bytes(changed)


@pytest.mark.parametrize("count", [50, 5_000], ids=["short", "long"])
def test_changed_events_are_refused_with_their_place(local: StreamHome, stream: Stream, count: int) -> None:
    write(stream, 0)
    write(stream, 50, count)
    body = body_at(local, 50)
    for changed in damaged(body, count):
        store(local, 50, body=changed)
        with pytest.raises(EventsDamaged) as refusal:
            list(stream.read(0))
        assert refusal.value.fields == {"stream": "shop/orders", "segment": 0, "offset": 50}
    store(local, 50, body=body)
    ids = [number for chunk in stream.read(0) for number in chunk.batch.column("id").to_pylist()]
    assert ids == list(range(50 + count))


def test_a_batch_with_another_number_of_events_is_refused(local: StreamHome, stream: Stream) -> None:
    write(stream, 0)
    store(local, 0, events=49)
    with pytest.raises(EventsDamaged, match="there are not 49"):
        list(stream.read(0))


def test_events_of_an_earlier_release_are_read_and_judged_by_their_form(local: StreamHome, stream: Stream) -> None:
    write(stream, 0)
    body = body_at(local, 0)
    store(local, 0, checksum=None)
    assert sum(chunk.batch.num_rows for chunk in stream.read(0)) == 50
    refused = 0
    for changed in damaged(body, 0):
        store(local, 0, body=changed)
        try:
            for chunk in stream.read(0):
                # Without a checksum a changed value may pass, but never one that lies outside of the batch.
                chunk.batch.validate(full=True)
                chunk.batch.to_pylist()
        except EventsDamaged:
            refused += 1
    assert refused > 10


def test_changed_events_of_a_transaction_are_not_committed(local: StreamHome, stream: Stream) -> None:
    with stream.transactional_writer("t") as writer:
        transaction = writer.begin()
        for number in range(50):
            transaction.write({"id": number})
        transaction.flush()
        for column in (TRANSACTION_BATCHES.c.body, TRANSACTION_BATCHES.c.points):
            with local.home.read() as connection:
                content = bytes(connection.execute(select(column)).scalar_one())
            for changed in (content[:-8], bytes([content[0] ^ 1]) + content[1:], content[:-1] + b"\x7f", b""):
                with local.home.write() as connection:
                    connection.execute(update(TRANSACTION_BATCHES).values({column: changed}))
                with pytest.raises(EventsDamaged) as refusal:
                    local.local.log.commit(stream.info, transaction.id)
                assert refusal.value.fields == {"stream": "shop/orders", "transaction": transaction.id, "part": 0}
            with local.home.write() as connection:
                connection.execute(update(TRANSACTION_BATCHES).values({column: content}))
        transaction.commit()
    assert sum(chunk.batch.num_rows for chunk in stream.read(0)) == 50


@pytest.mark.parametrize("size", [0, 1, 8, 16_383, 16_384, 16_385, 100_000, 1_000_003])
def test_a_checksum_sees_every_changed_byte_and_every_exchange_of_two_words(size: int) -> None:
    chance = random.Random(size)
    content = bytearray(chance.randbytes(size))
    before = checksum_of(content)
    assert checksum_of(bytes(content)) == checksum_of(memoryview(content)) == before
    assert checksum_of(content, 1) != before or size == 0
    for _ in range(200 if size else 0):
        place = chance.choice((0, size - 1, chance.randrange(size)))
        content[place] ^= 1 << chance.randrange(8)
        assert checksum_of(content) != before
        before = checksum_of(content)
    for _ in range(200 if size > 16 else 0):
        first, second = (8 * chance.randrange(size // 8) for _ in range(2))
        one, other = content[first : first + 8], content[second : second + 8]
        content[first : first + 8], content[second : second + 8] = other, one
        assert checksum_of(content) != before or one == other
        before = checksum_of(content)
