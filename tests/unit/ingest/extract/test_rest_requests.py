"""How a cell is written into a request."""

import json
from datetime import datetime
from typing import Any

import pytest

from floodmark.errors import FloodmarkError, RestRequestInvalid, UnknownVariable
from floodmark.ingest import RestSource
from floodmark.ingest.calendar.clock import wall_to_micros, zone_of
from floodmark.ingest.extract.rest.request import first_request, format_range_end, is_same_service, with_param
from support.ingest.rest_reading import HOUR, row_of

BERLIN = "Europe/Berlin"


def in_berlin(text: str, fold: int = 0) -> int:
    return wall_to_micros(datetime.fromisoformat(text).replace(fold=fold), zone_of(BERLIN))


@pytest.mark.parametrize(
    ("time_format", "expected"),
    [
        ("iso", "2020-07-01T00:00:00+02:00"),
        ("epoch-seconds", "1593554400"),
        ("epoch-millis", "1593554400000"),
        ("epoch-micros", "1593554400000000"),
        ("%Y-%m-%d", "2020-07-01"),
        ("%Y-%m", "2020-07"),
        ("%Y-%m-%dT%H:%M:%S%z", "2020-07-01T00:00:00+0200"),
        ("day %j of %Y", "day 183 of 2020"),
    ],
)
def test_a_moment_is_written_in_the_zone_and_format_of_the_source(time_format: str, expected: str) -> None:
    assert format_range_end(in_berlin("2020-07-01"), time_format, BERLIN) == expected


@pytest.mark.parametrize(
    ("micros", "time_format"),
    [
        (1, "epoch-seconds"),
        (1, "epoch-millis"),
        (in_berlin("2020-07-01T10:37:00"), "%Y-%m-%d"),
        (in_berlin("2020-07-02"), "%Y-%m"),
        (in_berlin("2020-07-01"), "%H:%M"),
        (in_berlin("2020-10-25T02:30:00", fold=1), "%Y-%m-%d %H:%M"),
        (in_berlin("2020-07-01T00:00:00") + 1, "%Y-%m-%dT%H:%M:%S%z"),
    ],
)
def test_a_moment_that_a_format_cannot_say_is_refused(micros: int, time_format: str) -> None:
    with pytest.raises(RestRequestInvalid, match="exactly") as caught:
        format_range_end(micros, time_format, BERLIN)
    assert caught.value.fields == {"time_format": time_format, "time": micros}


def test_the_hour_that_comes_twice_is_told_apart_by_its_offset() -> None:
    hours = [in_berlin("2020-10-25T02:30:00", fold=fold) for fold in (0, 1)]
    assert [format_range_end(hour, "iso", BERLIN) for hour in hours] == [
        "2020-10-25T02:30:00+02:00",
        "2020-10-25T02:30:00+01:00",
    ]
    assert format_range_end(hours[0], "%Y-%m-%d %H:%M", BERLIN) == "2020-10-25 02:30"


def test_the_zone_is_that_of_the_source_and_else_that_of_the_job() -> None:
    params = {"since": "{{range.from}}", "until": "{{ range.to }}"}
    for own, expected in ((None, "1970-01-01T05%3A30%3A00%2B05%3A30"), ("UTC", "1970-01-01T00%3A00%3A00%2B00%3A00")):
        request = first_request(RestSource(url="http://api/x", params=params, zone=own), "Asia/Kolkata", row_of())
        assert f"since={expected}" in request.url


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a/b?c#d", "a%2Fb%3Fc%23d"),
        ("ä b", "%C3%A4%20b"),
        ("..%2F", "..%252F"),
        (7, "7"),
        (True, "true"),
        (1.5, "1.5"),
    ],
)
def test_a_value_is_one_name_in_the_path(value: Any, expected: str) -> None:
    request = first_request(RestSource(url="http://api/s/{{unit.id}}/x"), "UTC", row_of(id=value))
    assert request.url == f"http://api/s/{expected}/x"


@pytest.mark.parametrize("value", ["", ".", "..", None])
def test_a_value_that_would_lead_to_another_address_is_refused(value: Any) -> None:
    with pytest.raises(RestRequestInvalid, match=r"unit\.id"):
        first_request(RestSource(url="http://api/s/{{unit.id}}/x"), "UTC", row_of(id=value))


def test_parameters_are_encoded_and_replace_those_of_the_url() -> None:
    source = RestSource(url="http://api/x?size=1&flag#top", params={"size": "{{unit.n}}", "q": "a&b={{unit.q}}"})
    request = first_request(source, "UTC", row_of(n=5, q="ü+"))
    assert request.url == "http://api/x?flag&size=5&q=a%26b%3D%C3%BC%2B"


