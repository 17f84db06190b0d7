"""Random histories of proposals against a small model: readers, ticks, failing stores, restarts, a second process."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from floodmark.bindings import BindingHistory
from floodmark.bindings.timestamps import Proposal, Proposals
from floodmark.errors import HomeUnusable, MintLost
from support.examples import examples

TICK = 10
PARTITIONS = st.integers(0, 2)
WHO = st.integers(0, 1)


class Full(HomeUnusable):
    """What could not be stored, or whose answer was lost."""


def full() -> Full:
    return Full("The disk is full.", rule="It must not be.", remedy="Make room.")


class ProposalHistories(RuleBasedStateMachine):
    """One or two processes with proposals, over a store that compares and appends."""

    @initialize(processes=st.integers(1, 2), clock_goes_back=st.booleans())
    def start(self, processes: int, clock_goes_back: bool) -> None:
        self.now = 105
        self.stored = BindingHistory.start(self.now)
        self.clock_goes_back = clock_goes_back
        self.readers = [Proposals(self.stored) for _ in range(processes)]
        self.position: list[dict[int, int]] = [{} for _ in self.readers]
        self.log = {0: 0}
        self.bound: dict[tuple[int, int], int] = {}
        self.told: dict[tuple[int, int], int] = {}
        self.watermarks: dict[int, int] = {}

    def reader(self, who: int) -> tuple[Proposals, dict[int, int]]:
        which = who % len(self.readers)
        return self.readers[which], self.position[which]

    @rule(partition=PARTITIONS, records=st.integers(0, 4))
    def write(self, partition: int, records: int) -> None:
        self.log[partition] = self.log.get(partition, 0) + records

    @rule(who=WHO, partition=PARTITIONS, records=st.integers(1, 5), at_once=st.booleans())
    def read(self, who: int, partition: int, records: int, at_once: bool) -> None:
        proposals, position = self.reader(who)
        first = position.get(partition, 0)
        last = min(first + records, self.log.get(partition, 0))
        frontier = proposals.frontier(position | {partition: first})
        offsets = list(range(first, last))
        found = (
            proposals.bindings(partition, offsets).tolist()
            if at_once
            else [proposals.binding(partition, o) for o in offsets]
        )
        for offset, ts in zip(offsets, found, strict=True):
            assert frontier <= ts <= proposals.current_ts, "B11"
            key = (partition, offset)
            if key in self.bound and ts < proposals.durable:
                assert ts == max(self.bound[key], proposals.stored.since)
            self.told[key] = max(ts, self.told.get(key, ts))
        position[partition] = last

    @rule(who=WHO, by=st.integers(0, 25))
    def tick(self, who: int, by: int) -> None:
        self.now += by
        proposals, _ = self.reader(who)
        before = proposals.current_ts
        if proposals.tick(self.now, TICK):
            assert proposals.current_ts > before
            assert set(proposals.closed.columns) == set(proposals.ends), "B6"

    @precondition(lambda self: self.clock_goes_back)
    @rule(by=st.integers(1, 60))
    def set_the_clock_back(self, by: int) -> None:
        self.now -= by

    @rule(who=WHO, time=st.integers(0, 30))
    def note(self, who: int, time: int) -> None:
        self.reader(who)[0].note_watermarks({"at": time})

    @rule(who=WHO, outcome=st.sampled_from(["stored", "stored", "failed", "answer lost"]))
    def flush(self, who: int, outcome: str) -> None:
        proposals, _ = self.reader(who)
        durable = proposals.durable

        def persist(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
            if outcome == "failed":
                raise full()
            if self.stored.upper != stored.upper:
                raise MintLost("Lost.", rule="Be first.", remedy="Read again.")
            self.store(proposal)
            if outcome == "answer lost":
                raise full()
            return self.stored

        try:
            proposals.flush(persist)
        except MintLost:
            proposals.adopt(self.stored)
        except Full:
            assert outcome == "answer lost" or proposals.durable == durable, "D4"
        assert proposals.durable >= durable, "D3"

    def store(self, proposal: Proposal) -> None:
        bound = self.stored.ends
        self.stored = self.stored.append(
            proposal.ts, proposal.ends, upper=proposal.upper, watermarks=proposal.watermarks
        )
        for partition, end in proposal.ends.items():
            for offset in range(bound.get(partition, 0), end):
                assert (partition, offset) not in self.bound, "B15: each once"
                self.bound[partition, offset] = proposal.ts
                if len(self.readers) == 1 and not self.clock_goes_back:
                    assert self.told.get((partition, offset), 0) <= proposal.ts, "D6"
        self.watermarks[proposal.ts] = max([*self.watermarks.values(), *proposal.watermarks.values()], default=-1)

    @precondition(lambda self: self.stored.upper - self.stored.since > 1)
    @rule(data=st.data())
    def compact(self, data: Any) -> None:
        self.stored = self.stored.compact(data.draw(st.integers(self.stored.since, self.stored.upper - 1)))

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        which = who % len(self.readers)
        self.readers[which] = Proposals.resume(self.stored, self.now, TICK)
        self.position[which] = {}

    @invariant()
    def what_is_bound_stays_bound(self) -> None:
        stored = self.stored
        for (partition, offset), ts in self.bound.items():
            assert stored.ts_of(partition, offset) == max(ts, stored.since), "D6, C1, C2"
        for partition, end in stored.ends.items():
            assert all((partition, offset) in self.bound for offset in range(end)), "B15"

    @invariant()
    def time_at_what_is_bound_never_falls(self) -> None:
        for ts in range(self.stored.since, self.stored.upper, 7):
            expected = max((time for at, time in self.watermarks.items() if at <= ts), default=-1)
            assert self.stored.watermark_at(ts).get("at", -1) == expected


TestProposalHistories = ProposalHistories.TestCase
TestProposalHistories.settings = settings(max_examples=examples(300), stateful_step_count=30)
