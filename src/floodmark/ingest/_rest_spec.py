"""A REST service as a source: requests, pages, how fast, and who asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from floodmark.ingest._calendar import zone_of
from floodmark.ingest._frozen import Frozen
from floodmark.ingest._secrets import SECRET_NAMES, Secret, refuse_password
from floodmark.ingest._spec_checks import refused, require_above_zero, require_one_of, require_text

Paging = Literal["none", "cursor", "offset", "page", "link"]
PAGINGS: Final = ("none", "cursor", "offset", "page", "link")
AuthKind = Literal["bearer", "basic", "header", "query"]
AUTHS: Final = ("bearer", "basic", "header", "query")
TIME_FORMATS: Final = ("iso", "epoch-seconds", "epoch-millis", "epoch-micros")
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "cursor": ("param", "next"),
    "offset": ("param", "size"),
    "page": ("param",),
    "link": (),
}


@dataclass(frozen=True, slots=True)
class Pagination:
    """How one page leads to the next. A page without records is the last one in each case.

    >>> Pagination(by="offset", param="skip", size=100).first
    0
    """

    by: Paging = "none"
    param: str | None = None
    """The parameter that carries the cursor, the offset or the number of the page."""
    next: str | None = None
    """Where in an answer the next cursor is, as names with dots between them."""
    size: int | None = None
    size_param: str | None = None
    """How many records a page has, and the parameter that says so."""
    first: int | None = None
    """The first offset or page; by default 0 of offsets, and 1 of pages."""
    total: str | None = None
    """Where in an answer the number of all records is."""
    max_pages: int = 100_000

    def __post_init__(self) -> None:
        """Refuse what leads nowhere."""
        require_one_of("by", self.by, PAGINGS)
        if self.first is None:
            object.__setattr__(self, "first", 1 if self.by == "page" else 0)
        for name in _NEEDED[self.by]:
            if getattr(self, name) is None:
                raise refused(
                    name,
                    f"Pagination by {self.by} has no {name}.",
                    f"It needs {' and '.join(_NEEDED[self.by])}.",
                    f"Add {name}.",
                )
        require_above_zero("size", self.size)
        require_above_zero("max_pages", self.max_pages)


@dataclass(frozen=True, slots=True)
class Auth:
    """Who asks. The secret is referred to, and given with each request.

    >>> Auth(by="bearer", secret=Secret("env", "SHOP_TOKEN"))
    Auth(by='bearer', secret=Secret(kind='env', name='SHOP_TOKEN'), user=None, name=None)
    """

    by: AuthKind
    secret: Secret
    user: str | None = None
    """For basic: the user."""
    name: str | None = None
    """For header and query: the name of the header or parameter."""

    def __post_init__(self) -> None:
        """Refuse what lacks a part."""
        require_one_of("by", self.by, AUTHS)
        for name, users in (("user", ("basic",)), ("name", ("header", "query"))):
            if (getattr(self, name) is not None) != (self.by in users):
                raise refused(
                    name,
                    f"Authentication by {self.by} has {name} = {getattr(self, name)!r}.",
                    "basic has a user, header and query have a name, and nothing else has them.",
                    f"Add {name}." if self.by in users else f"Leave {name} out.",
                )


@dataclass(frozen=True, slots=True)
class RestSource:
    """A REST service that answers in JSON.

    >>> source = RestSource(url="https://api.example/orders", params={"since": "{{range.from}}", "to": "{{range.to}}"})
    >>> source.method, source.retries
    ('GET', 5)
    """

    kind: ClassVar[str] = "rest"
    url: str
    """It, `params`, `headers` and `body` may name {{range.from}}, {{range.to}} and {{unit.FIELD}}."""
    method: Literal["GET", "POST"] = "GET"
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    records: str | None = None
    """Where in an answer the records are, as names with dots between them; by default the answer is the list."""
    time_format: str = "iso"
    """How {{range.from}} and {{range.to}} are written: iso, epoch-seconds, -millis, -micros, or as strftime says it."""
    zone: str | None = None
    """In which zone they are written; by default that of the job."""
    pagination: Pagination = Pagination()
    auth: Auth | None = None
    rate: float | None = None
    """At most so many requests a second, over the whole run."""
    retries: int = 5
    timeout: int = 60_000_000
    """In microseconds, for one request."""
    schema: str | None = None
    """The columns, as Spark writes schemas."""

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        object.__setattr__(self, "params", Frozen(self.params))
        object.__setattr__(self, "headers", Frozen(self.headers))
        require_text("url", self.url)
        refuse_password(self.url, "url")
        if not self.url.startswith(("http://", "https://")):
            raise refused(
                "url",
                "The URL begins neither with https:// nor with http://.",
                "A REST service is asked over HTTP.",
                'Write for example "https://api.example/orders".',
            )
        require_one_of("method", self.method, ("GET", "POST"))
        if self.body is not None and self.method == "GET":
            raise refused("body", "A GET has a body.", "Only a POST has one.", 'Write method = "POST", or use params.')
        for header in self.headers:
            if header.lower() in ("authorization", "cookie", "proxy-authorization", "x-api-key"):
                raise refused(
                    "headers",
                    f"The header {header} stands in plain words.",
                    "What proves who asks is a secret, and is referred to.",
                    'Use [source.auth], for example by = "bearer" and secret = "env:NAME".',
                )
        for name in self.params:
            if name.lower() in SECRET_NAMES:
                raise refused(
                    "params",
                    f"The parameter {name} stands in plain words.",
                    "What proves who asks is a secret, and is referred to.",
                    f'Use [source.auth] with by = "query", name = "{name}" and secret = "env:NAME".',
                )
        if self.time_format not in TIME_FORMATS and "%" not in self.time_format:
            require_one_of("time_format", self.time_format, TIME_FORMATS)
        if self.zone is not None:
            zone_of(self.zone)
        require_above_zero("rate", self.rate)
        require_above_zero("timeout", self.timeout)
        if self.retries < 0:
            raise refused("retries", f"retries is {self.retries}.", "It is 0 or more.", "Give 0 for none.")
