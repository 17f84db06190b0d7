"""Marks of transactional writers: a requested commit is never behind the watermark, whatever the writer does next."""

from collections.abc import Callable
from typing import Any

import pytest

from floodmark.errors import MarkRefused, StreamSealed, UnknownKey, WriterClosed
from floodmark.streams import Controller, MarkOutcome, Stream, StreamHome, TransactionalWriter, TransactionState
from floodmark.testing import ManualClock
from support.streams.reading import code_of, everything

SECOND = 1_000_000


@pytest.fixture
def stream(home: StreamHome) -> Stream:
    return home.create_stream("s", segments=2)


def requested(writer: TransactionalWriter, time: int | None = 60, key: str = "a") -> Any:
    transaction = writer.begin()
    transaction.write({"time": 55}, key=key)
    transaction.request_commit(time=time)
    return transaction


def watermark_of_another(stream: Stream, local: StreamHome, time: int) -> Any:
    """Note a time with another writer, run the controller, and return the last entry of the marks log."""
    stream.writer("another").note_time(time)
    controller = Controller(local)
    for _ in range(3):
        controller.step()
    return stream.marks()[-1] if stream.marks() else None


def assert_all_rows_before(stream: Stream, entry: Any) -> None:
    """Check that the cut of an entry has passed all events."""
    ends = {segment: chunk.end for segment in stream.tail() for chunk in stream.read(segment)}
    assert all(entry.cut[segment] >= end for segment, end in ends.items()), (entry, ends)


@pytest.mark.parametrize("leave", [TransactionalWriter.close, TransactionalWriter.mark_idle])
def test_close_and_mark_idle_finish_a_requested_commit(
    stream: Stream, local: StreamHome, leave: Callable[[TransactionalWriter], None]
) -> None:
    writer = stream.transactional_writer("w")
    transaction = requested(writer)
    leave(writer)
    assert transaction.state is TransactionState.COMMITTED
    assert stream.why().writers[0].part in ("ahead", "idle")
    assert_all_rows_before(stream, watermark_of_another(stream, local, 500))
    Controller(local).step()
    assert "w" not in stream.why().holders


def test_close_by_the_registry_alone_finishes_a_requested_commit(stream: Stream, local: StreamHome) -> None:
    """A client of an older version, or of another kind, only reports that its writer closes."""
    writer = stream.transactional_writer("w")
    transaction = requested(writer)
    local.local.registry.close(stream.info, writer._opened.author, {})
    assert transaction.state is TransactionState.COMMITTED
    assert_all_rows_before(stream, watermark_of_another(stream, local, 500))


def test_opening_a_writer_again_finishes_the_commits_of_its_earlier_instance(stream: Stream, local: StreamHome) -> None:
    requested(stream.transactional_writer("w"))
    with stream.transactional_writer("w") as again:
        again.note_time(400)
        assert_all_rows_before(stream, watermark_of_another(stream, local, 500))
    assert everything(stream) == [{"time": 55}]


def test_a_controller_finishes_commits_of_dead_writers_before_it_lets_them_time_out(
    stream: Stream, local: StreamHome, clock: ManualClock
) -> None:
    dead = stream.transactional_writer("dead")
    requested(dead, time=60)
    clock.advance(3_600 * SECOND)
    entry = watermark_of_another(stream, local, 500)
    assert entry.lower == 60
    assert_all_rows_before(stream, entry)


def test_note_time_covers_requested_commits(stream: Stream, local: StreamHome) -> None:
    with stream.transactional_writer("w") as writer:
        requested(writer, time=None)
        assert writer.note_time(100) is MarkOutcome.ACCEPTED
        assert_all_rows_before(stream, watermark_of_another(stream, local, 500))
        assert stream.marks()[-1].lower == 100
    assert code_of(lambda: writer.note_time(200)) == WriterClosed.code
    assert code_of(writer.mark_idle) == WriterClosed.code


@pytest.mark.parametrize("is_waiting", [False, True])
def test_the_mark_of_a_commit_covers_earlier_commits_without_a_mark(
    stream: Stream, local: StreamHome, is_waiting: bool
) -> None:
    with stream.transactional_writer("w") as writer:
        first = requested(writer, time=None, key="a")
        if not is_waiting:
            first.result()
        requested(writer, time=90, key="d").result()
        assert len([end for end in stream.tail().values() if end]) == 2, "the commits are in different segments"
        assert_all_rows_before(stream, watermark_of_another(stream, local, 500))


def test_the_mark_of_a_commit_covers_commits_of_an_earlier_instance(stream: Stream, local: StreamHome) -> None:
    requested(stream.transactional_writer("w"), time=None, key="a").result()
    with stream.transactional_writer("w") as writer:
        requested(writer, time=90, key="d").result()
        assert_all_rows_before(stream, watermark_of_another(stream, local, 500))


