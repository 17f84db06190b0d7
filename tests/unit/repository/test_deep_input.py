"""Input from outside that is nested very deeply: every parser answers with an error of its own."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from floodmark._util.codec import MAX_DEPTH, parse_json
from floodmark._util.ddl import parse_ddl
from floodmark.errors import FloodmarkError, InvalidValue
from floodmark.ingest.job.unit import listed_units
from floodmark.ingest.jobfile.job_file import load_job
from floodmark.ingest.secondary_input import read_file_rows
from floodmark.kafka.codecs.avro import parse_avro
from floodmark.kafka.mark_records import MarkRecord
from floodmark.sinks.manifest.target import Manifest
from floodmark.sinks.progress import Progress
from floodmark.streams.remote.backend import open_remote

DEPTHS = (MAX_DEPTH + 1, 900, 100_000)
LIST, OBJECT = ("[", "]"), ('{"a":', "}")


def nested(depth: int, brackets: tuple[str, str], inner: str = "1") -> str:
    return brackets[0] * depth + inner + brackets[1] * depth


def read_file(name: str, form: str) -> Callable[[Path, str], Any]:
    def read(folder: Path, text: str) -> Any:
        (folder / name).write_text(text)
        return list(read_file_rows(str(folder / name), ("a",), form))

    return read


def load_toml(folder: Path, text: str) -> Any:
    (folder / "job.toml").write_text(f"[job]\nname = 'j'\n{text}\n")
    return load_job(folder / "job.toml")


def load_properties(folder: Path, text: str) -> Any:
    (folder / "job.properties").write_text(f"ms.watermark={text}\n")
    return load_job(folder / "job.properties")


JSON_READERS: dict[str, Callable[[Path, str], Any]] = {
    "Avro schema": lambda folder, text: parse_avro(text),
    "units": lambda folder, text: listed_units("shop", f"[{text}]"),
    "rows of a file": read_file("rows.json", "json"),
    "lines of a file": read_file("lines.jsonl", "json"),
    "properties": load_properties,
    "mark record": lambda folder, text: MarkRecord.load(text.encode()),
    "progress": lambda folder, text: Progress.load(text),
    "manifest": lambda folder, text: Manifest.load(text),
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("brackets", [LIST, OBJECT], ids=["lists", "objects"])
@pytest.mark.parametrize("name", JSON_READERS)
def test_deep_json_is_refused(name: str, brackets: tuple[str, str], depth: int, tmp_path: Path) -> None:
    with pytest.raises(FloodmarkError):
        JSON_READERS[name](tmp_path, nested(depth, brackets))


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_json_is_a_value_error_wherever_the_stack_stands(depth: int) -> None:
    texts: list[str | bytes] = [nested(depth, LIST), nested(depth, OBJECT), nested(depth, OBJECT).encode("utf-16")]
    for text in texts:
        with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} levels"):
            parse_json(text)
    assert parse_json(json.dumps(["[" * depth])) == ["[" * depth]
    assert parse_json(nested(MAX_DEPTH, LIST)) == json.loads(nested(MAX_DEPTH, LIST))


@pytest.mark.parametrize("depth", [31, 900, 100_000])
def test_a_deep_schema_is_refused(depth: int) -> None:
    for brackets in (("ARRAY<", ">"), ("STRUCT<a: ", ">"), ("MAP<STRING, ", ">")):
        with pytest.raises(InvalidValue):
            parse_ddl(f"id {nested(depth, brackets, 'INT')}")
        with pytest.raises(InvalidValue):
            parse_ddl(f"id {brackets[0] * depth}")


@pytest.mark.parametrize("depth", [50, 900, 3_000])
@pytest.mark.parametrize(
    "form", ["a = {}", "[{}]\na = 1", "[[{}]]\na = 1", "{} = 1"], ids=["values", "tables", "lists of tables", "keys"]
)
def test_a_deep_job_file_is_refused(form: str, depth: int, tmp_path: Path) -> None:
    texts = [nested(depth, LIST), nested(depth, ("{a=", "}"))] if form == "a = {}" else [".".join(["a"] * depth)]
    for text in texts:
        with pytest.raises(FloodmarkError, match="nested in more than"):
            load_toml(tmp_path, form.replace("{}", text))


@pytest.fixture
def deep_server() -> Iterator[tuple[str, list[bytes]]]:
    """Give a server that answers every request with the body in a list."""
    body: list[bytes] = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if b'"code"' not in body[0] else 404)
            self.send_header("Content-Length", str(len(body[0])))
            self.end_headers()
            self.wfile.write(body[0])

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", body
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_server_that_answers_with_deep_json_is_no_service(deep_server: tuple[str, list[bytes]], depth: int) -> None:
    url, body = deep_server
    remote = open_remote(url, budget=2.0)
    for form in (
        "{}",
        '{"streams": {}}',
        '{"streams": [{"settings": {}}]}',
        '{"code": "unknown-stream", "fact": "f", "rule": "r", "remedy": "m", "fields": {"a": {}}}',
    ):
        for brackets in (LIST, OBJECT):
            body[0] = form.replace("{}", nested(depth, brackets)).encode()
            with pytest.raises(FloodmarkError) as refusal:
                remote.catalog.all()
            assert refusal.value.code == "answer-invalid"
    remote.close()


def test_the_limits_leave_room_on_the_stack() -> None:
    def at(depth: int, action: Callable[[], Any]) -> Any:
        return action() if depth == 0 else at(depth - 1, action)

    used = sys.getrecursionlimit() // 2
    with pytest.raises(ValueError, match="levels"):
        at(used, lambda: parse_json(nested(900, LIST)))
    at(used, lambda: parse_json(nested(MAX_DEPTH, LIST)))
    at(used, lambda: parse_ddl(f"id {nested(29, ('STRUCT<a: ', '>'), 'INT')}"))
