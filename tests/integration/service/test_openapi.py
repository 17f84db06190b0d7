"""The OpenAPI document is true: whatever it allows is answered as it says, and nothing makes the service fail."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from floodmark.service import ServiceLimits
from floodmark.service.app import api
from floodmark.streams import StreamHome, connect
from floodmark.streams.events import Events
from floodmark.streams.remote.wire import ARROW, pack_events
from support.examples import examples
from support.streams.consistency import check_consistent
from support.streams.stream_fixtures import Exchange

OPERATIONS = [(path, method.upper()) for path, methods in api().openapi()["paths"].items() for method in methods]
GOOD = pack_events(Events(pa.record_batch({"id": [7]}), np.array([0.5]))).to_pybytes()
schemathesis.openapi.media_type(ARROW, st.one_of(st.binary(), st.just(GOOD)))
WANTED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance")  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamHome]:
    with connect(tmp_path_factory.mktemp("home"), controller=False) as home:
        stream = home.create_stream("s", "id BIGINT")
        with stream.writer("w") as writer:
            writer.write({"id": 1})
            writer.note_time(5)
        home.create_group("g", "s")
        yield home
        check_consistent(home)


@pytest.fixture(scope="module")
def schema(home: StreamHome, exchange: Exchange) -> Iterator[Any]:
    with exchange.serving(home, limits=ServiceLimits(max_wait=0.01)) as url:
        yield schemathesis.openapi.from_url(f"{url}/v1/openapi.json")


@pytest.fixture(scope="module")
def known(home: StreamHome) -> dict[str, Any]:
    """Give what is there, so that not all requests ask for what is not."""
    return {"stream": home.stream("s").info.id, "group": home.group("g").state.group_id, "segment": 0}


CASES = [
    *((path, method, "anything") for path, method in OPERATIONS),
    *((path, method, "what is there") for path, method in OPERATIONS if "{" in path and method != "DELETE"),
    *((path, method, "what is wrong") for path, method in OPERATIONS if method in ("PATCH", "POST")),
]


@pytest.mark.parametrize(("path", "method", "asks"), CASES)
def test_every_answer_is_as_the_document_says(
    schema: Any, known: dict[str, Any], path: str, method: str, asks: str, caplog: pytest.LogCaptureFixture
) -> None:
    checks = [check for check in CHECKS.get_all() if check.__name__ in WANTED]
    assert len(checks) == len(WANTED)
    mode = GenerationMode.NEGATIVE if asks == "what is wrong" else GenerationMode.POSITIVE

    @seed(22)
    @settings(
        max_examples=examples(50), deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def conforms(case: Any) -> None:
        if asks == "what is there":
            case.path_parameters = {**case.path_parameters, **{k: v for k, v in known.items() if f"{{{k}}}" in path}}
        response = case.call(timeout=10)
        assert response.status_code < 500, response.text
        case.validate_response(response, checks=checks)
        if response.status_code >= 400:
            assert set(response.json()) == {"code", "fact", "rule", "remedy", "fields"}

    conforms()
    assert not [record for record in caplog.records if record.exc_info]


def test_every_operation_says_what_it_does_and_has_a_name_of_its_own() -> None:
    paths = api().openapi()["paths"]
    operations = [paths[path][method.lower()] for path, method in OPERATIONS]
    assert all(operation["description"] and operation["tags"] for operation in operations)
    assert len({operation["operationId"] for operation in operations}) == len(operations)
