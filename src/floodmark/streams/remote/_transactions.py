"""The transactions of streams in a home behind a service."""

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._log import Author
from floodmark.streams._transaction_rows import TransactionState
from floodmark.streams._transactions import CommitResult, new_transaction_id
from floodmark.streams.remote._client import Client
from floodmark.streams.remote._forms import load_commit
from floodmark.streams.remote._requests import Request


class RemoteTransactions:
    """Begins and ends transactions by way of a service."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client

    def begin(self, stream: StreamInfo, author: Author, timeout: int | None = None) -> str:
        """Begin a transaction, and return its id."""
        # Made here, so that to ask again after a lost answer begins no second one.
        transaction = new_transaction_id()
        value = {
            "transaction": transaction,
            "writer": author.writer,
            "instance": author.instance,
            "timeout": timeout,
        }
        self._client.call(Request.about(stream, "POST", "transactions", value=value), dict)
        return transaction

    def state(self, stream: StreamInfo, transaction: str) -> TransactionState:
        """Return where a transaction is."""
        request = Request.about(stream, "GET", "transactions", transaction)
        return self._client.call(request, lambda value: TransactionState(value["state"]))

    def request(self, stream: StreamInfo, transaction: str, key: str | None, time: int | None) -> None:
        """Ask for a commit."""
        value = {"key": key, "time": time}
        self._client.call(Request.about(stream, "POST", "transactions", transaction, "request", value=value), dict)

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Commit a transaction for which that was asked."""
        return self._client.call(Request.about(stream, "POST", "transactions", transaction, "finish"), load_commit)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Give a transaction up."""
        self._client.call(Request.about(stream, "POST", "transactions", transaction, "abort"), dict)
