"""Sinks whose files take the place of others in a table: what they have seen of the table is what they change."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from floodmark.bindings import SourceOffset
from floodmark.errors import SinkFenced, TableConflict, TableFailed, TableUnfit
from floodmark.sinks import Batch, Write
from floodmark.sinks.manifest.delta import DeltaManifestLog
from floodmark.sinks.manifest.target import ManifestPart, ManifestTarget
from floodmark.sinks.startup import SourceBounds
from floodmark.sinks.target import ROWS_FLUSHED, no_failpoint
from support.sinks.closing_process import SCHEMA

BATCH = Batch.of("q1", {"S": (SourceOffset("q", None, {}), SourceOffset("q", 1, {0: 1}))}, is_stateful=False)


class Replacing:
    """A sink that makes one file of all numbers in a table, and of those that it adds."""

    def __init__(self, place: Path, failpoint: Callable[[str], None] = no_failpoint) -> None:
        self.log = DeltaManifestLog(place, "K", SCHEMA, replaces=True)
        self.target = ManifestTarget(self.log, failpoint=failpoint)
        self.attempts: list[str] = []

    def start(self) -> None:
        self.target.start(lambda sources: {source: SourceBounds(1, 1, 9) for source in sources})

    def write(self, *numbers: int, drop: bool = False) -> tuple[int, int]:
        """Add numbers, or drop all that are there; return how many rows are told of."""

        def run(attempt: str) -> list[ManifestPart]:
            self.attempts.append(attempt)
            gone = self.log.reload().files()["path"].to_pylist()
            directory = self.log.attempt_directory(attempt)
            directory.mkdir()
            kept = [] if drop else [number for path in gone for number in numbers_of(self.log.table.path / path)]
            pq.write_table(pa.table({"n": pa.array([*kept, *numbers], pa.int64())}), directory / "a.parquet")
            return self.log.replacement_parts(attempt, gone, len(numbers))

        progress = self.target.write(run, BATCH, Write())
        return progress.rows, progress.total


def numbers_of(path: Path) -> list[int]:
    found: list[int] = pq.read_table(path, partitioning=None)["n"].to_pylist()
    return found


def there(place: Path) -> list[int]:
    return sorted(number for uri in DeltaTable(str(place)).file_uris() for number in numbers_of(Path(uri)))


def staged(place: Path) -> set[str]:
    return {path.name.removeprefix("floodmark-") for path in place.glob("floodmark-*")}


def append(place: Path, numbers: Iterable[int]) -> None:
    write_deltalake(str(place), pa.table({"n": pa.array(list(numbers), pa.int64())}), mode="append")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "table"


def test_rows_that_are_put_in_place_are_told_of_and_those_copied_or_deleted_are_not(place: Path) -> None:
    sink = Replacing(place)
    sink.start()
    assert [sink.write(1, 2), sink.write(3), sink.write(drop=True), sink.write(4)] == [(2, 2), (1, 3), (0, 3), (1, 4)]
    assert there(place) == [4]
    assert len(staged(place)) == 3, "what has no rows leaves no directory"
    assert sink.log.table.staging.open_attempts() == []


def test_what_others_have_committed_before_is_seen_at_once(place: Path) -> None:
    sink = Replacing(place)
    sink.start()
    append(place, [7])
    sink.write(1)
    assert (there(place), len(sink.attempts)) == ([1, 7], 1)


def test_whoever_was_overtaken_makes_its_files_anew_and_removes_the_others(place: Path) -> None:
    others = [8, 7]
    sink = Replacing(place, lambda at: append(place, [others.pop()]) if at == ROWS_FLUSHED and others else None)
    sink.start()
    assert sink.write(1) == (1, 1)
    assert there(place) == [1, 7, 8]
    assert len(set(sink.attempts)) == 3
    assert staged(place) == {sink.attempts[-1]}
    assert sink.log.table.staging.open_attempts() == []


def test_whoever_is_overtaken_each_time_gives_up_and_nothing_of_it_is_there(place: Path) -> None:
    sink = Replacing(place, lambda at: append(place, [7]) if at == ROWS_FLUSHED else None)
    sink.start()
    with pytest.raises(TableFailed, match="was changed by other writers 20 times") as told:
        sink.write(1)
    assert isinstance(told.value.__cause__, TableConflict)
    assert (set(there(place)), staged(place), sink.log.table.number) == ({7}, set(), 1)
    again = Replacing(place)
    again.start()
    again.write(1)
    assert there(place) == [1] + [7] * 20


def test_a_newer_start_ends_an_older_one_whatever_that_has_seen(place: Path) -> None:
    newer = Replacing(place)
    sink = Replacing(place, lambda at: newer.start() if at == ROWS_FLUSHED else None)
    sink.start()
    with pytest.raises(SinkFenced):
        sink.write(1)
    assert there(place) == []
    newer.write(2)
    assert there(place) == [2]


@pytest.mark.parametrize(
    ("setting", "needs"),
    [
        ("delta.appendOnly", "append-only"),
        ("delta.enableChangeDataFeed", "the change data feed"),
        ("delta.enableDeletionVectors", "deletion vectors"),
    ],
)
def test_a_table_whose_files_cannot_give_way_is_refused(place: Path, setting: str, needs: str) -> None:
    append(place, [1])
    DeltaTable(str(place)).alter.set_table_properties({setting: "true"})
    with pytest.raises(TableUnfit, match=needs):
        Replacing(place).start()
    DeltaManifestLog(place, "K", SCHEMA).open()
