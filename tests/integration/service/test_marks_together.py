"""Marks that are settled together come out as if they had come one after the other, and none touches another."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError, HomeBusy, ServiceBusy
from floodmark.service.workers import MarkQueue
from floodmark.streams import MarkOutcome, Stream, StreamHome, connect
from floodmark.streams.local.tables import KEYS, MARKS
from floodmark.streams.ports import Author, MarkRequest, OutcomeOrError
from floodmark.testing import ManualClock
from support.examples import examples
from support.service.service_tools import Served

WRITERS = ("a", "b", "c")


def contents(home: StreamHome) -> Any:
    """Return what is known of writers, and how often each key was heard, but not which key is of which stream."""
    with home.home.read() as connection:
        marks = connection.execute(MARKS.select().order_by(MARKS.c.stream_id, MARKS.c.time_key, MARKS.c.writer)).all()
        keys = connection.execute(KEYS.select().order_by(KEYS.c.stream_id, KEYS.c.time_key)).all()
    versionless = [[value for name, value in row._mapping.items() if name != "version"] for row in marks]
    return versionless, [tuple(row) for row in keys]


def code(settled: OutcomeOrError) -> str:
    return settled.code if isinstance(settled, FloodmarkError) else settled.value


SOUND = st.tuples(
    st.sampled_from(("s", "s", "t")),
    st.sampled_from(WRITERS),
    st.just(1),
    st.just("time"),
    st.integers(0, 8),
    st.dictionaries(st.sampled_from((0, 1)), st.integers(0, 6), max_size=2),
)
WRONG = st.tuples(
    st.sampled_from(("s", "gone")),
    st.sampled_from(("a", "nobody", "a\0")),
    st.sampled_from((1, 0)),
    st.sampled_from(("time", "x")),
    st.sampled_from((5, 2**63 - 1)),
    st.sampled_from(({}, {7: 1}, {0: -1})),
)
NOTE = st.one_of(SOUND, SOUND, SOUND, WRONG)


@settings(max_examples=examples(40))
@given(before=st.lists(NOTE, max_size=4), notes=st.lists(NOTE, min_size=1, max_size=12))
def test_together_or_one_by_one_makes_no_difference(before: list[Any], notes: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        first, second = Path(directory) / "one", Path(directory) / "other"
        clock = ManualClock(1_000)
        with connect(first, controller=False, clock=clock.now) as home:
            streams = {name: home.create_stream(name, segments=2) for name in ("s", "t", "gone")}
            for stream in streams.values():
                for writer in WRITERS:
                    stream.writer(writer)
            infos = {name: stream.info for name, stream in streams.items()}
            streams["gone"].delete()
            for note in before:
                home.local.registry.note_many([_note(infos, note)])
        shutil.copytree(first, second)
        clock.advance(5)
        with connect(first, controller=False, clock=clock.now) as home:
            registry = home.local.registry
            together = [code(one) for one in registry.note_many([_note(infos, note) for note in notes])]
            after_together = contents(home)
        with connect(second, controller=False, clock=clock.now) as home:
            alone = [_alone(home.local.registry.note, infos, note) for note in notes]
            assert together == alone
            assert after_together == contents(home)


def _note(infos: Any, note: Any) -> MarkRequest:
    stream, writer, instance, key, time, position = note
    return MarkRequest(infos[stream], Author(writer, instance), key, time, position)


def _alone(note: Callable[..., MarkOutcome], infos: Any, wanted: Any) -> str:
    one = _note(infos, wanted)
    try:
        return note(one.stream, one.author, one.key, one.time, one.position).value
    except FloodmarkError as error:
        return error.code


def test_many_marks_take_one_transaction_and_few_statements(served: Served) -> None:
    from sqlalchemy import event

    stream = served.home.create_stream("s")
    writers = [stream.writer(f"w{number}") for number in range(50)]
    notes = [MarkRequest(stream.info, writer._opened.author, "time", 5, {}) for writer in writers]
    served.home.local.registry.note_many(notes)
    said: list[str] = []
    engine = served.home.home._store.writer
    event.listen(engine, "before_cursor_execute", lambda *args: said.append(args[2]))
    assert served.home.local.registry.note_many(notes) == [MarkOutcome.ACCEPTED] * 50
    assert len(said) <= 10
    assert sum(one.startswith("UPDATE stream_mark") for one in said) == 1


class Fake:
    """A registry that fails as it is told."""

    def __init__(self, fails: Callable[[Sequence[Any]], BaseException | None]) -> None:
        self.fails = fails
        self.calls: list[list[Any]] = []

    def note_many(self, notes: Sequence[Any]) -> list[OutcomeOrError]:
        self.calls.append(list(notes))
        error = self.fails(notes)
        if error is not None:
            raise error
        return [MarkOutcome.ACCEPTED] * len(notes)


def busy() -> HomeBusy:
    return HomeBusy("Busy.", rule="So.", remedy="Again.")


def asked(registry: Any, notes: list[Any], most: int = 100) -> list[Any]:
    """Ask for all marks at once, while the first one is still being stored, and return what came of each."""
    held = threading.Event()
    inner = registry.note_many

    def slow(notes: Sequence[Any]) -> list[OutcomeOrError]:
        held.wait(5)
        result: list[OutcomeOrError] = inner(notes)
        return result

    registry.note_many = slow
    queue = MarkQueue(registry, lambda: None, most)

    async def run() -> list[Any]:
        tasks = [asyncio.ensure_future(queue.note([notes[0]]))]
        await asyncio.sleep(0.1)
        tasks += [asyncio.ensure_future(queue.note([note])) for note in notes[1:]]
        await asyncio.sleep(0.1)
        held.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    try:
        return asyncio.run(run())
    finally:
        queue.close()


def test_what_comes_while_marks_are_stored_is_stored_together() -> None:
    registry = Fake(lambda notes: None)
    assert asked(registry, list(range(20))) == [[MarkOutcome.ACCEPTED]] * 20
    assert [len(call) for call in registry.calls] == [1, 19]


def test_what_fails_for_one_does_not_fail_for_the_others() -> None:
    registry = Fake(lambda notes: ZeroDivisionError() if 7 in notes else None)
    results = asked(registry, list(range(10)))
    assert [code(result[0]) for result in results] == ["accepted"] * 7 + ["service-failed"] + ["accepted"] * 2


def test_when_the_store_is_busy_everybody_is_told_so() -> None:
    results = asked(Fake(lambda notes: busy()), list(range(4)))
    assert [code(result[0]) for result in results] == ["home-busy"] * 4


def test_when_too_many_wait_those_that_come_are_refused() -> None:
    results = asked(Fake(lambda notes: None), list(range(10)), most=3)
    assert [type(result).__name__ for result in results].count(ServiceBusy.__name__) >= 6
    assert [MarkOutcome.ACCEPTED] in results


def test_who_goes_away_does_not_disturb_the_others(served: Served) -> None:
    registry = Fake(lambda notes: None)
    queue = MarkQueue(registry, lambda: None, 100)

    async def run() -> list[OutcomeOrError]:
        gone = asyncio.ensure_future(queue.note(["gone"]))  # type: ignore[list-item]
        other = asyncio.ensure_future(queue.note(["other"]))  # type: ignore[list-item]
        await asyncio.sleep(0)
        gone.cancel()
        return await other

    assert asyncio.run(run()) == [MarkOutcome.ACCEPTED]
    queue.close()


def test_marks_of_many_threads_are_all_taken(served: Served) -> None:
    stream = served.connect().create_stream("s")
    writers = [stream.writer(f"w{number}") for number in range(12)]
    failures: list[BaseException] = []

    def note(writer: Any) -> None:
        try:
            for time in range(1, 16):
                assert writer.note_time(time) is MarkOutcome.ACCEPTED
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=note, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {view.time for view in stream.why().writers} == {15}


@pytest.mark.parametrize("size", [1, 3])
def test_marks_sent_together_have_outcomes_of_their_own(served: Served, size: int) -> None:
    remote = served.connect()
    stream: Stream = remote.create_stream("s")
    writer = stream.writer("w")
    author, info = writer._opened.author, stream.info
    notes = [
        MarkRequest(info, author, "time", 5, {}),
        MarkRequest(info, author, "time", 4, {}),
        MarkRequest(info, author, "x", 5, {}),
    ][:size]
    registry: Any = remote._backend.registry
    settled = registry.note_many(notes)
    assert [code(one) for one in settled] == ["accepted", "time went back", "unknown-key"][:size]
