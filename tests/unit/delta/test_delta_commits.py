"""Commits to tables under a name: numbers rise, whoever was overtaken is told, and files are seen at once or never."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType

from floodmark.delta import DeltaCommits
from floodmark.delta import commits as _commits
from floodmark.delta.commits import schema_differences
from floodmark.errors import TableConflict, TableFailed, TableUnfit
from support.delta_tables import ROWS, open_table, rows, schema, stage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def test_staged_files_are_seen_with_their_commit_and_not_before(path: Path) -> None:
    table = open_table(path)
    files = stage(table, "a1", 1, 2)
    assert (rows(path), table.has_rows()) == ([], False)
    table.commit(files, 1, {"said": "yes"})
    assert (rows(path), table.has_rows(), table.number) == ([(1,), (2,)], True, 1)
    newest = table.newest_commit()
    assert newest is not None
    assert (newest.number, newest.metadata["said"]) == (1, "yes")


@pytest.mark.parametrize("number", [2, 1, 0])
def test_a_number_that_does_not_rise_is_refused(path: Path, number: int) -> None:
    table = open_table(path)
    table.commit((), 2, {})
    with pytest.raises(TableConflict) as refused:
        table.commit(stage(table, "a1", 1), number, {})
    assert refused.value.fields["number"] == number
    assert rows(path) == []


def test_the_table_itself_would_take_an_older_number(path: Path) -> None:
    """Why it is checked here: Delta Lake sees only that two commits were made from the same version."""
    table = open_table(path)
    table.commit((), 2, {})
    raw = DeltaTable(str(path))
    said = CommitProperties(app_transactions=[Transaction("app", 1)])
    raw.create_write_transaction([], "append", raw.schema(), commit_properties=said)
    assert DeltaTable(str(path)).transaction_version("app") == 1


def test_whoever_was_overtaken_finds_a_conflict_whatever_number_it_takes(path: Path) -> None:
    table, other = open_table(path), open_table(path)
    other.commit(stage(other, "b1", 1), 1, {})
    for number in (1, 2, 7):
        with pytest.raises(TableConflict):
            table.commit(stage(table, f"a{number}", 2), number, {})
    table.reload()
    assert table.number == 1
    table.commit(stage(table, "a8", 2), 2, {})
    assert rows(path) == [(1,), (2,)]


def test_commits_of_others_are_no_conflict(path: Path) -> None:
    table, other = open_table(path), open_table(path, "other")
    other.commit(stage(other, "b1", 1), 5, {})
    write_deltalake(str(path), pa.table({"n": pa.array([3], pa.int64())}), mode="append")
    table.commit(stage(table, "a1", 2), 1, {"said": "mine"})
    assert rows(path) == [(1,), (2,), (3,)]
    newest = table.newest_commit()
    assert newest is not None
    assert (newest.number, newest.metadata["said"]) == (1, "mine")


def test_whatever_others_commit_is_a_conflict_for_files_that_hold_for_one_version(path: Path) -> None:
    table = open_table(path)
    write_deltalake(str(path), pa.table({"n": pa.array([3], pa.int64())}), mode="append")
    with pytest.raises(TableConflict):
        table.commit(stage(table, "a1", 2), 1, {}, next_version=True)
    table.reload()
    table.commit(stage(table, "a2", 4), 1, {}, next_version=True)
    assert rows(path) == [(3,), (4,)]


def test_a_table_that_was_changed_since_is_a_conflict(path: Path) -> None:
    table = open_table(path)
    DeltaTable(str(path)).alter.add_columns([Field("more", PrimitiveType("string"))])
    with pytest.raises(TableConflict, match="Metadata changed"):
        table.commit(stage(table, "a1", 1), 1, {})
    table.reload()
    with pytest.raises(TableUnfit, match="more is missing in the rows"):
        table.check(ROWS)


@pytest.mark.parametrize("others", [0, 1, 30])
def test_the_last_commit_is_found_behind_those_of_others(path: Path, others: int) -> None:
    table, other = open_table(path), open_table(path, "other")
    table.commit((), 1, {"said": "first"})
    table.commit((), 2, {"said": "second"})
    other.reload()
    for number in range(1, others + 1):
        other.commit((), number, {"said": "foreign"})
    table.reload()
    newest = table.newest_commit()
    assert newest is not None
    assert (newest.number, newest.metadata["said"]) == (2, "second")


def test_a_commit_that_the_log_has_lost_is_an_error_and_not_nothing(path: Path) -> None:
    table, other = open_table(path), open_table(path, "other")
    table.commit((), 1, {})
    other.reload()
    other.commit((), 1, {})
    DeltaTable(str(path)).create_checkpoint()
    (path / "_delta_log" / f"{1:020}.json").unlink()
    table.reload()
    assert table.number == 1
    with pytest.raises(TableFailed) as lost:
        table.newest_commit()
    assert lost.value.fields["number"] == 1


def test_two_that_make_a_table_at_once_have_the_same_one(path: Path) -> None:
    assert open_table(path).table_id == open_table(path, "other").table_id


def test_where_there_is_no_table_none_is_found_and_nothing_is_made(path: Path) -> None:
    assert DeltaCommits.find(path, "app") is None
    with pytest.raises(TableFailed):
        DeltaCommits.open(path, "app")
    assert not path.exists()


def test_a_table_that_was_made_anew_has_another_id(path: Path) -> None:
    first = open_table(path).table_id
    path.rename(path.with_name("moved"))
    assert open_table(path).table_id != first


def test_files_go_to_their_partitions_and_take_the_place_of_those_before(path: Path) -> None:
    table = DeltaCommits.open(path, "app", schema(n="long", place="string"), partition_by=["place"])
    assert table.partition_by == ("place",)

    def staged(attempt: str, **numbers: int | None) -> Any:
        directory = table.staging.begin(attempt)
        for name, number in numbers.items():
            # As Spark names directories: what has a meaning in paths is written as %XX.
            inside = directory / f"place={'__HIVE_DEFAULT_PARTITION__' if name == 'none' else name + '%3A %25'}"
            inside.mkdir(parents=True)
            pq.write_table(pa.table({"n": pa.array([number], pa.int64())}), inside / "part.parquet")
        return table.staging.staged_files(attempt)

    table.commit(staged("a1", a=1, b=2, none=3), 1, {})
    every = "SELECT n, place FROM t ORDER BY n"
    assert rows(path, every) == [(1, "a: %"), (2, "b: %"), (3, None)]
    known = table.files().to_pydict()
    assert sorted(known["num_records"]) == [1, 1, 1]
    before = [file for file, place in zip(known["path"], known["partition.place"], strict=True) if place == "a: %"]
    table.commit(staged("a2", a=4), 2, {}, remove=before)
    assert rows(path, every) == [(2, "b: %"), (3, None), (4, "a: %")]


def test_a_file_gives_way_once(path: Path) -> None:
    table = DeltaCommits.open(path, "app", schema(n="long"))
    table.staging.begin("a1").mkdir()
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())}), table.staging.directory("a1") / "a.parquet")
    table.commit(table.staging.staged_files("a1"), 1, {})
    (file,) = table.files().column("path").to_pylist()
    other = DeltaCommits.open(path, "other")
    table.commit((), 2, {}, remove=[file])
    with pytest.raises(TableConflict):
        other.commit((), 1, {}, remove=[file])
    assert not table.has_rows()


def test_a_table_gets_columns_which_earlier_rows_do_not_have(path: Path) -> None:
    table, other = open_table(path), open_table(path, "other")
    other.commit(stage(other, "b1", 1), 1, {})
    note = '[{"name": "note", "type": "string", "nullable": true, "metadata": {}}]'
    table.add_columns(note)
    table.check(schema(n="long", note="string"))
    assert table.has_rows(), "what others have committed is seen"
    with pytest.raises(TableFailed, match="could not be given more columns"):
        table.add_columns(note.replace('"string"', '"long"'))


def test_a_commit_may_carry_numbers_of_other_applications(path: Path) -> None:
    table = DeltaCommits.open(path, "app", schema(n="long"))
    table.commit((), 1, {"who": "me"}, also={"owner": 2**62 + 1})
    assert (table.last_number("owner"), table.last_number("nobody")) == (2**62 + 1, None)
    assert next(table.commit_metadata())["who"] == "me"


@pytest.mark.parametrize("commits", [0, 19, 20, 30])
def test_what_was_said_is_given_once_the_newest_first(path: Path, commits: int) -> None:
    table = open_table(path)
    for number in range(1, commits + 1):
        table.commit((), number, {"said": str(number)})
    said = [one.get("said") for one in table.commit_metadata()]
    assert said == [*(str(number) for number in range(commits, 0, -1)), None]


def test_of_a_long_log_no_more_is_read_than_is_asked_for(path: Path) -> None:
    table = open_table(path)
    limits: list[int | None] = []
    for number in range(1, 30):
        table.commit((), number, {})
    history = table._read_log

    def noted(limit: int | None) -> Any:
        limits.append(limit)
        return history(limit)

    table._read_log = noted  # type: ignore[method-assign]
    said = table.commit_metadata()
    for _ in range(2):
        next(said)
    assert limits == [1, 20]
    assert (len(list(said)), limits) == (28, [1, 20, 400])


def test_an_application_that_has_committed_nothing_has_no_newest_commit(path: Path) -> None:
    open_table(path, "other").commit((), 1, {})
    assert open_table(path).newest_commit() is None


@pytest.mark.parametrize("number", [{}, {"floodmark.number": "x"}])
def test_what_others_say_in_its_name_is_passed_over(path: Path, number: dict[str, str]) -> None:
    table = open_table(path)
    table.commit((), 1, {})
    said = CommitProperties(custom_metadata={"floodmark.app": "app", **number})
    write_deltalake(str(path), pa.table({"n": pa.array([3], pa.int64())}), mode="append", commit_properties=said)
    newest = open_table(path).newest_commit()
    assert newest is not None
    assert newest.number == 1


def test_a_commit_says_its_own_name_and_number_whatever_else_is_said(path: Path) -> None:
    table = open_table(path)
    table.commit((), 1, {"floodmark.app": "other", "floodmark.number": "7"})
    newest = table.newest_commit()
    assert newest is not None
    assert newest.number == 1


def test_whoever_comes_second_takes_the_table_that_was_made_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, find = open_table(path), DeltaCommits.find

    def not_yet(*given: Any) -> None:
        monkeypatch.setattr(DeltaCommits, "find", find)

    monkeypatch.setattr(DeltaCommits, "find", not_yet)
    assert open_table(path, "other").table_id == first.table_id


class Broken:
    """A table with something that fails."""

    def __init__(self, table: DeltaTable, *names: str) -> None:
        self._table, self._names = table, names

    def __getattr__(self, name: str) -> Any:
        return self._fail if name in self._names else getattr(self._table, name)

    def _fail(self, *given: Any, **more: Any) -> None:
        raise DeltaError("the disk is full.")


@pytest.mark.parametrize(
    ("name", "what", "is_made"),
    [("create_write_transaction", "written", False), ("update_incremental", "read", True)],
)
def test_what_goes_wrong_with_a_commit_is_told(path: Path, name: str, what: str, is_made: bool) -> None:
    table = open_table(path)
    table._table = Broken(table._table, name)  # type: ignore[assignment]
    with pytest.raises(TableFailed, match=f"could not be {what}: the disk is full"):
        table.commit((), 1, {})
    assert (open_table(path).number == 1) is is_made


@pytest.mark.parametrize(("small", "commits", "checkpoint"), [(10_000, 9, None), (10_000, 19, 10), (0, 19, None)])
def test_a_table_has_a_checkpoint_each_ten_commits_if_it_is_small(
    path: Path, monkeypatch: pytest.MonkeyPatch, small: int, commits: int, checkpoint: int | None
) -> None:
    monkeypatch.setattr(_commits, "_FEW_FILES", small)
    table = open_table(path)
    for number in range(1, commits + 1):
        table.commit((), number, {})
    last = path / "_delta_log" / "_last_checkpoint"
    assert (json.loads(last.read_text())["version"] if last.exists() else None) == checkpoint


@pytest.mark.parametrize(
    ("have", "come", "told"),
    [
        (schema(a="long"), schema(a="long"), []),
        (schema(a="long", b="string"), schema(b="string", a="long"), []),
        (schema(a="long"), schema(a="integer"), ["a is long in the table and integer in the rows"]),
        (schema(a="long"), schema(b="long"), ["a is missing in the rows", "b is not in the table"]),
        (
            schema(a={"type": "struct", "fields": [{"name": "x", "type": "long"}]}),
            schema(a={"type": "struct", "fields": [{"name": "x", "type": "date"}]}),
            ["a.x is long in the table and date in the rows"],
        ),
        (
            schema(a={"type": "array", "elementType": "long", "containsNull": True}),
            schema(a={"type": "array", "elementType": "string", "containsNull": True}),
            ["a[] is long in the table and string in the rows"],
        ),
        (
            schema(a={"type": "map", "keyType": "string", "valueType": "long"}),
            schema(a={"type": "map", "keyType": "string", "valueType": "string"}),
            ["a.value is long in the table and string in the rows"],
        ),
        (
            schema(a={"type": "array", "elementType": "long"}),
            schema(a="long"),
            ["a is array in the table and long in the rows"],
        ),
        (
            ROWS.replace("true", "false"),
            ROWS,
            ["n must not be null in the table and may be in the rows"],
        ),
        (ROWS, ROWS.replace("true", "false"), []),
    ],
)
def test_columns_are_compared_by_name_and_type(have: str, come: str, told: list[str]) -> None:
    assert schema_differences(have, come) == told


def test_rows_with_other_columns_are_refused(path: Path) -> None:
    table = open_table(path)
    with pytest.raises(TableUnfit) as refused:
        table.check(schema(n="string"))
    assert refused.value.fields["differences"] == ["n is long in the table and string in the rows"]


def test_a_table_with_a_constraint_is_refused(path: Path) -> None:
    open_table(path)
    DeltaTable(str(path)).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableUnfit) as refused:
        open_table(path).check()
    assert refused.value.fields["needs"] == ["the constraint positive"]


def test_a_table_partitioned_by_moments_is_refused(path: Path) -> None:
    table = DeltaCommits.open(path, "app", schema(n="long", at="timestamp"), partition_by=["at"])
    with pytest.raises(TableUnfit) as refused:
        table.check()
    assert refused.value.fields["needs"] == ["partitions by at, which is timestamp"]


def test_a_table_whose_log_is_broken_says_so(path: Path) -> None:
    open_table(path)
    (path / "_delta_log" / f"{0:020}.json").write_text("nonsense")
    with pytest.raises(TableFailed):
        DeltaCommits.find(path, "app")
