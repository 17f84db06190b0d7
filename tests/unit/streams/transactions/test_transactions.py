"""Transactions: all or nothing over segments, in their order, marked where they were committed."""

from collections.abc import Callable
from typing import Any

import pytest

from floodmark.errors import TransactionNotOpen
from floodmark.streams import Controller, MarkOutcome, StreamHome, TransactionState
from floodmark.testing import ManualClock
from support.streams.reading import code_of, everything

KEYS = [f"customer-{number}" for number in range(12)]
SECOND = 1_000_000


def filled(writer: Any, numbers: range) -> Any:
    transaction = writer.begin()
    for number in numbers:
        transaction.write(number, key=KEYS[number % 12])
    transaction.flush()
    return transaction


def test_nothing_is_seen_before_the_commit_and_all_after_it(home: StreamHome) -> None:
    stream = home.create_stream("s", segments=4)
    writer = stream.transactional_writer("w")
    transaction = filled(writer, range(20))
    assert (transaction.state, everything(stream)) == (TransactionState.OPEN, [])
    result = transaction.commit(time=100)
    assert result.outcome is MarkOutcome.ACCEPTED
    assert transaction.state is TransactionState.COMMITTED
    assert sorted(everything(stream)) == list(range(20))
    # In Kafka the end of the transaction lies behind its events.
    behind = 0 if stream.info.log is None else 1
    assert result.position == {segment: end - behind for segment, end in stream.tail().items() if end}
    assert stream.why().writers[0].time == 100


