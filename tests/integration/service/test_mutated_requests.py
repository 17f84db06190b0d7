"""Requests that are almost right: each gets an answer below 500, and the store stays as good as it was."""

import base64
import json
import logging
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark._util.ddl import parse_ddl
from floodmark.streams import Stream
from floodmark.streams.events import Events
from floodmark.streams.remote.wire import pack_events
from support.examples import examples
from support.mutations import mutated_bytes, mutated_json
from support.service.routes import ARROW, ROUTES, Shop
from support.service.service_tools import JSON, Served, Told
from support.streams.consistency import check_consistent

DDL = """id BIGINT NOT NULL, at TIMESTAMP, name STRING, tags ARRAY<STRING>, counts MAP<STRING, INT>,
         inner STRUCT<a: INT NOT NULL, b: BINARY>, paid DECIMAL(10, 2), day DATE, x DOUBLE, flag BOOLEAN"""
SCHEMA = parse_ddl(DDL)


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Any:
    """Fail a test after which the log of the service has a traceback."""
    caplog.set_level(logging.WARNING)
    yield
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def body_of(count: int) -> bytes:
    row = {"at": datetime(2026, 1, 1, tzinfo=UTC), "name": "n", "tags": ["a", None], "counts": [("k", 1)],
           "inner": {"a": 1, "b": b"x"}, "paid": Decimal("1.25"), "day": date(2026, 1, 1), "x": 0.5,
           "flag": True}  # fmt: skip
    rows = [{"id": number, **(row if number % 2 else {})} for number in range(count)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    return bytes(pack_events(Events(batch, np.linspace(0, 0.9, count))).to_pybytes())


def check_answer(told: Told) -> Told:
    assert told.status < 500, told
    if told.status >= 400:
        assert set(told.value) == {"code", "fact", "rule", "remedy", "fields"}
        assert "Traceback" not in told.body.decode()
    return told


def test_mutated_events(served: Served) -> None:
    chance = random.Random(22)
    stream = served.home.create_stream("s", DDL, segments=2)
    writer = stream.writer("w")
    bodies = [body_of(count) for count in (1, 5, 40)]
    number = taken = 0
    path = f"/v1/streams/{stream.info.id}/events?writer=w&instance={writer.instance}"
    for _ in range(examples(2_000, usual=100)):
        body = mutated_bytes(chance.choice(bodies), chance)
        told = check_answer(served.ask("POST", f"{path}&first={number}", body=body, headers=ARROW))
        assert told.status in (200, 400, 422), told
        taken += told.status == 200
        number = check_end(stream)
    assert taken, "some changes are of values only"
    assert served.ask("POST", f"{path}&first={number}", body=bodies[1], headers=ARROW).status == 200
    assert check_consistent(served.home) == number + 5


def check_end(stream: Stream) -> int:
    return sum(stream.ends().values())


def test_mutated_events_of_a_transaction(served: Served) -> None:
    chance = random.Random(23)
    stream = served.home.create_stream("s", DDL)
    with stream.transactional_writer("t") as writer:
        transaction = writer.begin()
        body = body_of(5)
        path = f"/v1/streams/{stream.info.id}/transactions/{transaction.id}/parts"
        answers = [
            check_answer(served.ask("PUT", f"{path}/{part}", body=mutated_bytes(body, chance), headers=ARROW)).status
            for part in range(examples(2_000, usual=100))
        ]
        assert set(answers) <= {200, 400, 422}
        transaction.commit()
    assert (check_consistent(served.home) > 0) == (200 in answers)


def test_mutated_json(shop: Shop) -> None:
    chance = random.Random(24)
    names = [name for name, route in ROUTES.items() if route.value is not None]
    statuses = set()
    for _ in range(examples(2_000, usual=100)):
        name = chance.choice(names)
        method, target, headers = shop.request(name)
        body = json.dumps(mutated_json(shop.value(name), chance)).encode()
        if chance.random() < 0.3:
            body = mutated_bytes(body, chance)
        statuses.add(check_answer(shop.served.ask(method, target, body=body, headers=headers)).status)
    assert statuses >= {200, 400}
    check_consistent(shop.served.home)


def test_mutated_schemas(served: Served) -> None:
    chance = random.Random(25)
    arrow = SCHEMA.serialize().to_pybytes()
    for number in range(examples(2_000, usual=100)):
        value = {"name": f"s{number}"}
        if number % 2:
            value["schema"] = base64.b64encode(mutated_bytes(arrow, chance)).decode()
        else:
            value["ddl"] = mutated_bytes(DDL.encode(), chance).decode("utf-8", "replace")
        told = check_answer(served.ask("POST", "/v1/streams", value))
        if told.status == 201:
            stream = served.home.stream(value["name"])
            assert stream.info.settings.ddl
            assert check_answer(served.ask("GET", f"/v1/stream?name={value['name']}")).status == 200
            stream.delete()
    assert served.home.streams() == []


def test_mutated_requests_lines_and_queries(shop: Shop) -> None:
    chance = random.Random(26)
    # Without the stream and the group the other requests would find nothing.
    names = [name for name in ROUTES if not name.startswith("DELETE")]
    for _ in range(examples(2_000, usual=100)):
        method, target, headers = shop.request(chance.choice(names))
        changed = mutated_bytes(target.encode(), chance)
        path = "/" + "".join(chr(byte) if 33 <= byte < 127 else f"%{byte:02x}" for byte in changed).lstrip("/")
        body = chance.choice((None, b"{}", b'"x"'))
        headers = {**headers, "Content-Type": chance.choice((JSON, "text/plain", "", *ARROW.values()))}
        check_answer(shop.served.ask(method, path, body=body, headers=headers))
    check_consistent(shop.served.home)
