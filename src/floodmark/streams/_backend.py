"""What writers, streams and controllers of one home share."""

from collections.abc import Callable
from dataclasses import dataclass

from floodmark.control import Home
from floodmark.errors import StreamDeleted, WriterSuperseded
from floodmark.streams._catalog import Catalog, StreamInfo
from floodmark.streams._log import Author, StreamLog
from floodmark.streams._positions import Position
from floodmark.streams._registry import ANONYMOUS, Registry
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

    def say_closed(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes any more, if there is still somebody to hear it."""
        try:
            self.registry.close(stream, author, position)
        except (StreamDeleted, WriterSuperseded):
            # Nobody waits for this one any more. If events were lost by that, to flush them has failed and said so.
            return
        if not author.writer.startswith(ANONYMOUS):
            self.wake()
