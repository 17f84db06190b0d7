"""What an answer says: its records, and what leads on from it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from floodmark.errors import RestAnswerInvalid
from floodmark.extract._rest_links import next_link
from floodmark.ingest import RestSource

_SHOWN: Final = 8
_EXCERPT: Final = 80
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Answer:
    """One page."""

    records: list[dict[str, Any]]
    cursor: str | None = None
    total: int | None = None
    link: str | None = None


def read_records(body: bytes, source: RestSource, url: str, *, exact: bool = False) -> list[dict[str, Any]]:
    """Return only the records of a body that was read before; `exact` keeps all digits of fractions."""
    return _records(_parsed(body, url, Decimal if exact else None), source, url)


def read_answer(body: bytes, link: str | None, source: RestSource, url: str) -> Answer:
    """Return what a body and its Link header say, or refuse it with what it has instead.

    >>> source = RestSource(url="http://api", records="data.items")
    >>> read_answer(b'{"data": {"items": [{"id": 1}]}}', None, source, "http://api").records
    [{'id': 1}]
    >>> read_answer(b'{"data": {"rows": []}}', None, source, "http://api")
    Traceback (most recent call last):
    floodmark.errors.RestAnswerInvalid: The answer of http://api has no 'data.items': ... has rows. ...
    """
    answer = _parsed(body, url, None)
    records = _records(answer, source, url)
    pages = source.pagination
    return Answer(
        records,
        cursor=_cursor(answer, pages.next, url) if pages.by == "cursor" and pages.next else None,
        total=_total(answer, pages.total, url, is_last=not records) if pages.total else None,
        link=next_link(link) if pages.by == "link" and link else None,
    )


def _parsed(body: bytes, url: str, parse_float: Callable[[str], Any] | None) -> Any:
    try:
        return json.loads(body, parse_float=parse_float)
    except (ValueError, RecursionError) as error:
        why = f"{error.msg}, at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise _invalid(
            f"The answer of {url} is no JSON: {why}. It begins with {_excerpt(body)}.",
            "A REST service answers in JSON.",
            "Look at the answer; if the service can write JSON, ask for it with headers or params.",
            url,
        ) from None


def _records(answer: Any, source: RestSource, url: str) -> list[dict[str, Any]]:
    path = source.records
    records = answer if path is None else _at(answer, path)
    if not isinstance(records, list):
        if path is None:
            fact = f"The answer of {url} is no list of records, it is {_described(answer)}."
            remedy = "Say where in the answer the records are, as records = 'NAME' or 'NAME.NAME'."
        else:
            fact = f"The answer of {url} has no {path!r}: {_where(answer, path)}."
            remedy = "Correct records; it names the list of records, with dots between the names."
            if records is not _MISSING:
                fact = f"{path!r} in the answer of {url} is no list of records, it is {_described(records)}."
        raise _invalid(fact, "Records are a list of objects.", remedy, url)
    if set(map(type, records)) - {dict}:
        at = next(n for n, record in enumerate(records) if not isinstance(record, dict))
        raise _invalid(
            f"Record {at + 1} in the answer of {url} is {_described(records[at])}.",
            "Each record is an object with names and values.",
            "Correct records, if it names another list.",
            url,
        )
    return records


def _cursor(answer: Any, path: str, url: str) -> str | None:
    found = _at(answer, path)
    if found is _MISSING or found is None or found is False or found == "":
        return None
    if isinstance(found, str | int) and not isinstance(found, bool):
        return str(found)
    raise _invalid(
        f"The cursor {path!r} in the answer of {url} is {_described(found)}.",
        "A cursor is a text or a whole number; null, an empty text or none at all ends the pages.",
        "Correct pagination.next.",
        url,
    )


def _total(answer: Any, path: str, url: str, *, is_last: bool) -> int | None:
    found = _at(answer, path)
    if isinstance(found, str) and found.isascii() and found.isdigit():
        return int(found)
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return found
    if is_last and (found is _MISSING or found is None):
        return None
    had = _where(answer, path) if found is _MISSING else f"it is {_described(found)}"
    raise _invalid(
        f"The total {path!r} in the answer of {url} is no number of records: {had}.",
        "Where pagination.total is given, each answer says how many records there are.",
        "Correct pagination.total, or leave it out: then an empty page is the last.",
        url,
    )


def _at(answer: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(answer, dict) or name not in answer:
            return _MISSING
        answer = answer[name]
    return answer


def _where(answer: Any, path: str) -> str:
    """Say how far a path leads, and what is there."""
    come = "the answer"
    for name in path.split("."):
        if not isinstance(answer, dict):
            return f"{come} is {_described(answer)}"
        if name not in answer:
            return f"{come} has {_names(answer)}"
        answer, come = answer[name], f"{name!r}"
    return f"{come} is {_described(answer)}"


def _names(table: dict[str, Any]) -> str:
    names = [name[:_EXCERPT] for name in list(table)[:_SHOWN]]
    return ", ".join(names) + (", ..." if len(table) > _SHOWN else "") if table else "nothing"


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {_names(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"the text {value[:_EXCERPT]!r}" if isinstance(value, str) else f"the number {str(value)[:_EXCERPT]}"


def _excerpt(body: bytes) -> str:
    return repr(body[:_EXCERPT].decode("utf-8", "replace")) if body else "nothing at all"


def _invalid(fact: str, rule: str, remedy: str, url: str) -> RestAnswerInvalid:
    return RestAnswerInvalid(fact, rule=rule, remedy=remedy, url=url)
