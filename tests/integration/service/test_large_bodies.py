"""No body keeps the service from answering others: its size, values, columns and depth are limited."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from floodmark._util.ddl import MAX_COLUMNS
from floodmark.errors import RequestInvalid, RequestTooLarge
from floodmark.service import Service, ServiceLimits
from floodmark.service.forms import MAX_VALUES, FormRoute, check_values, parse_now
from floodmark.service.messages import Form
from floodmark.service.routes.groups import ReportForm
from floodmark.service.routes.writers import MarkForm
from floodmark.streams import connect
from support.service.service_tools import JSON, Served

MIB = 2**20


def filled(before: str, item: str, after: str, size: int) -> bytes:
    """Return JSON with as many items as fit in a body of this size."""
    count = (size - len(before) - len(after)) // (len(item) + 1)
    return f"{before}{','.join([item] * count)}{after}".encode()


def members(before: str, value: str, after: str, size: int) -> bytes:
    count = (size - len(before) - len(after)) // (len(value) + 9)
    inner = ",".join(f'"{number:05}":{value}' for number in range(count))
    return f"{before}{inner}{after}".encode()


FLOODS: dict[str, Callable[[int], bytes]] = {
    "lists": lambda size: filled("[", "[]", "]", size),
    "lists of a field": lambda size: filled('{"positions":[', "[]", "]}", size),
    "numbers of a field": lambda size: filled('{"positions":[', "0", "]}", size),
    "objects of a field": lambda size: filled('{"marks":[', "{}", "]}", size),
    "texts of a field": lambda size: filled('{"keys":[', '""', "]}", size),
    "streams": lambda size: filled('{"wanted":{"streams":[', "{}", "]}}", size),
    "pairs": lambda size: filled('{"settings":{"time_columns":[', "[]", "]}}", size),
    "columns": lambda size: filled('{"name":"s","settings":{"ddl":"', "a INT", '"}}', size),
    "levels of a list": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "levels of an object": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "levels of a type": lambda size: filled('{"name":"s","settings":{"ddl":"a ', "ARRAY<", '"}}', size).replace(
        b",A", b"A"
    ),
    "a long text": lambda size: b'{"name":"' + b"a" * (size - 11) + b'"}',
    "a long number": lambda size: b'{"time":' + b"9" * (size - 9) + b"}",
    "spaces": lambda size: b" " * size,
    "no JSON": lambda size: b"x" * size,
}
"""Bodies of a size, most of which took seconds or minutes to parse or to refuse."""
PATHS = ["/v1/streams", "/v1/streams/{stream}/marks", "/v1/streams/{stream}/writers", "/v1/marks", "/v1/news",
         "/v1/groups/1/sync?name=g"]  # fmt: skip


@pytest.fixture
def limits() -> ServiceLimits:
    return ServiceLimits()


@pytest.fixture
def running(store: str, limits: ServiceLimits) -> Iterator[Served]:
    with connect(store, controller=False) as home, Service(home, limits=limits) as service:
        home.create_stream("here")
        yield Served(home, service.url)


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_while_large_bodies_arrive_other_requests_are_answered(running: Served, flood: Callable[[int], bytes]) -> None:
    stream = running.home.stream("here").info.id
    told: list[Any] = []

    def send(path: str) -> None:
        for size in (MIB, 8 * MIB):
            told.append(running.ask("POST", path.replace("{stream}", str(stream)), body=flood(size), headers=CONTENT))

    threads = [threading.Thread(target=send, args=(path,)) for path in PATHS]
    for thread in threads:
        thread.start()
    longest = 0.0
    while any(thread.is_alive() for thread in threads):
        begun = time.monotonic()
        assert running.ask("GET", "/v1/health").status == 200
        longest = max(longest, time.monotonic() - begun)
    assert len(told) == 2 * len(PATHS)
    assert {answer.status for answer in told} <= {400, 413, 422}
    assert [answer.code for answer in told if len(answer.body) > 50_000] == []
    assert [one.name for one in running.home.streams()] == ["here"]
    # Parsed in the loop of the service, each of them took longer.
    assert longest < 10


CONTENT = {"Content-Type": JSON}


def test_a_body_without_events_has_a_limit_of_its_own(running: Served) -> None:
    body = json.dumps({"name": "s"}).encode()
    for size, status in ((MIB, 201), (MIB + 1, 413)):
        for sent in (body.ljust(size), iter([body, b" " * (size - len(body))])):
            told = running.ask("POST", "/v1/streams", body=sent, headers=CONTENT)
            assert told.status == status
            if status == 201:
                running.home.delete_stream("s")
            else:
                assert (told.code, told.value["fields"]["most"]) == ("request-too-large", MIB)
    stream = running.connect().stream("here")
    with stream.writer() as writer:
        writer.write(b"x" * 3 * MIB)
    assert stream.tail() == {0: 1}


def test_as_many_columns_as_a_schema_may_have_are_taken(running: Served) -> None:
    for count, status in ((MAX_COLUMNS, 201), (MAX_COLUMNS + 1, 422), (3 * MAX_COLUMNS, 422)):
        ddl = ", ".join(f"c{number} INT" for number in range(count))
        told = running.ask("POST", "/v1/streams", {"name": "wide", "settings": {"ddl": ddl}})
        assert (told.status, told.code) == (status, None if status == 201 else "schema-invalid")
    schema = pa.schema([(f"c{number}", pa.int32()) for number in range(MAX_COLUMNS)])
    assert running.connect().create_stream("arrow", schema).info.settings.schema == schema


MEMBERS: dict[str, Callable[[int], bytes]] = {
    "unknown members": lambda size: members("{", "[]", "}", size),
    "members of a field": lambda size: members('{"position":{', "[]", "}}", size),
}


def largest(flood: Callable[[int], bytes]) -> bytes:
    """Return about the largest of these bodies that is parsed."""
    size = MIB
    while True:
        body = flood(size)
        try:
            check_values(body)
            return body
        except RequestTooLarge:
            size = size * 2 // 3


@pytest.mark.parametrize("form", [MarkForm, ReportForm])
def test_the_largest_bodies_that_are_parsed_take_little_time(form: type[Form]) -> None:
    bodies = [largest(flood) for flood in (*FLOODS.values(), *MEMBERS.values())]
    begun = time.process_time()
    for body in bodies:
        with pytest.raises(RequestInvalid):
            parse_now(form, body)
    # Without limits of the values many of the bodies take longer than this alone.
    assert time.process_time() - begun < 20


@pytest.mark.parametrize("character", MAX_VALUES)
def test_values_are_counted(character: bytes) -> None:
    check_values(character * MAX_VALUES[character])
    with pytest.raises(RequestTooLarge):
        check_values(character * (MAX_VALUES[character] + 1))


def test_a_route_with_a_form_and_no_scope_cannot_be_made() -> None:
    async def endpoint(form: MarkForm) -> None:
        """Take a form."""

    with pytest.raises(AttributeError):
        FormRoute("/x", endpoint, methods=["POST"])
