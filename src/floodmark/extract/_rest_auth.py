"""What proves who asks: put into each request, and out of each text."""

import json
from base64 import b64encode
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, quote_plus

from floodmark.errors import RestRequestInvalid
from floodmark.extract._rest_request import Request, with_param
from floodmark.ingest import Auth

_HEAD: Final = 6
"""So much of a secret gives it away."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A secret that was looked up. It lives as long as one reading, and is in no repr.

    >>> from floodmark.ingest import Secret
    >>> given = Credentials.of(Auth(by="bearer", secret=Secret("env", "TOKEN")), {"TOKEN": "a-b-c"})
    >>> given.signed(Request("GET", "http://api/x")).headers
    (('Authorization', 'Bearer a-b-c'),)
    >>> given, given.hidden("refused: a-b-c")
    (Credentials(of env:TOKEN), 'refused: ***')
    """

    auth: Auth | None
    value: str

    @classmethod
    def of(cls, auth: Auth | None, environment: dict[str, str] | None = None) -> "Credentials":
        """Look the secret up."""
        if auth is None:
            return cls(None, "")
        value = auth.secret.value(environment)
        if auth.by in ("bearer", "header") and not (value.isascii() and value.isprintable()):
            raise RestRequestInvalid(
                f"The secret {auth.secret} has a line break or a letter that no header can have.",
                rule="What stands in a header is one line of ASCII.",
                remedy="See whether the secret was kept with something else around it.",
                secret=str(auth.secret),
            )
        return cls(auth, value)

    def signed(self, request: Request) -> Request:
        """Return a request with the secret in its place."""
        auth = self.auth
        if auth is None:
            return request
        if auth.by == "query":
            return request.with_param(str(auth.name), self.value)
        if auth.by == "header":
            return replace(request, headers=(*request.headers, (str(auth.name), self.value)))
        proof = f"Bearer {self.value}" if auth.by == "bearer" else f"Basic {self._basic()}"
        return replace(request, headers=(*request.headers, ("Authorization", proof)))

    def unsigned(self, url: str) -> str:
        """Return a URL that a service has written, without the secret that it may have written into it."""
        if self.auth is not None and self.auth.by == "query":
            url = with_param(url, str(self.auth.name), None)
        return url

    def hidden(self, text: str) -> str:
        """Return a text without the secret, however it is written there."""
        if self.auth is None:
            return text
        plain = self.value
        forms = {plain, quote(plain), quote(plain, safe=""), quote_plus(plain)}
        forms |= {repr(plain)[1:-1], json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}
        if self.auth.by == "basic":
            forms.add(self._basic())
        for form in sorted(forms, key=len, reverse=True):
            text = _blotted(text, form)
        return text

    def _basic(self) -> str:
        assert self.auth is not None
        return b64encode(f"{self.auth.user}:{self.value}".encode()).decode()

    def __repr__(self) -> str:
        return f"Credentials(of {self.auth.secret if self.auth else 'nobody'})"


def _blotted(text: str, form: str) -> str:
    """Return a text without a secret, also where only its beginning is there because the text was cut short."""
    head = form[:_HEAD]
    parts, at = [], 0
    while (found := text.find(head, at)) >= 0:
        end = found + len(head)
        while end < len(text) and end - found < len(form) and text[end] == form[end - found]:
            end += 1
        parts += [text[at:found], "***"]
        at = end
    return "".join((*parts, text[at:]))
