"""Whatever is asked for may be asked for again: an answer that is lost does no harm, whichever it was."""

from collections.abc import Callable
from typing import Any

import pytest

from floodmark.errors import SegmentSealed, StreamDeleted, StreamExists
from floodmark.streams import Controller, Layout, StreamHome
from floodmark.streams.ports import Author, MarkRequest
from floodmark.streams.remote.backend import open_remote
from support.service.service_tools import LossyLine, Served
from support.streams.reading import everything, payloads

KEYS = [f"key-{number}" for number in range(9)]


def fill(writer: Any, numbers: range) -> None:
    for number in numbers:
        writer.write(number, key=KEYS[number % 9])


def write(home: StreamHome) -> Any:
    stream = home.stream("s")
    with stream.writer("w") as writer:
        fill(writer, range(20))
        writer.flush()
        fill(writer, range(20, 30))
        outcome = writer.note_time(7)
        writer.mark_idle()
        again = writer.note_time(9)
    (view,) = stream.why().writers
    return sorted(everything(stream)), outcome, again, view.part, view.time


def transact(home: StreamHome) -> Any:
    stream = home.stream("s")
    with stream.transactional_writer("t") as writer:
        with writer.begin() as kept:
            fill(kept, range(10))
        given_up = writer.begin()
        fill(given_up, range(10, 20))
        given_up.flush()
        given_up.abort()
        marked = writer.begin("5 seconds")
        fill(marked, range(20, 30))
        result = marked.commit(time=5)
        writer.begin()
        states = (kept.state, given_up.state, marked.state)
    return sorted(everything(stream)), result, states, len(home.stream("s").why().writers)


def shape(home: StreamHome) -> Any:
    stream = home.stream("s")
    stream.split(0)
    stream.merge([2, 3])
    stream.scale([1, 4], [(0.0, 0.1), (0.1, 1.0)])
    stream.alter(writer_timeout="5 seconds", time_columns={"a": "a", "b": "b"})
    stream.seal()
    return str(stream.layout), stream.settings.writer_timeout, stream.settings.keys, stream.info.is_sealed


def make(home: StreamHome) -> Any:
    made = home.create_stream("new", "id BIGINT", segments=3, unit="ms")
    home.create_stream("gone")
    home.delete_stream("gone")
    return made.info == home.stream("new").info, [stream.name for stream in home.streams()]


def read(home: StreamHome) -> Any:
    stream = home.stream("s")
    with stream.writer("w") as writer:
        fill(writer, range(30))
    found = (
        sorted(everything(stream)),
        stream.tail(),
        stream.marks(),
        stream.cut_at(5).where,
        stream.starting_at(5).where,
    )
    return *found, stream.ending_at(5).where, stream.time_at(stream.tail()).where, str(stream.why()).count("w")


def group(home: StreamHome) -> Any:
    stream = home.stream("s")
    with stream.writer("w") as writer:
        fill(writer, range(30))
    stream.seal()
    made = home.create_group("g", "s")
    found = []
    with made.reader("r") as reader:
        for batch in reader:
            found += batch.batch["payload"].to_pylist()
    checkpoint = made.checkpoint("c", timeout="5 seconds")
    made.reset(checkpoint)
    names = [one.name for one in home.groups()]
    home.delete_group("g")
    return sorted(found, key=int), checkpoint.name, names, home.groups()


ACTIONS: dict[str, Callable[[StreamHome], Any]] = {
    "write": write, "transact": transact, "shape": shape, "make": make, "read": read, "group": group,
}  # fmt: skip


@pytest.fixture
def remote(line: LossyLine) -> Any:
    with StreamHome(open_remote(line.url, budget=20)) as remote:
        yield remote


