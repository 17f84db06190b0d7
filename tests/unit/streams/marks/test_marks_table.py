"""The marks log in the store answers as the one in memory does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import UnknownName
from floodmark.streams import EntryKind, Layout, MarkEntry, StreamHome, connect
from floodmark.streams.local.marks import INSERT_ENTRY, MarksTable, entry_values
from floodmark.streams.marks.log import MarksLog, cut_at, ending_at, starting_at, time_at
from support.examples import examples

STEPS = st.lists(
    st.tuples(st.sampled_from(list(EntryKind)), st.integers(1, 3), st.integers(0, 4), st.integers(0, 2)), max_size=12
)


def entries_of(steps: list[tuple[EntryKind, int, int, int]], first: int) -> list[MarkEntry]:
    entries: list[MarkEntry] = []
    lower: int | None = None
    upper, offset = -10, 0
    for seq, (kind, rise, spread, move) in enumerate(steps, start=first):
        offset += move
        if kind is EntryKind.WATERMARK:
            lower = rise if lower is None else lower + rise
            upper = max(upper, lower + spread)
        entries.append(MarkEntry(seq, kind, lower, None if lower is None else upper, ("w",), {0: offset}, at=seq))
    return entries


@pytest.fixture(scope="module")
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamHome]:
    path: Path = tmp_path_factory.mktemp("marks")
    with connect(path, controller=False) as home:
        yield home


@given(STEPS, st.integers(1, 3))
@settings(max_examples=examples(60))
def test_it_finds_what_the_log_in_memory_finds(
    one_home: StreamHome, steps: list[tuple[EntryKind, int, int, int]], first: int
) -> None:
    stream = one_home.create_stream("s")
    entries = entries_of(steps, first)
    if entries:
        with one_home.home.write() as connection:
            connection.execute(INSERT_ENTRY, [entry_values(stream.info.id, "time", entry) for entry in entries])
    table, log = MarksTable(one_home.home, stream.info.id, "time"), MarksLog(entries)
    assert table.numbers() == log.numbers()
    assert table.newest() == log.newest()
    assert [table.entry(number) for number in table.numbers()] == stream.marks() == entries
    for time in range(-1, 15):
        for ask in (cut_at, starting_at, ending_at):
            assert ask(table, time) == ask(log, time), (ask, time)
    for offset in range(0, 6):
        place = {0: offset}
        assert time_at(table, place, Layout.create(1)) == time_at(log, place, Layout.create(1))
    assert stream.marks(after=first, most=2) == entries[1:3]
    stream.delete()


def test_an_entry_that_is_not_kept_is_refused(one_home: StreamHome) -> None:
    with pytest.raises(UnknownName):
        MarksTable(one_home.home, 7, "time").entry(3)
