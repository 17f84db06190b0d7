"""A stream as a target: rows, marks and the record of them come together, once, whoever dies where."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pytest

from floodmark.control import Home
from floodmark.errors import (
    FloodmarkError,
    SinkBindingsMissing,
    SinkFenced,
    SinkProgressMissing,
    SinkTimedOut,
    SinkTopicMissing,
    SinkTopicUnfit,
    StreamDeleted,
    StreamSealed,
)
from floodmark.sinks import BeginElsewhere, Drop, Sinks, StreamShape
from floodmark.sinks.target import (
    FAILPOINTS,
    FENCED,
    PROGRESS_FLUSHED,
    ROWS_FLUSHED,
    SCANNED_IN_PART,
    SOME_ROWS_SENT,
    STARTED,
)
from floodmark.streams import Controller, Stream, StreamHome, TransactionState, connect
from floodmark.streams.local.transactions import Transactions
from support.sinks.sink_process import BATCHES, ROWS, bind
from support.sinks.stream_process import NAME, PAID, SCHEMA, StreamJob, StreamQuery, broken_marks, ids_in

ALL = Counter(range(BATCHES * ROWS))


class Stopped(Exception):
    """A process ends here."""


def stops_at(place: str, times: int = 1) -> Callable[[str], None]:
    left = [times]

    def reached(at: str) -> None:
        if at == place:
            left[0] -= 1
            if left[0] == 0:
                raise Stopped(place)

    return reached


def once(place: str, action: Callable[[], object]) -> Callable[[str], None]:
    """Return a failpoint that does something when it comes to a place for the first time."""
    left = [action]

    def reached(at: str) -> None:
        if at == place and left:
            left.pop()()

    return reached


class Opened:
    """Opens a home again, as another process would, without a controller."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._homes: list[StreamHome] = []

    def __call__(self) -> StreamHome:
        self._homes.append(connect(self._location, controller=False))
        return self._homes[-1]

    @cached_property
    def mine(self) -> StreamHome:
        """That of the test."""
        return self()

    def close(self) -> None:
        for one in self._homes:
            one.close()


@pytest.fixture
def opened(home: Home) -> Iterator[Opened]:
    bind(home)
    opened = Opened(home.location)
    yield opened
    opened.close()


@pytest.fixture
def job(tmp_path: Any) -> StreamJob:
    return StreamJob(str(tmp_path))


@pytest.fixture
def query(opened: Opened, job: StreamJob) -> Callable[..., StreamQuery]:
    """Give what starts a query as a process of its own would."""
    return lambda **options: StreamQuery(opened(), options.pop("job", job), **options)


def out(opened: Opened, name: str = NAME) -> Stream:
    return opened.mine.stream(name)


def test_a_query_makes_its_stream_and_writes_each_row_once(query: Callable[..., StreamQuery], opened: Opened) -> None:
    done = query().start().run()
    stream = out(opened)
    assert ids_in(stream) == ALL
    assert stream.settings.keys == ("at",)
    assert len(stream.layout.current) == 2
    assert done.sink.progress is not None
    assert (done.sink.progress.total, done.sink.progress.marks["at"].time) == (40, 400)
    assert Sinks(opened.mine.home).get("K").progress == done.sink.progress