@pytest.mark.parametrize(
    ("url", "name", "value", "expected"),
    [
        ("http://api/x", "a", "", "http://api/x?a="),
        ("http://api/x?a=1&b=2&a=3", "a", "4", "http://api/x?b=2&a=4"),
        ("http://api/x?%61=1", "a", None, "http://api/x"),
        ("http://api/x?a%20b=1&c=%2F", "a b", None, "http://api/x?c=%2F"),
    ],
)
def test_a_parameter_is_there_once(url: str, name: str, value: str | None, expected: str) -> None:
    assert with_param(url, name, value) == expected


def test_in_a_json_body_values_are_escaped() -> None:
    body = '{"since": "{{range.from}}", "shop": "{{unit.shop}}", "n": {{unit.n}}, "of": {"any": {{unit.any}}}}'
    source = RestSource(url="http://api/x", method="POST", body=body, time_format="epoch-millis")
    request = first_request(source, "UTC", row_of(HOUR, 2 * HOUR, shop='a"b\\\nü', n=7, any=None))
    assert request.body is not None
    assert json.loads(request.body) == {"since": "3600000", "shop": 'a"b\\\nü', "n": 7, "of": {"any": None}}
    assert dict(request.headers)["Content-Type"] == "application/json"


@pytest.mark.parametrize("value", ["eu", "null", "7", "true", "[1, 2]", "{}", "1e5", ""])
@pytest.mark.parametrize("body", ['{"shop": {{unit.shop}}}', "[{{unit.shop}}]", '{"shops": ["eu", {{unit.shop}}]}'])
def test_a_text_outside_the_quotes_of_a_json_body_is_refused(body: str, value: str) -> None:
    source = RestSource(url="http://api/x", method="POST", body=body)
    with pytest.raises(RestRequestInvalid, match="quotes"):
        first_request(source, "UTC", row_of(shop=value))


@pytest.mark.parametrize(
    ("headers", "expected", "kind"),
    [
        ({"content-type": "application/x-www-form-urlencoded"}, b"shop=a%26b+c", "application/x-www-form-urlencoded"),
        ({}, b"shop=a&b c", "text/plain; charset=utf-8"),
    ],
)
def test_other_bodies_are_written_as_their_type_demands(headers: dict[str, str], expected: bytes, kind: str) -> None:
    source = RestSource(url="http://api/x", method="POST", body="shop={{unit.shop}}", headers=headers)
    request = first_request(source, "UTC", row_of(shop="a&b c"))
    assert request.body == expected
    assert {name.lower(): value for name, value in request.headers}["content-type"] == kind


def test_headers_carry_values_and_keep_what_the_source_says() -> None:
    source = RestSource(url="http://api/x", headers={"X-Shop": "{{unit.shop}}", "accept": "text/json"})
    headers = first_request(source, "UTC", row_of(shop="eu")).headers
    assert headers == (("X-Shop", "eu"), ("accept", "text/json"), ("User-Agent", "floodmark"))


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "ü"])
def test_a_header_that_no_line_can_have_is_refused(value: str) -> None:
    source = RestSource(url="http://api/x", headers={"X-Shop": "{{unit.shop}}"})
    with pytest.raises(RestRequestInvalid, match="X-Shop"):
        first_request(source, "UTC", row_of(shop=value))


@pytest.mark.parametrize("name", ["unit.shpo", "range.form", "other"])
def test_an_unknown_variable_is_refused(name: str) -> None:
    with pytest.raises(UnknownVariable, match=name) as caught:
        first_request(RestSource(url="http://api/x", params={"a": f"{{{{{name}}}}}"}), "UTC", row_of(shop="eu"))
    assert isinstance(caught.value, FloodmarkError)


@pytest.mark.parametrize(
    ("known", "other", "expected"),
    [
        ("https://api/a", "https://api/b?c", True),
        ("https://api/a", "https://API:443/b", True),
        ("http://api/a", "https://api/b", True),
        ("http://api:8080/a", "https://api/b", False),
        ("https://api/a", "http://api/b", False),
        ("https://api/a", "https://api:8443/b", False),
        ("https://api/a", "https://api.evil/b", False),
        ("https://api/a", "https://api@evil/b", False),
        ("https://api/a", "https://[evil/b", False),
        ("https://api/a", "ftp://api/b", False),
    ],
)
def test_what_is_sent_to_one_url_may_be_sent_only_to_the_same_service(known: str, other: str, expected: bool) -> None:
    assert is_same_service(known, other) is expected