def test_what_is_aborted_is_never_seen(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.transactional_writer("w")
    transaction = filled(writer, range(5))
    transaction.abort()
    transaction.abort()
    assert transaction.state is TransactionState.ABORTED
    failing = writer.begin()
    failing.write(1)
    with pytest.raises(ZeroDivisionError), failing:
        raise ZeroDivisionError
    with writer.begin() as good:
        good.write(2)
    assert (failing.state, good.state) == (TransactionState.ABORTED, TransactionState.COMMITTED)
    assert everything(stream) == [2]


def test_what_is_not_open_has_its_own_error(home: StreamHome) -> None:
    writer = home.create_stream("s").transactional_writer("w")
    committed, aborted = filled(writer, range(2)), filled(writer, range(2))
    committed.commit()
    aborted.abort()
    asked = filled(writer, range(2))
    asked.request_commit()
    for transaction, state in ((committed, "committed"), (aborted, "aborted"), (asked, "committing")):
        transaction.write(1)
        for action in (transaction.flush, transaction.commit):
            with pytest.raises(TransactionNotOpen) as refusal:
                action()
            assert refusal.value.fields["state"] == state
    for transaction in (committed, asked):
        assert code_of(transaction.abort) == "transaction-not-open"
    assert asked.result().outcome is None


def test_without_a_time_no_mark_is_recorded_and_a_refused_mark_does_not_undo_the_commit(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.transactional_writer("w")
    assert filled(writer, range(1)).commit().outcome is None
    assert stream.why().writers[0].time is None
    assert filled(writer, range(1, 2)).commit(time=50).outcome is MarkOutcome.ACCEPTED
    assert filled(writer, range(2, 3)).commit(time=40).outcome is MarkOutcome.TIME_WENT_BACK
    assert everything(stream) == [0, 1, 2]
    assert stream.why().writers[0].time == 50


@pytest.mark.parametrize(("time", "key", "code"), [(1.5, None, "not-int64"), (1, "x", "unknown-key")])
def test_a_bad_time_is_refused_and_the_transaction_stays_open(
    home: StreamHome, time: Any, key: str | None, code: str
) -> None:
    transaction = home.create_stream("s").transactional_writer("w").begin()
    transaction.write(1)
    assert code_of(lambda: transaction.commit(time=time, key=key)) == code
    assert transaction.state is TransactionState.OPEN
    transaction.commit(time=1)


def test_commits_that_are_outstanding_come_in_the_order_in_which_they_were_asked_for(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.transactional_writer("w")
    transactions = []
    for number in range(4):
        transaction = filled(writer, range(number, number + 1))
        transaction.request_commit(time=number)
        transactions.append(transaction)
    assert everything(stream) == []
    result = transactions[2].result()
    assert (everything(stream), result.outcome) == ([0, 1, 2], MarkOutcome.ACCEPTED)
    assert [t.state.value for t in transactions] == ["committed"] * 3 + ["committing"]
    # In Kafka the end of each transaction takes an offset too.
    assert transactions[3].result().position == {0: 4 if stream.info.log is None else 7}
    assert transactions[0].result().position == {0: 1}


def test_the_mark_of_several_commits_is_the_highest_and_repeats_are_accepted(home: StreamHome) -> None:
    """Scenario s-06: one writer, commit times 1, 2, 5, 5."""
    stream = home.create_stream("s")
    writer = stream.transactional_writer("w")
    outcomes = [filled(writer, range(1)).commit(time=time).outcome for time in (1, 2, 5, 5)]
    assert outcomes == [MarkOutcome.ACCEPTED] * 4
    assert stream.why().writers[0].time == 5


def test_a_scale_between_writing_and_commit_tears_nothing(home: StreamHome) -> None:
    stream = home.create_stream("s", segments=2)
    writer = stream.transactional_writer("w")
    first, second = filled(writer, range(10)), filled(writer, range(10, 20))
    first.commit()
    stream.split(0)
    stream.merge([1, 3])
    second.commit(time=5)
    found = everything(stream)
    assert sorted(found) == list(range(20))
    for key in range(12):
        of_key = [number for number in found if number % 12 == key]
        assert of_key == sorted(of_key)


def test_a_transaction_that_takes_too_long_is_aborted(
    home: StreamHome, clock: ManualClock, new_home: Callable[[], StreamHome]
) -> None:
    stream = home.create_stream("s", transaction_timeout="30 seconds")
    writer = stream.transactional_writer("w")
    slow, short, swept = filled(writer, range(3)), writer.begin("5 seconds"), filled(writer, range(3))
    clock.advance(5 * SECOND)
    short.write(1)
    with pytest.raises(TransactionNotOpen, match="longer than its timeout"):
        short.commit()
    clock.advance(25 * SECOND)
    with pytest.raises(TransactionNotOpen):
        slow.commit(time=5)
    assert slow.state is TransactionState.ABORTED
    Controller(new_home()).step()
    assert swept.state is TransactionState.ABORTED
    assert everything(stream) == []


def test_a_writer_that_is_opened_again_ends_what_the_older_one_left(
    home: StreamHome, new_home: Callable[[], StreamHome]
) -> None:
    stream = home.create_stream("s")
    older = stream.transactional_writer("w")
    left, asked = filled(older, range(5)), filled(older, range(5, 8))
    asked.request_commit(time=9)
    newer = stream.transactional_writer("w")
    assert code_of(older.begin) == "writer-superseded"
    assert code_of(left.commit) == "transaction-not-open"
    filled(newer, range(8, 9)).commit(time=10)
    assert everything(stream) == [5, 6, 7, 8], "what was asked for comes first"
    Controller(new_home()).step()
    assert left.state is TransactionState.ABORTED
    older.close()


def test_a_controller_finishes_what_was_asked_for(home: StreamHome, new_home: Callable[[], StreamHome]) -> None:
    stream = home.create_stream("s")
    transaction = filled(stream.transactional_writer("w"), range(3))
    transaction.request_commit(time=7)
    Controller(new_home()).step()
    assert transaction.state is TransactionState.COMMITTED
    assert (everything(stream), stream.why().writers[0].time) == ([0, 1, 2], 7)
    assert transaction.result().outcome is MarkOutcome.ACCEPTED


def test_a_commit_without_its_mark_is_repaired_at_its_own_position(
    home: StreamHome, local: StreamHome, new_home: Callable[[], StreamHome]
) -> None:
    stream = home.create_stream("s")
    transaction = filled(stream.transactional_writer("w"), range(3))
    transaction.request_commit(time=7)
    local.local.log.commit(stream.info, transaction.id)
    local.local.log.commit(stream.info, transaction.id)
    with stream.writer() as other:
        other.write("behind")
    Controller(new_home()).step()
    assert transaction.result().position == {0: 3}
    (view,) = stream.why().writers
    assert view.time == 7


def test_a_commit_to_a_stream_that_was_sealed_is_given_up(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.transactional_writer("w")
    transaction = filled(writer, range(3))
    stream.seal()
    assert code_of(transaction.commit) == "stream-sealed"
    assert transaction.state is TransactionState.ABORTED
    assert code_of(writer.begin) == "stream-sealed"
    writer.close()


def test_an_unknown_transaction_and_a_closed_writer_are_refused(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.transactional_writer("w")
    left = writer.begin()
    writer.close()
    writer.close()
    assert left.state is TransactionState.ABORTED
    assert code_of(writer.begin) == "writer-closed"
    assert code_of(lambda: stream._backend.transactions.state(stream.info, "x")) == "unknown-transaction"


def test_ended_transactions_are_forgotten_after_a_day(
    home: StreamHome, clock: ManualClock, new_home: Callable[[], StreamHome]
) -> None:
    transaction = filled(home.create_stream("s").transactional_writer("w"), range(3))
    transaction.commit()
    clock.advance(25 * 3600 * SECOND)
    Controller(new_home()).step()
    assert code_of(lambda: transaction.state) == "unknown-transaction"
