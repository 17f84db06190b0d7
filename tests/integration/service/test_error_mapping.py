"""Every error crosses the wire as the same class, with the same text and equal fields, and has a status of its kind."""

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from floodmark import errors
from floodmark.errors import (
    FloodmarkError,
    InvalidValue,
    StateError,
    UnknownName,
)
from floodmark.service.messages import STATUSES, status_of
from floodmark.streams import Layout
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.remote.wire import from_wire, load_error, save_error, to_wire
from support.service.service_tools import Served

ALL = [getattr(errors, name) for name in errors.__all__]
BY_CODE = {
    "request-invalid": 400, "token-refused": 401, "token-missing": 401, "token-expired": 401, "not-allowed": 403,
    "host-refused": 403, "request-timed-out": 408, "request-too-large": 413, "home-busy": 503, "home-closed": 503,
    "home-missing": 503, "home-newer": 503, "home-unusable": 503, "service-busy": 503, "service-unavailable": 503,
    "service-failed": 500, "missing-package": 500, "floodmark": 500,
}  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -(2**70), 1.5, float("inf"), "text", "\ud800", "$tuple", b"\x00\xff", [], [1, [2]], (), (1, ("a",)),
    {}, {"a": 1}, {1: 2, "b": (3,)}, {"$tuple": [1]}, {("a", 1): None}, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    datetime.fromisoformat("2026-01-02"), date(2026, 1, 2),
    timedelta(days=-3, microseconds=7), [(0.0, 0.5), (0.5, 1.0)],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_the_values_of_fields_come_back_equal(value: Any) -> None:
    again = from_wire(json.loads(json.dumps(to_wire(value), allow_nan=False)))
    assert again == value
    assert type(again) is type(value)


def test_what_cannot_cross_comes_back_as_text_or_as_what_it_stands_for() -> None:
    assert from_wire(to_wire(np.int64(7))) == 7
    assert str(from_wire(to_wire(float("nan")))) == "nan"
    assert from_wire(to_wire({1, 2})) == "{1, 2}"
    assert from_wire(to_wire(ValueError("x"))) == "ValueError('x')"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_each_error_is_the_same_on_both_sides(
    kind: type[FloodmarkError], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = kind("It is so: \u00e9.", rule="It must not be.", remedy="Change it.", value=(1, {2: b"x"}), stream="s")

    def fail(self: Catalog, name: str) -> Any:
        raise sent

    monkeypatch.setattr(Catalog, "find", fail)
    told = served.ask("GET", "/v1/stream?name=s")
    assert told.status == status_of(sent)
    with pytest.raises(FloodmarkError) as refusal:
        served.connect(budget=0.5).stream("s")
    assert type(refusal.value) is kind
    assert (str(refusal.value), refusal.value.fields) == (str(sent), sent.fields)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_each_error_has_the_status_of_its_kind(kind: type[FloodmarkError]) -> None:
    status = status_of(kind("A.", rule="B.", remedy="C."))
    expected = BY_CODE.get(kind.code)
    if expected is None:
        expected = 422 if issubclass(kind, InvalidValue) else 404 if issubclass(kind, UnknownName) else 409
        assert issubclass(kind, InvalidValue | UnknownName | StateError)
    assert status == expected


def test_no_status_is_given_twice_or_to_what_is_no_error() -> None:
    assert set(STATUSES) <= set(ALL)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidValue), (413, InvalidValue), (422, InvalidValue), (404, UnknownName), (409, StateError)],
)
def test_an_error_of_a_newer_release_is_told_by_its_status_and_keeps_its_code(status: int, kind: type) -> None:
    saved = {"code": "brand-new", "fact": "A.", "rule": "B.", "remedy": "C.", "fields": {"x": 1, "rule": 2}}
    error = load_error(saved, status)
    assert (type(error), error.fields) == (kind, {"x": 1, "code": "brand-new"})


def test_errors_that_local_code_raises_are_saved_whole() -> None:
    with pytest.raises(FloodmarkError) as raised:
        Layout.create(2).replace([0], [(0.0, 0.2)])
    error = raised.value
    again = load_error(json.loads(json.dumps(save_error(error))), 422)
    assert (type(again), str(again), again.fields) == (type(error), str(error), error.fields)