@pytest.mark.parametrize("name", ACTIONS)
def test_every_answer_may_be_lost_once(served: Served, line: LossyLine, remote: StreamHome, name: str) -> None:
    action = ACTIONS[name]
    served.home.create_stream("s", segments=2)
    expected = action(served.home)
    for stream in served.home.streams():
        stream.delete()
    served.home.create_stream("s", segments=2)
    asked: set[str] = set()

    def loses(method: str, path: str) -> bool:
        """Lose the first answer to each kind of request, again and again."""
        bare = path.partition("?")[0]
        asked.symmetric_difference_update({f"{method} {bare}"})
        return f"{method} {bare}" in asked

    line.loses = loses
    assert action(remote) == expected
    assert len(line.lost) > 3


def test_a_stream_that_another_has_made_is_no_lost_answer(served: Served, line: LossyLine, remote: StreamHome) -> None:
    served.home.create_stream("new")
    line.lose(1, "POST /v1/streams")
    with pytest.raises(StreamExists):
        remote.create_stream("new")


def test_a_stream_that_another_deleted_is_no_lost_answer(served: Served, line: LossyLine, remote: StreamHome) -> None:
    stream = remote.create_stream("s")
    served.home.delete_stream("s")
    with pytest.raises(StreamDeleted):
        stream.delete()
    again = remote.create_stream("s")
    line.lose(1, "DELETE")
    again.delete()
    assert (remote.streams(), len(line.lost)) == ([], 1)


def test_where_nobody_listens_nothing_was_carried_out(served: Served) -> None:
    """So what was gone before is still told of."""
    with StreamHome(open_remote(f"http://127.0.0.1:1,{served.url}", budget=10)) as remote:
        stream = remote.create_stream("s")
        served.home.delete_stream("s")
        remote._backend._client._current = 0  # type: ignore[attr-defined]
        with pytest.raises(StreamDeleted):
            stream.delete()


def test_a_scale_that_another_has_made_is_no_lost_answer(served: Served, line: LossyLine, remote: StreamHome) -> None:
    stream = remote.create_stream("s")
    line.lose(1, "scale")
    stream.split(0)
    assert len(line.lost) == 1
    with pytest.raises(SegmentSealed):
        stream.split(0)
    assert stream.layout.epoch == 1


def test_a_scale_is_made_of_the_layout_that_holds_when_it_is_made(served: Served, remote: StreamHome) -> None:
    stream, other = remote.create_stream("s"), served.home.stream("s")
    seen: list[int] = []

    def change(layout: Layout) -> Layout:
        seen.append(layout.epoch)
        if len(seen) == 1:
            other.split(layout.current[0].id)
        return layout.split(layout.current[0].id)

    stream._backend.log.scale(stream.info, change)
    assert (seen, stream.layout.epoch, len(stream.layout.current)) == ([0, 1], 2, 3)


def test_marks_sent_together_may_be_sent_twice(served: Served, line: LossyLine, remote: StreamHome) -> None:
    stream = remote.create_stream("s")
    writers = [stream.writer(name) for name in ("a", "b")]
    info = stream.info
    notes = [MarkRequest(info, writer._opened.author, "time", 5, {}) for writer in writers]
    notes.append(MarkRequest(info, Author("nobody", 1), "time", 5, {}))
    line.lose(1, "/v1/marks")
    registry: Any = remote._backend.registry
    settled = registry.note_many(notes)
    assert [getattr(one, "code", one) for one in settled][2] == "unknown-writer"
    assert [one.value for one in settled[:2]] == ["accepted", "accepted"]
    assert len(line.lost) == 1


def test_a_watermark_goes_on_although_answers_are_lost(served: Served, line: LossyLine, remote: StreamHome) -> None:
    controller = Controller(served.home)
    stream = remote.create_stream("s", rate_floor="0 seconds")
    with stream.writer("w") as writer:
        for number in range(10):
            line.lose(1, ("events", "marks", "entries")[number % 3])
            writer.write(number)
            assert writer.note_time(number).value == "accepted"
            controller.step()
            controller.step()
            assert stream.marks()[-1].lower == number
    assert payloads(stream, 0) == list(range(10))
