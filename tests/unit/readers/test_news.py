"""Waiting for news: as soon as something is newer than what is known, and no sooner."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from floodmark.streams import GroupState, StreamHome
from floodmark.streams.groups.requests import (
    Bound,
    GroupRef,
    NewGroup,
    News,
    Report,
    StreamBounds,
    StreamSubscription,
    Subscription,
)
from floodmark.streams.groups.state import StreamProgress
from support.streams.group_tools import fill

LONG = 20.0


@pytest.fixture
def wanted(live: StreamHome) -> Subscription:
    stream = live.create_stream("s", segments=2, rate_floor="1 millisecond")
    state = live.create_group("g", "s").state
    known = StreamSubscription(stream.info.id, stream.info.version, {0: 0, 1: 0}, {"time": 0})
    return Subscription(GroupRef("g", state.group_id), state.version, (known,))


def key_in(home: StreamHome, segment: int) -> str:
    layout = home.stream("s").layout
    return next(key for key in map(str, range(99)) if layout.route(key).id == segment)


def write(home: StreamHome) -> None:
    with home.stream("s").writer() as writer:
        writer.write(1, key=key_in(home, 1))


def note(home: StreamHome) -> None:
    with home.stream("s").writer("w") as writer:
        writer.note_time(5)
        home.stream("s").await_mark(5)


def join(home: StreamHome) -> None:
    home.group("g").reader("r").close()


CHANGES: dict[str, tuple[Callable[[StreamHome], None], Callable[[News, StreamHome], bool]]] = {
    "events": (write, lambda news, home: news.streams[0].ends == {0: 0, 1: 1}),
    "a mark": (note, lambda news, home: news.streams[0].marks["time"] >= 1),
    "a scale": (
        lambda home: home.stream("s").split(0),
        lambda news, home: news.streams[0].version == home.stream("s").info.version,
    ),
    "a seal": (
        lambda home: home.stream("s").seal(),
        lambda news, home: news.streams[0].version == home.stream("s").info.version,
    ),
    "a reader": (join, lambda news, home: news.state is not None and news.state.name == "g"),
    "the end of the stream": (
        lambda home: home.delete_stream("s"),
        lambda news, home: news.streams[0].version == -1,
    ),
}


@pytest.mark.parametrize(("change", "holds"), CHANGES.values(), ids=CHANGES)
def test_news_come_as_soon_as_they_are_there(
    live: StreamHome,
    wanted: Subscription,
    change: Callable[[StreamHome], None],
    holds: Callable[[News, StreamHome], bool],
) -> None:
    thread = threading.Timer(0.1, change, (live,))
    thread.start()
    begun = time.monotonic()
    news = live._backend.news(wanted, LONG)
    assert 0.05 < time.monotonic() - begun < LONG / 2
    thread.join()
    assert holds(news, live)
    assert news.is_new_to(wanted)


def test_without_news_the_time_runs_out_and_what_is_known_is_told(live: StreamHome, wanted: Subscription) -> None:
    begun = time.monotonic()
    news = live._backend.news(wanted, 0.1)
    assert time.monotonic() - begun >= 0.1
    assert news == News(wanted.streams)
    assert not news.is_new_to(wanted)


def test_what_was_there_before_is_told_at_once(live: StreamHome, wanted: Subscription) -> None:
    fill(live, "s", 10)
    news = live._backend.news(wanted, LONG)
    assert sum(news.streams[0].ends.values()) == 10
    known = replace(wanted, streams=news.streams)
    assert not live._backend.news(known, 0).is_new_to(known)


def test_segments_that_nobody_waits_for_are_no_news(live: StreamHome, wanted: Subscription) -> None:
    mine = replace(wanted, streams=(replace(wanted.streams[0], ends={0: 0}, marks={}),))
    write(live)
    assert not live._backend.news(mine, 0).is_new_to(mine)


STATE = GroupState("g", 1, (StreamProgress("s", 7, "time", {0: 3}),), created_at=5)
SENT: list[Any] = [
    GroupRef("g", 5),
    Bound({0: 5}, stream_id=7, places={"at": 2}, since=3),
    Bound(time=-5),
    StreamBounds("s", "at", Bound({0: 1}), Bound(time=9), waits=False),
    NewGroup("g", 2**60, (StreamBounds("s"),)),
    Report("r", "i", 2, {("s", 0): 5}, frozenset({("s", 1)}), {("s", 0): -4}, {("s", "at"): 3}, "c"),
    Subscription(GroupRef("g", 5), 3, (StreamSubscription(7, 1, {0: 4}, {"at": -1}),)),
    News((StreamSubscription(7, -1, {0: 4}, {}),), STATE),
    News(),
    STATE,
]


@pytest.mark.parametrize("value", SENT, ids=lambda value: type(value).__name__)
def test_what_crosses_a_wire_arrives_as_it_was(value: Any) -> None:
    import json

    assert type(value).load(json.loads(json.dumps(value.save()))) == value