def test_a_requested_transaction_leaves_its_block_as_it_is(stream: Stream) -> None:
    with stream.transactional_writer("w") as writer:
        with writer.begin() as transaction:
            transaction.write(1)
            transaction.request_commit(time=60)
        failing = writer.begin()
        failing.request_commit(time=70)
        with pytest.raises(ZeroDivisionError), failing:
            raise ZeroDivisionError
    assert (transaction.state, failing.state) == (TransactionState.COMMITTED, TransactionState.COMMITTED)
    assert stream.why().writers[0].time == 70


def test_close_says_that_a_requested_commit_failed_and_closes(stream: Stream) -> None:
    writer = stream.transactional_writer("w")
    requested(writer)
    stream.seal()
    with pytest.raises(StreamSealed):
        writer.close()
    writer.close()
    assert [view.part for view in stream.why().writers] == ["closed"]


def test_a_commit_notes_times_of_several_keys(home: StreamHome, local: StreamHome) -> None:
    stream = home.create_stream("s", schema="a TIMESTAMP, b TIMESTAMP, c TIMESTAMP", time_columns=["a", "b", "c"])
    with stream.transactional_writer("w") as writer:
        transaction = writer.begin()
        transaction.write({"a": None, "b": None, "c": None})
        result = transaction.commit(times={"a": 7, "b": 3})
        assert result.outcomes == {"a": MarkOutcome.ACCEPTED, "b": MarkOutcome.ACCEPTED}
        assert result.outcome is MarkOutcome.ACCEPTED
        assert writer.note_time(5, key="c") is MarkOutcome.ACCEPTED
        Controller(local).step()
        noted = {key: (entry.lower, entry.cut) for key in "abc" for entry in stream.marks(key)[-1:]}
        cut = {0: 1}
        assert noted == {"a": (7, cut), "b": (3, cut), "c": (5, cut)}
        back = writer.begin().commit(times={"a": 8, "b": 2})
        assert back.outcomes == {"a": MarkOutcome.ACCEPTED, "b": MarkOutcome.TIME_WENT_BACK}
        assert back.outcome is MarkOutcome.TIME_WENT_BACK


def test_the_times_of_a_commit_are_checked_before_it_is_requested(home: StreamHome) -> None:
    stream = home.create_stream("s")
    transaction = stream.transactional_writer("w").begin()
    transaction.write(1)
    assert code_of(lambda: transaction.commit(times={"time": 1, "x": 2})) == UnknownKey.code
    assert code_of(lambda: transaction.commit(times={"time": 1.5})) == "not-int64"  # type: ignore[dict-item]
    assert code_of(lambda: transaction.commit(5, times={"time": 5})) == "invalid-option"
    assert transaction.state is TransactionState.OPEN
    transaction.request_commit(times={"time": 1})
    transaction.request_commit(times={"time": 1})
    assert transaction.result().outcomes == {"time": MarkOutcome.ACCEPTED}


def test_idle_writers_are_not_waited_for(home: StreamHome, local: StreamHome) -> None:
    stream = home.create_stream("s")
    with stream.transactional_writer("w") as writer:
        requested(writer, time=60).result()
        writer.mark_idle()
        assert watermark_of_another(stream, local, 500).lower == 500
        requested(writer, time=700).result()
        assert stream.why().idle == ()


def test_a_refused_mark_is_warned_of_once_or_raised(home: StreamHome, caplog: pytest.LogCaptureFixture) -> None:
    stream = home.create_stream("s")
    with stream.writer("w") as writer:
        writer.note_time(100)
        for time in (90, 80):
            assert writer.note_time(time) is MarkOutcome.TIME_WENT_BACK
    assert [record.message for record in caplog.records if record.name == "floodmark.streams"] == [
        "A mark of the writer 'w' in 's' was refused: the time 90 of 'time' is below that of its last mark. "
        "The watermark ignores it. Further refusals of this writer are not logged."
    ]
    with stream.writer("w", refused_marks="raise") as strict:
        with pytest.raises(MarkRefused) as refusal:
            strict.note_time(70)
        assert refusal.value.fields == {
            "stream": "s",
            "writer": "w",
            "key": "time",
            "time": 70,
            "outcome": "time went back",
        }
        assert strict.note_time(100) is MarkOutcome.ACCEPTED
    caplog.clear()
    with stream.writer("w", refused_marks="ignore") as quiet:
        assert quiet.note_time(70) is MarkOutcome.TIME_WENT_BACK
    assert not caplog.records
    assert code_of(lambda: stream.writer("w", refused_marks="loud")) == "invalid-option"


def test_a_refused_mark_of_a_commit_is_raised_after_the_commit(home: StreamHome) -> None:
    stream = home.create_stream("s")
    with stream.transactional_writer("w", refused_marks="raise") as writer:
        requested(writer, time=100).result()
        back = requested(writer, time=90)
        with pytest.raises(MarkRefused):
            back.result()
        assert back.state is TransactionState.COMMITTED
        with pytest.raises(MarkRefused):
            writer.note_time(80)
    assert len(everything(stream)) == 2
