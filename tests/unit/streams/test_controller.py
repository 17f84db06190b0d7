"""Controllers: they share the buckets, look when it is time, and cannot fork a marks log."""

import time
from collections.abc import Callable

import pytest
from sqlalchemy import update

from floodmark.control import Leases
from floodmark.control.tables import LEASES
from floodmark.errors import LeaseLost
from floodmark.streams import Controller, EntryKind, Stream, StreamHome
from floodmark.streams.definition import BUCKETS
from floodmark.streams.local.watermarks import read_inputs, store_decisions, update_watermarks
from floodmark.testing import ManualClock
from support.streams.stream_fixtures import STORES

SECOND = 1_000_000


def rounds(clock: ManualClock, *controllers: Controller, times: int = 4) -> None:
    for _ in range(times):
        for controller in controllers:
            controller.step()
        clock.advance(10_000)


def lowers(stream: Stream) -> list[int | None]:
    return [entry.lower for entry in stream.marks() if entry.kind is EntryKind.WATERMARK]


def test_controllers_share_the_buckets_evenly_as_they_come_go_and_die(
    clock: ManualClock, new_home: Callable[[], StreamHome]
) -> None:
    a, b, c = (Controller(new_home(), name=name, ttl="10 seconds") for name in "abc")
    a.step()
    assert a.buckets == frozenset(range(BUCKETS))
    rounds(clock, a, b)
    assert (len(a.buckets), len(b.buckets)) == (BUCKETS // 2, BUCKETS // 2)
    rounds(clock, a, b, c)
    sizes = sorted(len(one.buckets) for one in (a, b, c))
    assert (sum(sizes), sizes[-1] - sizes[0]) == (BUCKETS, 1)
    assert len(a.buckets | b.buckets | c.buckets) == BUCKETS
    b.stop()
    rounds(clock, a, c)
    assert a.buckets | c.buckets == frozenset(range(BUCKETS))
    for _ in range(12):  # c is dead from here on
        clock.advance(SECOND)
        a.step()
    assert len(a.buckets) == BUCKETS


def test_a_controller_that_was_paused_cannot_write_what_it_decided(
    home: StreamHome, local: StreamHome, clock: ManualClock, new_home: Callable[[], StreamHome]
) -> None:
    stream = home.create_stream("s")
    paused, other = Controller(new_home(), name="paused"), Controller(new_home(), name="other")
    writer = stream.writer("w")
    paused.step()
    writer.note_time(100)
    backend = local.local
    (known,) = read_inputs(backend.home, backend.catalog, [(stream.info.id, "time")])
    decision = known.decide(clock.now())
    stale = dict(paused._bucket_leases.leases)
    clock.advance(11 * SECOND)
    rounds(clock, other)
    with pytest.raises(LeaseLost):
        store_decisions(backend.home, [(known, decision)], stale)
    assert lowers(stream) == [100]
    writer.note_time(110)
    for _ in range(20):
        rounds(clock, paused, other)
    assert lowers(stream) == [100, 110]
    assert paused.buckets.isdisjoint(other.buckets)
    assert len(paused.buckets | other.buckets) == BUCKETS


def test_two_leaders_at_once_cannot_fork_the_log(home: StreamHome, local: StreamHome, clock: ManualClock) -> None:
    stream = home.create_stream("s")
    controller = Controller(local)
    controller.step()
    stream.writer("w").note_time(100)
    backend, leases = local.local, controller._bucket_leases.leases
    target = (stream.info.id, "time")
    decided = [
        (known, known.decide(clock.now()))
        for _ in range(2)
        for known in read_inputs(backend.home, backend.catalog, [target])
    ]
    assert [store_decisions(backend.home, [one], leases) for one in decided] == [[True], [False]]
    assert lowers(stream) == [100]


def test_a_writer_that_registers_while_the_leader_computes_is_not_passed_over(
    home: StreamHome, local: StreamHome, clock: ManualClock
) -> None:
    """S6: what is appended is conditional on the version of the writers, too."""
    stream = home.create_stream("s")
    controller = Controller(local)
    controller.step()
    stream.writer("w").note_time(100)
    backend, target = local.local, (stream.info.id, "time")
    (known,) = read_inputs(backend.home, backend.catalog, [target])
    decision = known.decide(clock.now())
    assert stream.writer("late").watermarks == {"time": None}
    assert store_decisions(backend.home, [(known, decision)], controller._bucket_leases.leases) == [False]
    rounds(clock, controller)
    assert (lowers(stream), stream.why().holders) == ([], ("late",))


@pytest.mark.parametrize("change", ["first mark", "revived", "idle", "closed"])
def test_everything_a_writer_says_that_matters_raises_the_version(
    home: StreamHome, local: StreamHome, change: str
) -> None:
    stream = home.create_stream("s")
    writer = stream.writer("w")

    def version() -> int:
        (known,) = read_inputs(local.home, local.local.catalog, [(stream.info.id, "time")])
        return known.writers_version

    if change != "first mark":
        writer.note_time(5)
    if change == "revived":
        writer.mark_idle()
    before = version()
    {
        "first mark": lambda: writer.note_time(5),
        "revived": lambda: writer.note_time(6),
        "idle": writer.mark_idle,
        "closed": writer.close,
    }[change]()
    assert version() == before + 1
    if change != "closed":
        writer.note_time(7)
        middle = version()
        writer.note_time(8)
        assert version() == middle, "a mark that only moves on leaves the decision as good as it was"


def test_a_record_that_its_writer_changed_since_stays_as_the_writer_left_it(
    home: StreamHome, local: StreamHome, clock: ManualClock
) -> None:
    stream = home.create_stream("s", writer_timeout="5 seconds")
    controller = Controller(local)
    a, slow = stream.writer("a"), stream.writer("slow")
    a.note_time(10)
    slow.note_time(10)
    rounds(clock, controller)
    clock.advance(4 * SECOND)
    a.note_time(20)
    clock.advance(2 * SECOND)
    backend, target = local.local, (stream.info.id, "time")
    (known,) = read_inputs(backend.home, backend.catalog, [target])
    decision = known.decide(clock.now())
    assert [record.writer for record in decision.changes.timed_out] == ["slow"]
    slow.note_time(10)
    assert store_decisions(backend.home, [(known, decision)], controller._bucket_leases.leases) == [True]
    (view,) = (view for view in stream.why().writers if view.writer == "slow")
    assert (view.heard_at, stream.why().timed_out) == (clock.now(), ())


def test_a_new_owner_knows_all_that_the_old_one_knew(
    home: StreamHome, clock: ManualClock, new_home: Callable[[], StreamHome]
) -> None:
    """Timeouts are in the store: the wait for a silent writer does not begin again."""
    stream = home.create_stream("s", writer_timeout="20 seconds")
    first, second = Controller(new_home(), name="a"), Controller(new_home(), name="b")
    writer = stream.writer("w")
    stream.writer("silent")
    writer.note_time(100)
    rounds(clock, first)
    clock.advance(15 * SECOND)
    rounds(clock, second)
    assert lowers(stream) == []
    clock.advance(5 * SECOND)
    rounds(clock, second)
    assert lowers(stream) == [100]


def test_a_bucket_that_comes_back_is_looked_at_anew(
    home: StreamHome, clock: ManualClock, new_home: Callable[[], StreamHome]
) -> None:
    """What a controller was waiting for in a bucket may have passed while another one had it."""
    stream = home.create_stream("s", writer_timeout="30 seconds")
    controller, other = Controller(new_home(), name="a"), Controller(new_home(), name="b")
    stream.writer("w").note_time(100)
    stream.writer("silent")
    controller.step()
    clock.advance(11 * SECOND)
    other.step()
    clock.advance(9 * SECOND)
    other.step()
    assert len(other.buckets) == BUCKETS
    clock.advance(10 * SECOND - 1)
    other.step()
    clock.advance(1)
    controller.step()
    assert (controller.buckets, lowers(stream)) == (frozenset(), [])
    other.stop()
    rounds(clock, controller)
    assert lowers(stream) == [100]


def test_the_first_watermark_waits_and_those_after_it_keep_their_distance(
    home: StreamHome, local: StreamHome, clock: ManualClock
) -> None:
    stream = home.create_stream("s", first_mark_delay="3 seconds", rate_floor="2 seconds")
    controller = Controller(local)
    writer = stream.writer("w")
    written = []
    for second in range(10):
        writer.note_time(second + 1)
        controller.step()
        controller.step()
        written.append(lowers(stream)[-1:])
        clock.advance(SECOND)
    assert written == [[], [], [], [4], [4], [6], [6], [8], [8], [10]]


def test_altered_settings_are_taken_up(home: StreamHome, local: StreamHome, clock: ManualClock) -> None:
    stream = home.create_stream("s", writer_timeout="1 hour")
    controller = Controller(local)
    writer = stream.writer("w")
    stream.writer("silent")
    clock.advance(5 * SECOND)
    writer.note_time(5)
    rounds(clock, controller)
    assert lowers(stream) == []
    stream.alter(writer_timeout="5 seconds")
    rounds(clock, controller)
    assert lowers(stream) == [5]


def test_old_entries_are_dropped_and_the_newest_never(home: StreamHome, local: StreamHome, clock: ManualClock) -> None:
    stream = home.create_stream("s", marks_retention="10 seconds", writer_timeout="1 day")
    controller = Controller(local)
    writer = stream.writer("w")
    for number in range(1, 31):
        writer.note_time(number)
        controller.step()
        clock.advance(SECOND)
    assert [entry.seq for entry in stream.marks()] == list(range(20, 31))
    assert stream.cut_at(5).where.value == "before the first entry"
    clock.advance(1000 * SECOND)
    writer.note_time(99)
    rounds(clock, controller)
    assert [entry.lower for entry in stream.marks()] == [99]
    assert stream.time_at(stream.tail()).entry == stream.marks()[-1]


def test_a_deleted_stream_is_worked_on_no_more(home: StreamHome, local: StreamHome, clock: ManualClock) -> None:
    stream = home.create_stream("s")
    controller = Controller(local)
    stream.writer("w").note_time(5)
    rounds(clock, controller)
    stream.delete()
    clock.advance(100 * SECOND)
    rounds(clock, controller)
    assert (controller._deadlines, controller._due) == ({}, set())
    again = home.create_stream("s")
    again.writer("w").note_time(3)
    rounds(clock, controller)
    assert lowers(again) == [3]


def test_nothing_is_done_twice_when_nothing_was_said(home: StreamHome, local: StreamHome, clock: ManualClock) -> None:
    stream = home.create_stream("s")
    controller = Controller(local)
    stream.writer("w").note_time(5)
    rounds(clock, controller)
    assert [controller.step() for _ in range(5)] == [[]] * 5
    assert update_watermarks(local.home, local.local.catalog, [(stream.info.id, "time")], {}) == []


def test_who_lost_its_leases_without_knowing_finds_out_and_goes_on(
    home: StreamHome, local: StreamHome, clock: ManualClock
) -> None:
    stream = home.create_stream("s")
    controller = Controller(local)
    writer = stream.writer("w")
    controller.step()
    with local.home.write() as connection:
        connection.execute(update(LEASES).values(token=LEASES.c.token + 1))
    writer.note_time(5)
    rounds(clock, controller)
    clock.advance(11 * SECOND)
    rounds(clock, controller)
    assert lowers(stream) == [5]


# -- under the real clock


@pytest.mark.parametrize("kind", STORES, indirect=True)
def test_the_first_writer_with_an_id_brings_a_controller(live: StreamHome) -> None:
    stream = live.create_stream("s")
    assert live.controller is None
    with stream.writer() as nameless:
        nameless.write(1)
    assert live.controller is None, "only a writer with an id needs one"
    with stream.writer("w"):
        assert live.controller is not None


def test_a_mark_releases_the_watermark_at_once(live: StreamHome) -> None:
    stream = live.create_stream("s")
    with stream.writer("w") as writer:
        writer.note_time(1)
        stream.await_mark(1)
        waits = []
        for number in range(2, 12):
            start = time.monotonic()
            writer.note_time(number)
            assert stream.await_mark(number).lower == number
            waits.append(time.monotonic() - start)
    assert sorted(waits)[5] < 0.25


def test_a_mark_of_another_process_is_found_by_polling(live: StreamHome, store: str) -> None:
    from floodmark.streams import connect

    stream = live.create_stream("s")
    with stream.writer("own") as own, connect(store, controller=False) as other:
        far = other.stream("s").writer("far")
        own.note_time(5)
        far.note_time(3)
        assert stream.await_mark(3).writers == ("far", "own")
        far.close()


def test_a_timeout_needs_nobody_to_speak(live: StreamHome) -> None:
    stream = live.create_stream("s", writer_timeout="200 milliseconds")
    stream.writer("silent")
    stream.writer("w").note_time(5)
    assert stream.await_mark(5).lower == 5


def test_without_a_controller_nothing_moves_and_why_says_so(home: StreamHome) -> None:
    from floodmark.errors import StateError

    stream = home.create_stream("s")
    stream.writer("w").note_time(5)
    with pytest.raises(StateError, match="about to be written"):
        stream.await_mark(5, timeout="10 milliseconds")


@pytest.mark.parametrize("kind", STORES, indirect=True)
def test_closing_a_home_gives_up_its_buckets(location: str) -> None:
    from floodmark.streams import connect

    with connect(location) as home:
        stream = home.create_stream("s")
        with stream.writer("w") as writer:
            writer.note_time(5)
            stream.await_mark(5)
    with connect(location, controller=False) as home:
        assert Leases(home.home).held() == ()
