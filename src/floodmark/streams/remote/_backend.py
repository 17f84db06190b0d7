"""A home behind one or several services: the ports of a home, each of which asks a service."""

import os
from pathlib import Path
from typing import Final

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._why import WatermarkExplanation
from floodmark.streams.readers._requests import News, Wanted
from floodmark.streams.remote._addresses import check_token, read_addresses
from floodmark.streams.remote._catalog import RemoteCatalog
from floodmark.streams.remote._client import BUDGET_SECONDS, Client
from floodmark.streams.remote._forms import load_explanation
from floodmark.streams.remote._groups import RemoteGroups
from floodmark.streams.remote._log import RemoteLog
from floodmark.streams.remote._marks import RemoteMarks
from floodmark.streams.remote._registry import RemoteRegistry
from floodmark.streams.remote._requests import VERSION, Request
from floodmark.streams.remote._transactions import RemoteTransactions

TOKEN_VARIABLE: Final = "FLOODMARK_TOKEN"
CA_VARIABLE: Final = "FLOODMARK_CA"


class RemoteBackend:
    """What is kept in a home that only its services reach."""

    __slots__ = ("_client", "catalog", "groups", "log", "registry", "transactions")

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client
        self.catalog = RemoteCatalog(client)
        self.log = RemoteLog(client, self.catalog)
        self.registry = RemoteRegistry(client)
        self.transactions = RemoteTransactions(client)
        self.groups = RemoteGroups(client)

    def news(self, wanted: Wanted, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""
        return self.groups.news(wanted, seconds)

    def marks(self, stream: StreamInfo, key: str) -> RemoteMarks:
        """Return the marks log of a stream and key."""
        return RemoteMarks(self._client, stream, key)

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key stands where it stands."""
        return self._client.call(Request.about(stream, "GET", "why", query={"key": key}), load_explanation)

    def now(self) -> int:
        """Return the time by the clock of the store."""
        return self._client.call(Request("GET", f"{VERSION}/time"), lambda value: int(value["now"]))

    def wake(self) -> None:
        """Do nothing: the service that heard the writer has told its controller."""

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()

    def __repr__(self) -> str:
        return f"Service({str(self._client.addresses)!r})"


def open_remote(
    location: str, *, token: str | None = None, ca: str | Path | None = None, budget: float = BUDGET_SECONDS
) -> RemoteBackend:
    """Return the home behind the services at a location; nothing is asked of them yet.

    Without a token or a file with authorities, the environment may name them: FLOODMARK_TOKEN and FLOODMARK_CA.

    >>> open_remote("http://127.0.0.1:8787,127.0.0.1:8788", token="fmk_0123456789ab_secret")
    Service('http://127.0.0.1:8787,http://127.0.0.1:8788')
    """
    given = token if token is not None else os.environ.get(TOKEN_VARIABLE) or None
    authorities = ca if ca is not None else os.environ.get(CA_VARIABLE) or None
    return RemoteBackend(
        Client(
            read_addresses(location),
            token=None if given is None else check_token(given),
            ca=None if authorities is None else Path(authorities),
            budget=budget,
        )
    )
