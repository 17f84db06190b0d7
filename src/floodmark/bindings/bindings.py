"""The bindings of a home: the one class that readers, sinks and the command line use."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from floodmark._util.codec import JsonValue
from floodmark._util.times import Duration
from floodmark.bindings.history import BindingHistory, SourceState
from floodmark.bindings.holds import CompactionResult, Hold, HoldStore, compact_source
from floodmark.bindings.minting import (
    Ends,
    EndsProvider,
    HistoryCache,
    Minter,
    MintRequest,
    StateProvider,
    TickResult,
    Watermarks,
    WatermarksProvider,
    own_clock,
    read_history_from,
)
from floodmark.bindings.sources import BindingSource, SourceStore, find_source
from floodmark.bindings.timestamps import Proposal, Proposals, check_clock
from floodmark.control import Home
from floodmark.errors import MintLost

if TYPE_CHECKING:
    import pyarrow as pa


def _no_failpoint(name: str) -> None:
    """Do nothing at a failpoint."""


class Bindings:
    """The timestamp of each offset of each source: durable, the same for all readers, never changed.

    >>> with Home.open(clock=lambda: 1_200_000) as home:
    ...     bindings = Bindings(home)
    ...     source = bindings.register("orders", kind="stream", identity={"stream": 7})
    ...     history = bindings.tick("orders", lambda: {0: 5, 1: 3}, {"at": 900}).history
    >>> history.ts_of(0, 4), history.cut_at(1_200_000), history.watermark_at(1_200_000), history.upper
    (1200000, {0: 5, 1: 3}, {'at': 900}, 2000000)

    Any number of processes may tick a source: one of them closes each timestamp, and the others read what it has
    bound. Histories are cached, and only new rows are read again.
    """

    __slots__ = ("_histories", "_holding", "_home", "_minting", "_own_clock", "_sources")

    def __init__(
        self,
        home: Home,
        *,
        own_clock: Callable[[], int] = own_clock,
        failpoint: Callable[[str], None] = _no_failpoint,
    ) -> None:
        """Use the bindings of `home`.

        `own_clock` is read only to detect a jump of the store's clock. `failpoint` is a test hook, called with the name
        of each failpoint that is reached.
        """
        self._home = home
        self._histories = HistoryCache()
        self._sources = SourceStore(home)
        self._own_clock = own_clock
        self._holding = HoldStore(home, own_clock, failpoint)
        self._minting = Minter(home, self._histories, own_clock, failpoint)

    def register(self, source: str, *, kind: str, identity: JsonValue, **settings: Duration | None) -> BindingSource:
        """Register a source under a stable id, or return the registered one.

        `identity` distinguishes the topic or stream from a later one of the same name, which is refused. Settings are
        `tick` (default 1 second, at least 100 milliseconds), `compaction_window` (how far back timestamps stay readable
        that no query or sink holds; default 7 days, None or "never": all) and `release_after` (how long a hold's owner
        may be silent before the hold is released; default None: forever). A source that is registered already keeps
        its settings: other ones are refused. Sources of homes from before there was a default window keep all.

        >>> with Home.open() as home:
        ...     _ = Bindings(home).register("orders", kind="kafka", identity={"topic_id": "Ab3"})
        ...     Bindings(home).register("orders", kind="kafka", identity={"topic_id": "Zz9"})
        Traceback (most recent call last):
        floodmark.errors.SourceRecreated: The source 'orders' is {'topic_id': 'Zz9'}, ... {'topic_id': 'Ab3'}. ...
        """
        return self._sources.register(source, kind, identity, settings)

    def alter(self, source: str, **settings: Duration | None) -> BindingSource:
        """Change settings of a source, for all its readers.

        >>> with Home.open() as home:
        ...     bindings = Bindings(home)
        ...     _ = bindings.register("orders", kind="kafka", identity=1)
        ...     bindings.alter("orders", compaction_window="1 day").compaction_window
        86400000000
        """
        return self._sources.alter(source, settings)

    def source(self, source: str) -> BindingSource:
        """Return one source."""
        return self._sources.get(source)

    def sources(self) -> tuple[BindingSource, ...]:
        """Return all sources, ordered by id."""
        return self._sources.all()

    def drop(self, source: str) -> None:
        """Delete a source with its bindings and holds."""
        source_id = self._sources.get(source).source_id
        self._sources.drop(source)
        self._histories.forget(source_id)

    def history(self, source: str, lower: int | None = None) -> BindingHistory:
        """Return the stored bindings of a source.

        With `lower`, return them as if compacted to `lower`, without reading older rows.
        """
        with self._home.read() as connection:
            row = find_source(connection, source)
            if lower is None or lower <= row.since:
                return self._histories.read(connection, row)
            bounds = BindingHistory(row.source, row.origin, row.since, row.upper, {}, {})
            return read_history_from(connection, row, bounds.check_valid(lower))

    def durable(self, source: str) -> int:
        """Return the lowest timestamp that is not durable yet. Sinks may write only below it."""
        return self._sources.get(source).upper

    def check_valid(self, source: str, ts: int | None = None) -> int:
        """Return a readable timestamp, by default the newest, or raise an error if `ts` cannot be read.

        >>> with Home.open(clock=lambda: 500_000) as home:
        ...     bindings = Bindings(home)
        ...     _ = bindings.register("orders", kind="stream", identity=7)
        ...     bindings.check_valid("orders", 500_000)
        Traceback (most recent call last):
        floodmark.errors.TimestampNotValid: The timestamp 500000 of 'orders' is not in [500000, 500000). ...
        """
        info = self._sources.get(source)
        bounds = BindingHistory(source, info.origin, info.since, info.upper, {}, {})
        return bounds.read_ts() if ts is None else bounds.check_valid(ts)

    def tick(
        self,
        source: str,
        ends: EndsProvider,
        watermarks: WatermarksProvider | None = None,
        *,
        state: StateProvider = None,
        identity: JsonValue | None = None,
    ) -> TickResult:
        """Close the open timestamp if a tick is due, and return the newest history; another process may have closed it.

        Args:
            source: The id of the source.
            ends: The end of each partition that may still grow, or a function that returns them; a partition left out
                keeps its last pair. A function is called after the history was read, so an end that stays below what
                is bound means that the source was truncated. Ends fetched earlier are only taken as old.
            watermarks: The watermarks that hold at these ends, or a function that computes them.
            state: The state of the source at these ends, or a function that finds it; by default it does not change.
            identity: The current identity of the source, to detect that it was recreated.

        Timestamps that are no longer held are compacted in the same transaction.
        """
        return self._minting.tick(source, ends, {} if watermarks is None else watermarks, identity, state)

    def mint(
        self,
        source: str,
        ends: Ends,
        watermarks: Watermarks | None = None,
        *,
        expected_upper: int,
        state: SourceState | None = None,
        identity: JsonValue | None = None,
    ) -> BindingHistory:
        """Close the open timestamp if it is still `expected_upper`; otherwise raise MintLost.

        `ends` must have been read after the history. After MintLost, read the history again, raise ends that are below
        it, and retry; `tick` does all of that.

        >>> with Home.open(clock=lambda: 500_000) as home:
        ...     bindings = Bindings(home)
        ...     first = bindings.register("orders", kind="stream", identity=7).upper
        ...     _ = bindings.mint("orders", {0: 5}, expected_upper=first)
        ...     bindings.mint("orders", {0: 5}, expected_upper=first)
        Traceback (most recent call last):
        floodmark.errors.MintLost: The open timestamp of 'orders' is 1000000, not the expected 500000. ...
        """
        request = MintRequest(ends, watermarks or {}, expected_upper, identity, state=state)
        return self._minting.mint(source, request)

    def flush(self, source: str, proposals: Proposals) -> int:
        """Store the closed proposals, and return `durable`.

        If another process was first, or an earlier attempt was stored but its answer was lost, the stored bindings win,
        and what they do not bind is proposed again.
        """

        def persist(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
            request = MintRequest(
                proposal.ends, proposal.watermarks, stored.upper, ts=proposal.ts, upper=proposal.upper
            )
            return self._minting.mint(source, request)

        try:
            return proposals.flush(persist)
        except MintLost:
            proposals.adopt(self.history(source))
            return proposals.durable

    def hold(self, source: str, holder: str, ts: int, kind: str = "query") -> Hold:
        """Keep timestamps from `ts` on readable. An existing hold of this holder is moved to `ts`, also backwards.

        At `ts` itself, what was bound there is no longer distinct from what was bound before. A query that resumes from
        a cut inside `ts` holds `ts`. A sink that has written everything below F holds F - 1.
        """
        return self._holding.hold(source, holder, ts, kind)

    def advance_hold(self, source: str, holder: str, ts: int) -> Hold:
        """Move a hold forward, and renew its heartbeat; a hold never moves back.

        >>> with Home.open(clock=lambda: 500_000) as home:
        ...     bindings = Bindings(home)
        ...     _ = bindings.register("orders", kind="stream", identity=7)
        ...     bindings.advance_hold("orders", "out", 500_000)
        Traceback (most recent call last):
        floodmark.errors.UnknownHold: 'out' has no hold on 'orders'. ... [unknown-hold]
        """
        return self._holding.advance(source, holder, ts)

    def release(self, source: str, holder: str) -> bool:
        """Release a hold; return whether there was one."""
        return self._holding.release(source, holder)

    def release_older_than(self, age: Duration, source: str | None = None) -> tuple[Hold, ...]:
        """Release holds whose owners were silent for `age` or longer, on one source or on all; return them.

        Refused with `ClockJumped` if the store's clock may have jumped forward, which would make all owners silent.
        """
        return self._holding.release_older_than(age, source)

    def holds(self, source: str | None = None) -> tuple[Hold, ...]:
        """Return the holds on a source, or on all, the lowest first."""
        return self._holding.list(source)

    def warnings(self, source: str | None = None) -> tuple[str, ...]:
        """Return a sentence about each stalled hold."""
        return tuple(hold.warning for hold in self.holds(source) if hold.warning is not None)

    def compact(self, source: str) -> CompactionResult:
        """Compact timestamps that are not held and are older than the window; `tick` also does so.

        Refused with `ClockJumped`, as `tick` is, if the store's clock may have jumped forward.

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
            now = self._home.now(connection)
            check_clock(now, self._own_clock(), row.upper, source)
            result = compact_source(connection, row, row.upper, now)
        self._histories.keep(row.source_id, history.compact(result.since))
        return result

    def table(self, source: str) -> "pa.Table":
        """Return the bindings of a source as an Arrow table: source, partition, ts, first_offset, end_offset."""
        from floodmark.bindings.history import history_table

        return history_table(self.history(source))
