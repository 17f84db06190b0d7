"""A stream as a bound source: what is bound when, and with which watermark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.bindings import Bindings, BoundStream
from floodmark.bindings.offsets import offset_at_cut
from floodmark.errors import InvalidOption, SourceRecreated
from floodmark.streams import Controller, Stream, StreamHome, Writer, connect
from floodmark.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000_000)


@pytest.fixture
def home(tmp_path: Path, clock: ManualClock, log: str) -> Iterator[StreamHome]:
    with connect(tmp_path / "home", controller=False, clock=clock.now) as home:
        yield home


@pytest.fixture
def stream(home: StreamHome) -> Stream:
    return home.create_stream("orders", "id BIGINT", segments=2, time_columns={"t": "id"}, rate_floor="0 seconds")


@pytest.fixture
def controller(home: StreamHome) -> Controller:
    return Controller(home)


@pytest.fixture
def writer(stream: Stream) -> Iterator[Writer]:
    with stream.writer("w") as writer:
        yield writer


def write(writer: Writer, count: int = 4) -> None:
    writer.write_batch([{"id": n} for n in range(count)], key=[str(n) for n in range(count)])
    writer.flush()


def note(writer: Writer, controller: Controller, time: int) -> None:
    writer.note_time(time)
    controller.step()


def test_what_a_stream_has_is_bound_with_the_watermark_there(
    home: StreamHome, stream: Stream, writer: Writer, controller: Controller, clock: ManualClock
) -> None:
    bound = BoundStream(home, "orders")
    write(writer)
    first = bound.tick()
    assert (first.ends, first.watermarks) == (stream.ends(), {})
    note(writer, controller, 50)
    assert bound.tick().watermarks == {}, "the tick is not due"
    clock.advance(1_000_000)
    second = bound.tick()
    assert (second.ends, second.watermarks) == (stream.ends(), {"t": 50})
    assert second.watermark_before(second.upper - 1) == {"t": 50}


def test_nothing_is_bound_while_nothing_is_new(home: StreamHome, writer: Writer, clock: ManualClock) -> None:
    bound = BoundStream(home, "orders")
    write(writer)
    upper = bound.tick().upper
    for _ in range(5):
        clock.advance(10_000_000)
        assert bound.tick().upper == upper


def test_a_watermark_holds_only_where_everything_before_its_cut_is_bound(
    home: StreamHome, writer: Writer, controller: Controller, clock: ManualClock
) -> None:
    bound = BoundStream(home, "orders")
    write(writer)
    before = bound.tick()
    write(writer)
    note(writer, controller, 50)
    # The mark lies behind rows that are not bound yet: it must not be known before they are.
    assert before.watermarks == {}
    assert bound.tick().watermarks == {}
    clock.advance(1_000_000)
    assert bound.tick().watermarks == {"t": 50}


def test_the_past_is_bound_along_the_marks(
    home: StreamHome, stream: Stream, writer: Writer, controller: Controller
) -> None:
    for time in (10, 20, 30):
        write(writer)
        note(writer, controller, time)
    history = BoundStream(home, "orders").tick()
    assert history.steps["t"].values.tolist() == [10, 20, 30]
    cuts = [history.cut_at(ts) for ts in history.steps["t"].ts.tolist()]
    assert cuts == [{segment: end // 3 * n for segment, end in stream.ends().items()} for n in (1, 2, 3)]


def test_a_long_past_is_bound_in_few_steps(
    home: StreamHome, writer: Writer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from floodmark.bindings import bound_stream as _bound_stream

    monkeypatch.setattr(_bound_stream, "_PAST_STEPS", 4)
    for time in range(1, 10):
        note(writer, controller, time)
    history = BoundStream(home, "orders").tick()
    assert history.watermarks == {"t": 9}
    assert len(history.steps["t"].ts) <= 5


def test_segments_that_come_are_bound_and_those_that_are_gone_get_no_more_pairs(
    home: StreamHome, stream: Stream, writer: Writer, clock: ManualClock
) -> None:
    bound = BoundStream(home, "orders")
    write(writer)
    bound.tick()
    stream.split(0)
    for _ in range(3):
        write(writer, 20)
        clock.advance(1_000_000)
        history = bound.tick()
    assert history.ends == stream.ends()
    assert len(history.columns[0]) == 1
    assert len(history.columns[1]) == 4


def test_a_watermark_behind_a_scale_lets_all_before_it_be_bound(
    home: StreamHome, stream: Stream, writer: Writer, controller: Controller, clock: ManualClock
) -> None:
    bound = BoundStream(home, "orders")
    write(writer)
    stream.merge([0, 1])
    write(writer)
    note(writer, controller, 50)
    history = bound.tick()
    assert (history.ends, history.watermarks) == (stream.ends(), {"t": 50})
    assert bound.ends_at(stream.marks()[-1].cut) == stream.ends()


def test_at_once_does_not_wait_for_the_tick(home: StreamHome, stream: Stream, writer: Writer) -> None:
    bound = BoundStream(home, "orders")
    for _ in range(3):
        write(writer)
        assert bound.tick(at_once=True).ends == stream.ends()


def test_two_readers_of_a_source_share_what_is_bound(
    home: StreamHome, writer: Writer, tmp_path: Path, clock: ManualClock
) -> None:
    one = BoundStream(home, "orders")
    with connect(tmp_path / "home", controller=False, clock=clock.now) as other_home:
        other = BoundStream(other_home, "orders")
        for _ in range(4):
            write(writer)
            clock.advance(1_000_000)
            assert one.tick().pairs() == other.tick().pairs()
            write(writer)
            clock.advance(1_000_000)
            assert other.tick().pairs() == one.tick().pairs()


def test_one_stream_may_be_two_sources(home: StreamHome, writer: Writer) -> None:
    write(writer)
    BoundStream(home, "orders").tick()
    BoundStream(home, "orders", source="orders for the dashboard", tick="100 milliseconds").tick()
    sources = Bindings(home.home).sources()
    assert [(source.source, source.tick) for source in sources] == [
        ("orders", 1_000_000),
        ("orders for the dashboard", 100_000),
    ]


def test_readers_of_a_source_share_its_settings(home: StreamHome, writer: Writer) -> None:
    BoundStream(home, "orders", compaction_window=None)
    assert BoundStream(home, "orders").bindings.source("orders").compaction_window is None
    with pytest.raises(InvalidOption, match="All readers of a source share its settings"):
        BoundStream(home, "orders", compaction_window="1 day")


def test_a_stream_made_anew_is_another_source(home: StreamHome, stream: Stream) -> None:
    BoundStream(home, "orders")
    stream.delete()
    home.create_stream("orders")
    with pytest.raises(SourceRecreated):
        BoundStream(home, "orders")


def test_a_reader_that_begins_at_a_cut_has_the_watermark_there(
    home: StreamHome, stream: Stream, writer: Writer, controller: Controller, clock: ManualClock
) -> None:
    bound = BoundStream(home, "orders")
    write(writer)
    note(writer, controller, 50)
    bound.tick()
    cut = stream.tail()
    write(writer)
    clock.advance(1_000_000)
    history = bound.tick()
    offset = offset_at_cut(history, "q", bound.ends_at(cut))
    assert (offset.watermarks, offset.cut) == ({"t": 50}, cut)
    assert offset_at_cut(history, "q", {}).watermarks == {}


def test_the_state_of_the_writers_is_bound_with_the_ends(
    home: StreamHome, stream: Stream, controller: Controller, clock: ManualClock
) -> None:
    bound = BoundStream(home, "orders")
    writer = stream.writer("w")
    write(writer)
    note(writer, controller, 50)
    assert bound.tick(at_once=True).state == "active"
    writer.mark_idle()
    controller.step()
    clock.advance(1_000_000)
    idle = bound.tick()
    assert (idle.state, idle.watermarks) == ("idle", {"t": 50})
    clock.advance(1_000_000)
    assert bound.tick().upper == idle.upper, "nothing has changed"
    assert Bindings(home.home).history("orders").state == "idle", "another process reads it"
    assert Bindings(home.home).history("orders", idle.upper - 1).state == "idle"
    write(writer)
    assert bound.tick(at_once=True).state == "active", "an event revives the stream"
    note(writer, controller, 60)
    assert bound.tick(at_once=True).state == "active"
    writer.close()
    controller.step()
    assert bound.tick(at_once=True).state == "unknown"


def test_compaction_keeps_the_state(
    home: StreamHome, stream: Stream, controller: Controller, clock: ManualClock
) -> None:
    bound = BoundStream(home, "orders", compaction_window="0 seconds")
    with stream.writer("w") as writer:
        write(writer)
        note(writer, controller, 50)
        bound.tick()
        writer.mark_idle()
        controller.step()
        for _ in range(3):
            clock.advance(5_000_000)
            bound.tick()
            bound.bindings.compact("orders")
        assert bound.history().state == Bindings(home.home).history("orders").state == "idle"
        bound.bindings.drop("orders")
        assert BoundStream(home, "orders").history().state == "active"