def test_the_watermark_of_the_query_goes_on_and_no_row_is_behind_it(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    controller = Controller(opened.mine)
    running = query().start()
    told = []
    for number in range(BATCHES):
        running.step(number)
        controller.step()
        told += [entry.lower for entry in out(opened).marks()[-1:]]
    assert told[-1] == 400
    assert broken_marks(out(opened)) == []


def test_an_empty_batch_moves_the_watermark_behind_rows_that_came_without_any(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    running = query().start()
    running.step(0, {})
    running.step(1, {})
    running.step(2, {"at": 300}, empty=True)
    Controller(opened.mine).step()
    (entry,) = out(opened).marks()
    assert (entry.lower, sum(entry.cut.values())) == (300, 20)
    assert broken_marks(out(opened)) == []
    # A new process knows where the rows of the old one end, too.
    again = query(job=running.job).start()
    again.step(3, {"at": 400}, empty=True)
    assert again.target.progress is not None
    assert sum(again.target.progress.position.values()) == 20


def test_a_batch_that_says_nothing_new_is_recorded_all_the_same(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    running = query().start()
    running.step(0)
    running.step(1, {"at": 100}, empty=True)
    assert isinstance(query().start().step(1).decision, Drop)
    assert ids_in(out(opened)) == Counter(range(10))


@pytest.mark.parametrize("stateful", [False, True])
def test_what_was_written_is_dropped_when_it_comes_again(
    query: Callable[..., StreamQuery], opened: Opened, job: StreamJob, stateful: bool
) -> None:
    first = StreamJob(job.home, stateful=stateful)
    query(job=first).start().run(2)
    anew = query(job=StreamJob(job.home, stateful=stateful, query_id="q2")).start()
    decisions = [type(anew.step(number).decision).__name__ for number in range(BATCHES)]
    assert decisions == ["Drop", "Drop", "Write", "Write"]
    assert ids_in(out(opened)) == ALL


@pytest.mark.parametrize(("place", "is_kept"), [(place, number % 2 == 0) for number, place in enumerate(FAILPOINTS)])
def test_whoever_is_stopped_at_any_step_is_followed_by_one_that_goes_on(
    query: Callable[..., StreamQuery],
    opened: Opened,
    job: StreamJob,
    place: str,
    is_kept: bool,
) -> None:
    # At the start nobody comes there twice.
    times = 1 if place in (FENCED, SCANNED_IN_PART, STARTED) else 2
    with pytest.raises(Stopped):
        query(reached=stops_at(place, times)).start().run()
    then = job if is_kept else StreamJob(job.home, query_id="q2")
    query(job=then).start().run()
    Controller(opened.mine).step()
    assert ids_in(out(opened)) == ALL
    assert broken_marks(out(opened)) == []
    assert out(opened).marks()[-1].lower == 400


@pytest.mark.parametrize("place", [FENCED, SCANNED_IN_PART, STARTED])
def test_what_was_decided_is_done_by_whoever_starts_next(
    query: Callable[..., StreamQuery], opened: Opened, place: str
) -> None:
    with pytest.raises(Stopped):
        query(reached=stops_at(PROGRESS_FLUSHED)).start().run()
    assert ids_in(out(opened)) == Counter()
    with pytest.raises(Stopped):
        query(reached=stops_at(place)).start()
    query().start()
    assert ids_in(out(opened)) == Counter(range(10))
    query().start().run()
    assert ids_in(out(opened)) == ALL


def test_what_was_decided_is_done_by_a_controller_too(query: Callable[..., StreamQuery], opened: Opened) -> None:
    with pytest.raises(Stopped):
        query(reached=stops_at(PROGRESS_FLUSHED)).start().run()
    controller = Controller(opened.mine)
    controller.step()
    controller.step()
    assert ids_in(out(opened)) == Counter(range(10))
    assert out(opened).marks()[-1].lower == 100


def test_a_commit_that_lost_its_marks_gets_all_of_them_from_the_next(
    query: Callable[..., StreamQuery], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = query(shape=PAID).start()
    running.step(0, {})
    advance = Transactions._advance

    def stops_before_marks(self: Transactions, stream: Any, row: Any) -> None:
        if row.state == TransactionState.COMMITTED.value:
            raise Stopped
        advance(self, stream, row)

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "_advance", stops_before_marks)
        with pytest.raises(Stopped):
            running.step(1, {"at": 200, "paid": 150})
    query(shape=PAID).start()
    Controller(opened.mine).step()
    stream = out(opened)
    assert {key: stream.marks(key)[-1].lower for key in ("at", "paid")} == {"at": 200, "paid": 150}
    assert {key: sum(stream.marks(key)[-1].cut.values()) for key in ("at", "paid")} == {"at": 20, "paid": 20}


def test_each_time_key_has_its_own_watermark(query: Callable[..., StreamQuery], opened: Opened) -> None:
    running = query(shape=PAID).start()
    running.step(0, {"at": 100})
    running.step(1, {"at": 200, "paid": 190})
    running.step(2, {"paid": 250})
    Controller(opened.mine).step()
    stream = out(opened)
    assert {key: stream.marks(key)[-1].lower for key in ("at", "paid")} == {"at": 200, "paid": 250}
    assert [broken_marks(stream, key) for key in ("at", "paid")] == [[], []]


def test_times_are_told_in_the_unit_of_the_stream(query: Callable[..., StreamQuery], opened: Opened) -> None:
    opened.mine.create_stream(NAME, SCHEMA, time_columns={"at": "at"}, unit="ns")
    query().start().step(0)
    Controller(opened.mine).step()
    assert out(opened).marks()[-1].lower == 100_000


@pytest.mark.parametrize("place", [SOME_ROWS_SENT, ROWS_FLUSHED])
def test_whoever_comes_later_fences_the_one_before_and_nothing_of_it_is_seen(
    query: Callable[..., StreamQuery], opened: Opened, place: str
) -> None:
    later: list[StreamQuery] = []

    def takes_over(at: str) -> None:
        if at == place and not later:
            later.append(query().start())

    zombie = query(reached=takes_over).start()
    with pytest.raises(SinkFenced) as fenced:
        zombie.step(0)
    assert ids_in(out(opened)) == Counter()
    with pytest.raises(SinkFenced):
        zombie.step(0)
    with pytest.raises(SinkFenced):
        zombie.start()
    later[0].run()
    assert ids_in(out(opened)) == ALL
    assert fenced.value.fields["sink"] == "K"


def test_a_record_that_another_has_taken_is_not_changed_even_if_the_transaction_is_open(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    running = query().start()

    def also_takes(at: str) -> None:
        if at == ROWS_FLUSHED:
            # Only the record: as if the writer had not been opened again yet.
            running.target._records.take_over("K", stream.info.id, 99)

    stream = out(opened)
    running.target._failpoint = also_takes
    with pytest.raises(SinkFenced):
        running.step(0)
    Controller(opened.mine).step()
    assert ids_in(stream) == Counter()


def test_an_older_start_does_not_drive_a_newer_one_away(query: Callable[..., StreamQuery], opened: Opened) -> None:
    def takes_over(at: str) -> None:
        if at == FENCED:
            query().start()

    with pytest.raises(SinkFenced):
        query(reached=takes_over).start()


def test_whoever_starts_while_a_batch_is_decided_waits_for_it(
    query: Callable[..., StreamQuery], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, later = query().start(), query()
    starting = threading.Thread(target=later.start)
    record = running.target._records.record

    def slowly(*given: Any) -> Any:
        done = record(*given)
        starting.start()
        starting.join(0.3)
        assert starting.is_alive()
        return done

    monkeypatch.setattr(running.target._records, "record", slowly)
    running.step(0)
    starting.join(10)
    assert later.target.progress is not None
    assert later.target.progress.total == 10
    monkeypatch.undo()
    with pytest.raises(SinkFenced):
        running.step(1)
    later.step(1)
    assert ids_in(out(opened)) == Counter(range(20))


def test_who_only_records_is_fenced_too(query: Callable[..., StreamQuery], opened: Opened) -> None:
    zombie = query().start()
    zombie.step(0)
    query().start().step(1)
    with pytest.raises(SinkFenced):
        zombie.step(1, {}, empty=True)


def test_a_sealed_stream_takes_nothing_and_the_record_says_so(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    running = query().start()
    running.step(0)
    running.target._failpoint = lambda at: out(opened).seal() if at == PROGRESS_FLUSHED else None
    with pytest.raises(StreamSealed):
        running.step(1)
    assert ids_in(out(opened)) == Counter(range(10))
    record = running.target._records.find("K")
    assert record is not None
    assert record.progress is not None
    assert (record.progress.total, record.transaction) == (10, None)
    with pytest.raises(StreamSealed):
        query().start()


def test_one_that_died_before_its_stream_was_sealed_has_not_written_the_last_batch(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    with pytest.raises(Stopped):
        query(reached=stops_at(PROGRESS_FLUSHED, 2)).start().run()
    out(opened).seal()
    last = query()
    with pytest.raises(StreamSealed):
        last.start()
    record = last.target._records.find("K")
    assert record is not None
    assert record.progress is not None
    assert record.progress.total == 10


@pytest.mark.parametrize("place", [SOME_ROWS_SENT, ROWS_FLUSHED, PROGRESS_FLUSHED])
def test_a_stream_that_is_deleted_meanwhile_ends_the_query(
    query: Callable[..., StreamQuery], opened: Opened, place: str
) -> None:
    running = query().start()
    running.step(0)
    gone = out(opened)
    running.target._failpoint = once(place, gone.delete)
    with pytest.raises(StreamDeleted):
        running.step(1)
    with pytest.raises(SinkTopicMissing):
        query().start()
    with pytest.raises(FloodmarkError):
        out(opened)
    opened.mine.create_stream(NAME, SCHEMA, time_columns={"at": "at"})
    with pytest.raises(SinkTopicMissing):
        query().start()
    Sinks(opened.mine.home).drop("K")
    query().start()


def test_a_stream_that_was_deleted_before_anything_was_written_is_made_anew(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    query().start()
    out(opened).delete()
    query().start().run()
    assert ids_in(out(opened)) == ALL


def test_two_sinks_share_a_stream(query: Callable[..., StreamQuery], opened: Opened, job: StreamJob) -> None:
    one, other = query().start(), query(job=StreamJob(job.home, sink="L")).start()
    for number in range(BATCHES):
        one.step(number)
        if number < 2:
            other.step(number)
    Controller(opened.mine).step()
    stream = out(opened)
    assert ids_in(stream) == ALL + Counter(range(20))
    # The slower one holds the watermark.
    assert stream.marks()[-1].lower == 200
    assert broken_marks(stream) == []


def test_a_stream_that_others_write_to_is_joined_only_if_the_query_says_so(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    stream = opened.mine.create_stream(NAME, SCHEMA, time_columns={"at": "at"})
    with stream.writer("other") as writer:
        writer.write({"id": 99, "at": None, "paid": None})
    stream.split(0)
    with pytest.raises(SinkProgressMissing, match=f"The stream '{NAME}' has records"):
        query().start()
    query(append=True).start().run()
    assert ids_in(stream) == ALL + Counter([99])


def test_a_sink_under_another_name_is_refused_where_it_has_written(
    query: Callable[..., StreamQuery], opened: Opened, job: StreamJob
) -> None:
    query().start().run()
    with pytest.raises(SinkProgressMissing):
        query(job=replace(job, sink="renamed")).start()
    assert ids_in(out(opened)) == ALL


def test_rows_of_a_sink_that_was_dropped_are_not_written_twice(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    query().start().run(2)
    Sinks(opened.mine.home).drop("K")
    with pytest.raises(SinkProgressMissing):
        query().start()
    query(append=True).start().step(0)
    assert ids_in(out(opened)) == Counter(range(20)) + Counter(range(10))


def test_without_its_bindings_it_begins_in_a_stream_of_its_own_if_it_may(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    query().start().run(2)
    careful, careless = query(), query(on_missing_bindings="nonce")
    with opened.mine.home.write() as connection:
        connection.exec_driver_sql("DELETE FROM binding_source")
    with pytest.raises(SinkBindingsMissing):
        careful.start()
    started = careless.sink.start()
    assert isinstance(started, BeginElsewhere)
    assert ids_in(out(opened, started.topic)) == Counter()
    assert ids_in(out(opened)) == Counter(range(20))


def test_a_transaction_that_takes_too_long_is_tried_twice(
    query: Callable[..., StreamQuery], opened: Opened, job: StreamJob
) -> None:
    slow = query(
        job=StreamJob(job.home, timeout=0.05), reached=lambda at: time.sleep(0.1) if at == ROWS_FLUSHED else None
    ).start()
    for again in (True, False):
        with pytest.raises(SinkTimedOut) as late:
            slow.step(0)
        assert late.value.fields["again"] is again
        if again:
            slow.start()
    with pytest.raises(SinkTimedOut):
        slow.start()
    assert ids_in(out(opened)) == Counter()
    query().start().run()
    assert ids_in(out(opened)) == ALL


def test_one_that_took_too_long_does_not_drive_away_who_came_meanwhile(
    query: Callable[..., StreamQuery], opened: Opened, job: StreamJob
) -> None:
    slow = query(job=StreamJob(job.home, timeout=0.05), reached=once(ROWS_FLUSHED, lambda: time.sleep(0.1))).start()
    with pytest.raises(SinkTimedOut):
        slow.step(0)
    other = query().start()
    with pytest.raises(SinkFenced):
        slow.start()
    other.run()
    assert ids_in(out(opened)) == ALL


@pytest.mark.parametrize(
    ("schema", "times", "says"),
    [
        (None, None, "has no schema"),
        (pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]), {"at": "at"}, "has the columns"),
        (SCHEMA.set(0, pa.field("id", pa.string())), {"at": "at"}, "has the columns"),
        (SCHEMA, {"at": "paid"}, "has the time columns"),
        (SCHEMA, {"at": "at", "paid": "paid"}, "has the time columns"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused_before_anything_is_written(
    query: Callable[..., StreamQuery], opened: Opened, schema: Any, times: Any, says: str
) -> None:
    stream = opened.mine.create_stream(NAME, schema, time_columns=times)
    with pytest.raises(SinkTopicUnfit, match=says):
        query().start()
    assert sum(stream.tail().values()) == 0
    assert stream.why().writers == ()


def test_the_order_of_columns_and_what_may_be_null_is_up_to_the_stream(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    fields = [SCHEMA.field("paid"), SCHEMA.field("at"), SCHEMA.field("id").with_nullable(False)]
    stream = opened.mine.create_stream(NAME, pa.schema(fields), time_columns={"at": "at"})
    query().start().run()
    assert ids_in(stream) == ALL


def test_a_nested_schema_is_made_and_found_again(opened: Opened) -> None:
    kind = pa.struct([pa.field("start", pa.timestamp("us", "UTC"), nullable=False)])
    nested = pa.schema([("w", kind), ("l", pa.list_(kind)), ("m", pa.map_(pa.string(), kind)), SCHEMA.field("at")])
    shape = StreamShape(nested, {"at": "at"})
    made = shape.create(opened.mine, NAME)
    found = shape.find(opened(), NAME)
    assert found is not None
    assert found.info.id == made.info.id


def test_many_rows_do_not_wait_in_memory(
    query: Callable[..., StreamQuery], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.sinks.stream._FLUSH_BYTES", 1)
    parts: list[int] = []

    def count(at: str) -> None:
        if at == ROWS_FLUSHED:
            with opened.mine.home.read() as connection:
                parts.append(connection.exec_driver_sql("SELECT COUNT(*) FROM stream_transaction_batch").scalar_one())

    query(reached=count).start().step(0)
    assert parts == [2]
    assert ids_in(out(opened)) == Counter(range(10))


def test_a_scale_between_two_batches_tears_nothing(query: Callable[..., StreamQuery], opened: Opened) -> None:
    running = query().start()
    running.step(0)
    running.target._failpoint = lambda at: out(opened).split(0) if at == ROWS_FLUSHED else None
    running.step(1)
    running.target._failpoint = lambda at: None
    running.step(2, {})
    running.step(3, empty=True)
    Controller(opened.mine).step()
    assert ids_in(out(opened)) == Counter(range(30))
    assert broken_marks(out(opened)) == []
    assert out(opened).marks()[-1].lower == 400


def test_one_that_was_away_for_days_goes_on_behind_what_is_there(
    query: Callable[..., StreamQuery], opened: Opened
) -> None:
    running = query().start()
    running.step(0, {})
    with running.target._home.home.write() as connection:
        connection.exec_driver_sql("DELETE FROM stream_transaction")
    again = query().start()
    again.step(1, {"at": 200}, empty=True)
    assert again.target.progress is not None
    assert sum(again.target.progress.position.values()) == 10
