"""What writers, streams and controllers of one home share."""

from collections.abc import Callable
from dataclasses import dataclass

from floodmark.control import Home
from floodmark.streams._catalog import Catalog
from floodmark.streams._log import StreamLog
from floodmark.streams._registry import Registry
from floodmark.streams._transactions import Transactions


@dataclass(frozen=True, slots=True)
class Backend:
    """The home, what is kept in it, and `wake`, which tells a controller in this process that a writer was heard."""

    home: Home
    catalog: Catalog
    log: StreamLog
    registry: Registry
    transactions: Transactions
    wake: Callable[[], None]
