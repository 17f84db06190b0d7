"""A scanner for secrets: in answers, logs, outputs, errors, plans and files, however they are quoted or encoded."""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

TOKEN = re.compile(rb"fmk_[0-9a-f]{12}_[0-9a-f]{64}")
"""The text of a token of the service: it is a secret also if the scanner was not told about it."""

_SHORTEST = 8


class SecretScanner:
    """Looks for secrets in everything it is shown, and fails with the place, not the secret."""

    def __init__(self, *secrets: str) -> None:
        self._forms: dict[bytes, int] = {}
        self._count = 0
        self.checked: list[str] = []
        """What was looked at; a test that claims something of it names it."""
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> str:
        """Look for this secret too, and return it."""
        assert len(secret) >= _SHORTEST, "a short secret is also found where it is not"
        self._count += 1
        for form in _forms(secret):
            self._forms.setdefault(form, self._count)
        return secret

    def add_token(self, text: str) -> str:
        """Look for a token of the service, and for its secret alone."""
        self.add(text.rpartition("_")[2])
        return text

    def check(self, where: str, *contents: Any) -> None:
        """Fail if a secret is in a text, bytes, an error with its cause, or the text of any other value."""
        self.checked.append(where)
        for content in contents:
            for data in _bytes_of(content):
                for form, number in self._forms.items():
                    if form in data:
                        raise AssertionError(f"{where} shows the secret number {number}: {_around(data, form)}")
                if (match := TOKEN.search(data)) is not None:
                    raise AssertionError(f"{where} shows a token: {_around(data, match[0])}")

    def check_files(self, directory: Path) -> None:
        """Fail if a secret is in the name or the content of a file below a directory."""
        files = [path for path in directory.rglob("*") if path.is_file()]
        assert files, f"there are no files in {directory}"
        for path in files:
            self.check(f"the file {path.name}", str(path.relative_to(directory)), path.read_bytes())


def _forms(secret: str) -> Iterator[bytes]:
    """Return a secret as programs write it: plain, in URLs, JSON and reprs, as UTF-16, hex and base64."""
    texts = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
    texts |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], secret.encode().hex()}
    yield from (text.encode() for text in texts)
    yield secret.encode("utf-16-le")
    for shift in range(3):
        # Inside of longer data: without the characters that also depend on what is before and behind.
        encoded = base64.b64encode(b"\0" * shift + secret.encode()).rstrip(b"=")
        core = encoded[(0, 2, 3)[shift] : -1]
        yield core
        yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _bytes_of(content: Any) -> Iterable[bytes]:
    if isinstance(content, bytes | bytearray | memoryview):
        return [bytes(content)]
    if isinstance(content, BaseException):
        fields = getattr(content, "fields", None)
        inner = [error for error in (content.__cause__, content.__context__) if error is not None]
        own = [f"{content} {content!r} {fields!r}".encode("utf-8", "replace")]
        return [*own, *(data for error in inner for data in _bytes_of(error))]
    text = content if isinstance(content, str) else f"{content!r} {content}"
    return [text.encode("utf-8", "replace")]


def _around(data: bytes, form: bytes) -> str:
    place = data.index(form)
    before, behind = data[max(0, place - 40) : place], data[place + len(form) :].replace(form, b"***")[:40]
    return (before + b"***" + behind).decode(errors="replace")
