"""The bindings of a home: what readers, sinks and a person do with them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from floodmark._util.codec import JsonValue
from floodmark._util.times import Duration
from floodmark.bindings.history import BindingHistory
from floodmark.bindings.holds import CompactionResult, Hold, HoldStore, compact_source
from floodmark.bindings.minting import (
    Ends,
    EndsProvider,
    HistoryCache,
    Minter,
    MintRequest,
    TickResult,
    Watermarks,
    WatermarksProvider,
    own_clock,
    read_history_from,
)
from floodmark.bindings.sources import BindingSource, SourceStore, find_source
from floodmark.bindings.timestamps import Proposal, Proposals
from floodmark.control import Home
from floodmark.errors import MintLost

if TYPE_CHECKING:
    import pyarrow as pa


def _no_failpoint(place: str) -> None:
    """Do nothing at a failpoint."""


class Bindings:
    """Which timestamp each offset of each source has: durable, the same for everybody, never changed.

    >>> with Home.open(clock=lambda: 1_200_000) as home:
    ...     bindings = Bindings(home)
    ...     source = bindings.register("orders", kind="stream", identity={"stream": 7})
    ...     history = bindings.tick("orders", lambda: {0: 5, 1: 3}, {"at": 900}).history
    >>> history.ts_of(0, 4), history.cut_at(1_200_000), history.watermark_at(1_200_000), history.upper
    (1200000, {0: 5, 1: 3}, {'at': 900}, 2000000)

    Any number of processes may tick a source: each timestamp is closed by one of them, and the others take what it
    has bound. Histories are kept in memory, and only what is new is read again.
    """

    __slots__ = ("_histories", "_holding", "_home", "_minting", "_sources")

    def __init__(
        self,
        home: Home,
        *,
        own_clock: Callable[[], int] = own_clock,
        failpoint: Callable[[str], None] = _no_failpoint,
    ) -> None:
        """Keep them in this home.

        `own_clock` is asked only when the store's clock seems to have jumped. `failpoint` is called with the name of
        each place at which a test may want to stop.
        """
        self._home = home
        self._histories = HistoryCache()
        self._sources = SourceStore(home)
        self._holding = HoldStore(home, failpoint)
        self._minting = Minter(home, self._histories, own_clock, failpoint)

    def register(self, source: str, *, kind: str, identity: JsonValue, **settings: Duration | None) -> BindingSource:
        """Make a source known under an id that stays, or return the one that is known.

        `identity` tells what is read from another topic or stream that gets the same name later: such a one is refused.
        Settings are `tick` (1 second; at least 100 milliseconds), `compaction_window` (how far back can be read; None,
        the default, keeps all) and `release_after` (the age at which a hold is given up whose owner is silent; None).

        >>> with Home.open() as home:
        ...     _ = Bindings(home).register("orders", kind="kafka", identity={"topic_id": "Ab3"})
        ...     Bindings(home).register("orders", kind="kafka", identity={"topic_id": "Zz9"})
        Traceback (most recent call last):
        floodmark.errors.SourceRecreated: The source 'orders' is {'topic_id': 'Zz9'}, ... {'topic_id': 'Ab3'}. ...
        """
        return self._sources.register(source, kind, identity, settings)

    def alter(self, source: str, **settings: Duration | None) -> BindingSource:
        """Change settings of a source, for everybody who reads it.

        >>> with Home.open() as home:
        ...     bindings = Bindings(home)
        ...     _ = bindings.register("orders", kind="kafka", identity=1)
        ...     bindings.alter("orders", compaction_window="1 day").compaction_window
        86400000000
        """
        return self._sources.alter(source, settings)

    def source(self, source: str) -> BindingSource:
        """Return a source as it is now."""
        return self._sources.get(source)

    def sources(self) -> tuple[BindingSource, ...]:
        """Return all sources, by their ids."""
        return self._sources.all()

    def drop(self, source: str) -> None:
        """Forget a source, everything that was bound, and the holds on it."""
        source_id = self._sources.get(source).source_id
        self._sources.drop(source)
        self._histories.forget(source_id)

    def history(self, source: str, lower: int | None = None) -> BindingHistory:
        """Return the bindings of a source as they are stored now.

        With `lower`, as if they had been compacted to there, without reading what is older.
        """
        with self._home.read() as connection:
            row = find_source(connection, source)
            if lower is None or lower <= row.since:
                return self._histories.read(connection, row)
            bounds = BindingHistory(row.source, row.origin, row.since, row.upper, {}, {})
            return read_history_from(connection, row, bounds.check_valid(lower))

    def durable(self, source: str) -> int:
        """Return the lowest timestamp that is not durable. Sinks write below it, and nothing else."""
        return self._sources.get(source).upper

    def check_valid(self, source: str, ts: int | None = None) -> int:
        """Return a timestamp at which a source can be read, the newest if none is given, or refuse it.

        >>> with Home.open(clock=lambda: 500_000) as home:
        ...     bindings = Bindings(home)
        ...     _ = bindings.register("orders", kind="stream", identity=7)
        ...     bindings.check_valid("orders", 500_000)
        Traceback (most recent call last):
        floodmark.errors.TimestampNotValid: The timestamp 500000 of 'orders' is not in [500000, 500000). ...
        """
        known = self._sources.get(source)
        bounds = BindingHistory(source, known.origin, known.since, known.upper, {}, {})
        return bounds.read_ts() if ts is None else bounds.check_valid(ts)

    def tick(
        self,
        source: str,
        ends: EndsProvider,
        watermarks: WatermarksProvider | None = None,
        *,
        identity: JsonValue | None = None,
    ) -> TickResult:
        """Close the open timestamp if a tick is due, and return the newest history, whoever has made it.

        Everything up to `ends` is bound that is not bound yet. Name all partitions that may still grow; one that is not
        named keeps its last pair. If `ends` is a function it is called after the history was read, and an end that is
        below what is bound, also when it is asked for again, means that the source was truncated; ends that were
        fetched before can only be old. `watermarks` are those that hold at these ends. What the source is by now may be
        given as `identity`. What nobody needs any more is compacted in passing.
        """
        return self._minting.tick(source, ends, {} if watermarks is None else watermarks, identity)

    def mint(
        self,
        source: str,
        ends: Ends,
        watermarks: Watermarks | None = None,
        *,
        expected_upper: int,
        identity: JsonValue | None = None,
    ) -> BindingHistory:
        """Close the open timestamp, if it still is `expected_upper`, or raise `MintLost`.

        `ends` were seen after the history was read. Whoever has lost reads again, and takes what is bound where it has
        seen less; `tick` does all of that.

        >>> with Home.open(clock=lambda: 500_000) as home:
        ...     bindings = Bindings(home)
        ...     first = bindings.register("orders", kind="stream", identity=7).upper
        ...     _ = bindings.mint("orders", {0: 5}, expected_upper=first)
        ...     bindings.mint("orders", {0: 5}, expected_upper=first)
        Traceback (most recent call last):
        floodmark.errors.MintLost: The open timestamp of 'orders' is 1000000, and 500000 was to be closed. ...
        """
        return self._minting.mint(source, MintRequest(ends, watermarks or {}, expected_upper, identity))

    def flush(self, source: str, proposals: Proposals) -> int:
        """Store what is closed of some proposals, and return `durable`.

        If another process was first, or it was stored before and the answer was lost, what is stored is what counts;
        what it has not bound is proposed again.
        """

        def persist(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
            wanted = MintRequest(proposal.ends, proposal.watermarks, stored.upper, ts=proposal.ts, upper=proposal.upper)
            return self._minting.mint(source, wanted)

        try:
            return proposals.flush(persist)
        except MintLost:
            proposals.adopt(self.history(source))
            return proposals.durable

    def hold(self, source: str, holder: str, ts: int, kind: str = "query") -> Hold:
        """Keep timestamps from `ts` on from being given up. Whoever holds already is moved to `ts`, also back.

        At `ts` what was bound there cannot be told any more from what was bound before. A query that goes on from a cut
        inside of `ts` holds `ts`. A sink that has written all below F, and must know what that was, holds F - 1.
        """
        return self._holding.take(source, holder, ts, kind)

    def advance_hold(self, source: str, holder: str, ts: int) -> Hold:
        """Move a hold on, or say that its owner is alive; it never moves back.

        >>> with Home.open(clock=lambda: 500_000) as home:
        ...     bindings = Bindings(home)
        ...     _ = bindings.register("orders", kind="stream", identity=7)
        ...     bindings.advance_hold("orders", "out", 500_000)
        Traceback (most recent call last):
        floodmark.errors.UnknownHold: 'out' holds nothing of 'orders'. ... [unknown-hold]
        """
        return self._holding.advance(source, holder, ts)

    def release(self, source: str, holder: str) -> bool:
        """Release a hold; return whether there was one."""
        return self._holding.release(source, holder)

    def release_older_than(self, age: Duration, source: str | None = None) -> tuple[Hold, ...]:
        """Release holds whose owners were not heard for so long, on one source or on all; return them."""
        return self._holding.release_older_than(age, source)

    def holds(self, source: str | None = None) -> tuple[Hold, ...]:
        """Return the holds on a source, or on all, the lowest first: with their age, and whether they still move."""
        return self._holding.list(source)

    def warnings(self, source: str | None = None) -> tuple[str, ...]:
        """Return a sentence about each hold that has stopped moving."""
        return tuple(hold.warning for hold in self.holds(source) if hold.warning is not None)

    def compact(self, source: str) -> CompactionResult:
        """Give up timestamps that nobody holds and that are older than the window; `tick` does so by itself.

        >>> with Home.open(clock=lambda: 500_000) as home:
        ...     bindings = Bindings(home)
        ...     first = bindings.register("orders", kind="stream", identity=7, compaction_window="0 seconds").upper
        ...     _ = bindings.mint("orders", {0: 5}, expected_upper=first)
        ...     bindings.compact("orders").since
        999999
        """
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            history = self._histories.read(connection, row)
            done = compact_source(connection, row, row.upper, self._home.now(connection))
        self._histories.keep(row.source_id, history.compact(done.since))
        return done

    def table(self, source: str) -> "pa.Table":
        """Return the bindings of a source as an Arrow table: source, partition, ts, first_offset, end_offset."""
        from floodmark.bindings.history import history_table

        return history_table(self.history(source))
