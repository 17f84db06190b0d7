"""The home of streams in this process: everything goes straight to the store."""

from collections.abc import Callable

from floodmark.control import Home
from floodmark.streams._catalog import Catalog, StreamInfo
from floodmark.streams._cycle import read
from floodmark.streams._marks_table import MarksTable
from floodmark.streams._registry import Registry
from floodmark.streams._table_log import TableLog
from floodmark.streams._transactions import Transactions
from floodmark.streams._why import WatermarkExplanation, explain_watermark
from floodmark.streams.readers._news import wait_for_news
from floodmark.streams.readers._requests import News, Wanted
from floodmark.streams.readers._store import GroupStore


class LocalBackend:
    """What is kept in a home. `on_wake` is called when a writer of this process was heard."""

    __slots__ = ("catalog", "groups", "home", "log", "on_wake", "registry", "transactions")

    def __init__(self, home: Home) -> None:
        """Keep it in this home."""
        self.home = home
        self.catalog = Catalog(home)
        self.log = TableLog(home, self.catalog)
        self.registry = Registry(home, self.catalog)
        self.transactions = Transactions(home, self.catalog, self.log, self.registry)
        self.groups = GroupStore(home, self.catalog, self.log)
        self.on_wake: Callable[[], None] = lambda: None

    def news(self, wanted: Wanted, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""
        return wait_for_news(self.home, wanted, seconds)

    def marks(self, stream: StreamInfo, key: str) -> MarksTable:
        """Return the marks log of a stream and key."""
        return MarksTable(self.home, stream.id, key)

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key stands where it stands."""
        (known,) = read(self.home, self.catalog, [(stream.id, key)])
        rules, layout = stream.settings.rules, known.stream.layout
        return explain_watermark(stream.name, key, known.records, known.last, rules, layout=layout, now=self.home.now())

    def now(self) -> int:
        """Return the time by the clock of the store."""
        return self.home.now()

    def wake(self) -> None:
        """Say that a writer was heard."""
        self.on_wake()

    def close(self) -> None:
        """Let go of the home."""
        self.home.close()

    def __repr__(self) -> str:
        return repr(self.home)
