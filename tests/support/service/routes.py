"""Every route of the service with a request for it, and a home in which these requests find something."""

from dataclasses import dataclass
from typing import Any

import pytest

from floodmark.control import Scope
from support.service.service_tools import JSON, Served, Told

INSTANCE = "instance-of-a-reader"
AUTHOR = {"writer": "w", "instance": 1}
MARK = {**AUTHOR, "position": {}, "key": "time", "time": 5}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
BOUND = {"kind": "bound", "version": 1, "cut": None, "time": None, "stream_id": None, "places": {}, "since": None}
BOUNDS = {"kind": "stream-bounds", "version": 1, "stream": "shop/a", "key": None, "start": BOUND, "end": BOUND,
          "waits": True}  # fmt: skip
REPORT = {"kind": "reader-report", "version": 1, "reader": "r", "instance": INSTANCE, "generation": 1, "positions": [],
          "released": [], "times": [], "places": [], "confirms": None}  # fmt: skip
REF = {"kind": "group-ref", "version": 1, "name": "g", "id": 1}
WANTED = {"kind": "wanted", "version": 1, "group": REF, "of": 1, "streams": []}


@dataclass(frozen=True)
class Route:
    """A route, the scope that it needs, and a request for it."""

    scope: Scope
    value: Any = None
    query: str = ""
    is_arrow: bool = False


ROUTES = {
    "GET /v1/streams": Route("read"),
    "POST /v1/streams": Route("admin", {"name": "shop/new"}),
    "GET /v1/stream": Route("read", query="name=shop/a"),
    "GET /v1/streams/{stream}": Route("read"),
    "PATCH /v1/streams/{stream}": Route("admin", {"unit": "s"}),
    "DELETE /v1/streams/{stream}": Route("admin"),
    "POST /v1/streams/{stream}/scale": Route("admin", {"seal": [0], "ranges": [[0.0, 0.5], [0.5, 1.0]]}),
    "POST /v1/streams/{stream}/seal": Route("admin"),
    "GET /v1/streams/{stream}/ends": Route("read"),
    "GET /v1/streams/{stream}/segments/{segment}/events": Route("read", query="start=0&end=9"),
    "POST /v1/streams/{stream}/events": Route("write", query="writer=w&instance=1&first=0", is_arrow=True),
    "POST /v1/streams/{stream}/writers": Route("write", {"writer": "new"}),
    "POST /v1/streams/{stream}/writers/idle": Route("write", {**AUTHOR, "position": {}}),
    "POST /v1/streams/{stream}/writers/close": Route("write", {**AUTHOR, "position": {}}),
    "POST /v1/streams/{stream}/marks": Route("write", MARK),
    "POST /v1/marks": Route("write", {"marks": [{"stream": "{stream}", **MARK}]}),
    "POST /v1/streams/{stream}/transactions": Route("write", AUTHOR),
    "GET /v1/streams/{stream}/transactions/{transaction}": Route("write"),
    "PUT /v1/streams/{stream}/transactions/{transaction}/parts/{part}": Route("write", is_arrow=True),
    "POST /v1/streams/{stream}/transactions/{transaction}/request": Route("write", {}),
    "POST /v1/streams/{stream}/transactions/{transaction}/finish": Route("write"),
    "POST /v1/streams/{stream}/transactions/{transaction}/abort": Route("write"),
    "GET /v1/streams/{stream}/entries": Route("read"),
    "GET /v1/streams/{stream}/entries/find": Route("read", query="by=newest"),
    "GET /v1/streams/{stream}/entries/numbers": Route("read"),
    "GET /v1/streams/{stream}/entries/{number}": Route("read"),
    "GET /v1/streams/{stream}/retention": Route("read"),
    "GET /v1/streams/{stream}/why": Route("read"),
    "GET /v1/time": Route("read"),
    "GET /v1/groups": Route("read"),
    "POST /v1/groups": Route("read", {"kind": "new-group", "version": 1, "name": "n", "id": 7, "streams": [BOUNDS]}),
    "GET /v1/group": Route("read", query="name=g"),
    "DELETE /v1/groups/{group}": Route("write", query="name=g"),
    "POST /v1/groups/{group}/join": Route("read", {"reader": "r", "instance": INSTANCE, "ttl": 10**6}, "name=g"),
    "POST /v1/groups/{group}/sync": Route("read", REPORT, "name=g"),
    "POST /v1/groups/{group}/leave": Route("read", REPORT, "name=g"),
    "POST /v1/groups/{group}/expel": Route("write", {"reader": "r", "instance_id": "i"}, "name=g"),
    "POST /v1/groups/{group}/tend": Route("read", query="name=g"),
    "POST /v1/groups/{group}/start-checkpoint": Route(
        "read", {"checkpoint": "c", "name": "c", "timeout": 10**6}, "name=g"
    ),
    "POST /v1/groups/{group}/cancel-checkpoint": Route("read", {"checkpoint": "c"}, "name=g"),
    "POST /v1/groups/{group}/reset": Route("write", {"reset": "r", "streams": [BOUNDS]}, "name=g"),
    "POST /v1/news": Route("read", {"wanted": WANTED, "seconds": 0}),
}
OPEN = ["GET /v1/health"]
FOR_NO_STREAM = ("GET /v1/streams", "GET /v1/time", "GET /v1/groups")
LOWER: dict[Scope, Scope | None] = {"read": None, "write": "read", "admin": "write"}


@dataclass
class Shop:
    """A home with a stream, a writer, a transaction and a group in it."""

    served: Served
    stream: int
    transaction: str

    def request(self, name: str) -> tuple[str, str, dict[str, str]]:
        """Return the method, the path with its query, and the headers of a request."""
        method, _, path = name.partition(" ")
        path = path.replace("{stream}", str(self.stream)).replace("{transaction}", self.transaction)
        path = path.replace("{segment}", "0").replace("{part}", "0").replace("{number}", "1")
        path = path.replace("{group}", str(self.served.home.group("g").state.group_id))
        return method, f"{path}?{ROUTES[name].query}", ARROW if ROUTES[name].is_arrow else {"Content-Type": JSON}

    def value(self, name: str) -> Any:
        """Return the JSON value of a request, None for one without."""
        if name == "POST /v1/marks":
            return {"marks": [{**MARK, "stream": self.stream}]}
        if name == "POST /v1/news":
            ref = {**REF, "id": self.served.home.group("g").state.group_id}
            return {"wanted": {**WANTED, "group": ref}, "seconds": 0}
        return ROUTES[name].value

    def ask(self, name: str, token: str | None) -> Told:
        """Send a request."""
        method, target, _ = self.request(name)
        options: dict[str, Any] = {"body": b"no arrow", "headers": ARROW} if ROUTES[name].is_arrow else {}
        return self.served.ask(method, target, self.value(name), token=token, **options)

    def contents(self) -> Any:
        """Return all that a request could have changed."""
        home = self.served.home
        with home.home.read() as connection:
            tables = ("stream", "stream_segment", "stream_writer", "stream_mark", "stream_transaction", "reader_group")
            return [connection.exec_driver_sql(f"SELECT * FROM {table}").all() for table in tables]


@pytest.fixture
def shop(served: Served) -> Shop:
    stream = served.home.create_stream("shop/a")
    stream.writer("w")
    transaction = stream.transactional_writer("t").begin()
    served.home.create_group("g", "shop/a")
    return Shop(served, stream.info.id, transaction.id)
