"""Queries that upsert into tables of Delta Lake: what is there afterwards, whatever happens on the way."""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.sinks import Sinks
from floodmark.sinks.manifest.delta import DeltaManifestLog
from floodmark.sinks.target import BEFORE_BEGIN, COMMITTED, FENCED, HOLD_ADVANCED, ROWS_FLUSHED, STARTED
from support.spark.sink_feed import Injected, fail_at
from support.spark.stream_feed import BASE, SECOND, StreamFeed
from support.spark.table_changes import Changes, at_failpoint
from support.spark.table_shop import table


@pytest.fixture
def changes(spark: SparkSession, tmp_path: Path) -> Iterator[Changes]:
    feed = Changes(spark, tmp_path)
    yield feed
    feed.close()


MEANING: dict[str, tuple[list[str], list[list[str]], list[tuple[str | None, int]]]] = {
    "a new key": ([], [["p 1 1"]], [("p", 1)]),
    "a key that is there": (["p 1 1"], [["p 2 1"]], [("p", 2)]),
    "a key that is not touched": (["p 1 1"], [], [("p", 1)]),
    "a key that is deleted": (["p 1 1"], [["p 1 -1"]], []),
    "a key that is deleted and was never there": ([], [["p 1 -1"]], []),
    "what is taken back, after what takes its place": (["p 1 1"], [["p 2 1", "p 1 -1"]], [("p", 2)]),
    "a key that comes and goes": ([], [["p 1 1"], ["p 1 -1"]], []),
    "a key that goes and comes": (["p 1 1"], [["p 1 -1"], ["p 2 1"]], [("p", 2)]),
    "several rows, the newest last": (["p 1 1"], [["p 2 1"], ["p 3 1"]], [("p", 3)]),
    "several rows, the largest first": (["p 1 1"], [["p 9 1"], ["p 2 1"]], [("p", 2)]),
    "several rows of a timestamp": ([], [["p 9 1", "p 8 1", "p 7 1"]], [("p", 7)]),
    "a row that says nothing": (["p 1 1"], [["p 2 0"]], [("p", 1)]),
    "a row that says nothing after another": (["p 1 1"], [["p 2 1"], ["p 3 0"]], [("p", 2)]),
    "a row that does not say how often": (["p 1 1"], [["p 2 _"]], [("p", 2)]),
    "a row that says it more than once": (["p 1 1"], [["p 2 3"]], [("p", 2)]),
    "a row that is written as often as another is taken back": (["p 1 1"], [["p 1 -5", "p 2 1"]], [("p", 2)]),
    "a row that moves": (["p 1 1"], [["q/r=% 1 1"]], [("q/r=%", 1)]),
    "a row that moves back": (["q/r=% 1 1"], [["p 1 1"]], [("p", 1)]),
    "a row that moves to nowhere": (["p 1 1"], [["_ 1 1"]], [(None, 1)]),
    "a row that moves from nowhere": (["_ 1 1"], [["p 1 1"]], [("p", 1)]),
    "a row that is deleted elsewhere": (["p 1 1"], [["q 1 -1"]], []),
}


def test_of_each_key_the_newest_row_is_there_or_none(changes: Changes) -> None:
    changes.make_table(["p"])
    keys = {name.replace(" ", "-"): case for name, case in MEANING.items()}
    changes.put([f"{key} {row}" for key, (before, _, _) in keys.items() for row in before])
    changes.run()
    before = Sinks(changes.home.home).get("out").progress
    assert before is not None
    assert before.total == sum(bool(rows) for rows, _, _ in keys.values())
    for number in range(2):
        told = {key: rows[number] for key, (_, rows, _) in keys.items() if number < len(rows)}
        changes.put([f"{key} {row}" for key, rows in told.items() for row in rows])
    changes.run()
    found: dict[str, list[tuple[str | None, int]]] = {key: [] for key in keys}
    for key, part, value in changes.rows():
        found[key].append((part, value))
    assert found == {key: wanted for key, (_, _, wanted) in keys.items()}
    after = Sinks(changes.home.home).get("out").progress
    assert after is not None
    untouched = ("a-key-that-is-not-touched", "a-row-that-says-nothing")
    put = sum(bool(wanted) and key not in untouched for key, (_, _, wanted) in keys.items())
    assert (after.rows, after.total) == (put, before.total + put), "what is deleted or copied does not count"


def test_a_key_may_be_of_several_columns_each_of_which_has_a_value(changes: Changes) -> None:
    changes.make_table(["p"])
    _append(changes, ("a", "x", 1), ("a", "y", 2), ("b", "x", 3))
    changes.put(["a y 9 1", "b x 3 -1", "b y 3 -1", "c y 4 1"])
    changes.run(key=["k", "p"], append=True)
    there = [("a", "x", 1), ("a", "y", 9), ("c", "y", 4)]
    assert changes.rows() == there
    files = changes.files()
    changes.put(["d y 1 1", "d _ 1 1"])
    with pytest.raises(StreamingQueryException, match="A row has no key"):
        changes.run(key=["k", "p"])
    assert changes.rows() == there
    assert changes.files() == files, "it is refused before anything is written"


ROUNDS = (
    ((FENCED, STARTED, BEFORE_BEGIN), "first", None),
    # A new checkpoint has other batches: they are dropped up to where rows were written.
    ((ROWS_FLUSHED,), "second", 17),
    ((COMMITTED,), "second", None),
    ((HOLD_ADVANCED,), "third", None),
)
"""Where a query fails, and with which checkpoint and how many rows in a batch it goes on."""


@pytest.mark.long
def test_the_table_is_what_the_changes_say_whatever_fails_and_whichever_checkpoint_is_there(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, model, last = Random(7), dict[str, tuple[str, int]](), "first"
    for places, checkpoint, max_rows in ROUNDS:
        before = dict(model)
        changes.put(*(_random_changes(random, model) for _ in range(3)))
        for place in places:
            with monkeypatch.context() as patch:
                fail_at(patch, place)
                with pytest.raises((StreamingQueryException, Injected)):
                    changes.run(checkpoint=last)
            assert _as_model(changes.rows()) == (model if place in (COMMITTED, HOLD_ADVANCED) else before), place
        changes.put(_random_changes(random, model))
        changes.run(changes.frame(max_rows=max_rows), checkpoint=checkpoint)
        assert _as_model(changes.rows()) == model, places
        last = checkpoint
    assert changes.files() == _ever_added(changes.place), "what was written in vain is removed"


def _random_changes(random: Random, model: dict[str, tuple[str, int]]) -> list[str]:
    """Change a model, and return how: each key is changed once, or taken back and put again."""
    told = []
    for key in random.sample("abcdefghijkl", 5):
        part, value = model.pop(key, ("p", 0))
        puts, deletes = random.choice([(True, False), (True, True), (False, True)])
        if deletes:
            told.append(f"{key} {part} {value} -1")
        if puts:
            model[key] = random.choice("pq"), random.randrange(1_000)
            told.append(f"{key} {model[key][0]} {model[key][1]} 1")
    random.shuffle(told)
    return told


def _as_model(rows: Iterable[tuple[Any, ...]]) -> dict[str, tuple[str, int]]:
    found = {key: (part, value) for key, part, value in rows}
    assert len(found) == len(list(rows)), "each key is there once"
    return found


def _ever_added(place: Path) -> set[str]:
    lines = [line for log in (place / "_delta_log").glob("*.json") for line in log.read_text().splitlines()]
    return {one["add"]["path"] for one in map(json.loads, lines) if "add" in one}


@pytest.mark.long
def test_what_others_commit_in_between_is_seen_and_the_batch_is_evaluated_once(
    changes: Changes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    to_do: list[Callable[[], None]] = []
    at_failpoint(monkeypatch, lambda place: to_do.pop()() if place == ROWS_FLUSHED and to_do else None)

    def noted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with seen.open("a") as file:
                file.writelines(f"{key}\n" for key in batch.column(0).to_pylist())
            yield batch

    def run() -> None:
        frame = changes.frame()
        seen.write_text("")
        changes.run(frame.mapInArrow(noted, frame.schema))
        assert not to_do

    def compact(*, vacuum: bool = False) -> None:
        done = DeltaTable(str(changes.place)).optimize.compact()
        assert done["numFilesRemoved"] > 1
        if vacuum:
            DeltaTable(str(changes.place)).vacuum(0, enforce_retention_duration=False, dry_run=False)

    changes.put(["z p 1 -1"])
    to_do.append(lambda: _append(changes, ("a", "x", 1), ("z", "x", 9)))
    run()
    assert changes.rows() == [("a", "x", 1)], "also what was not there is deleted"
    changes.put(["a p 2 1", "c p 2 1"])
    to_do.append(lambda: _append(changes, ("a", "x", 9), ("c", "x", 9), ("d", "x", 9)))
    run()
    assert changes.rows() == [("a", "p", 2), ("c", "p", 2), ("d", "x", 9)]
    assert sorted(seen.read_text().split()) == ["a", "c"]
    assert changes.files() == _ever_added(changes.place), "what was overtaken leaves nothing"
    _append(changes, ("b", "x", 1))
    changes.put(["b p 3 1", "d x 9 -1"])
    to_do.append(compact)
    run()
    assert changes.rows() == [("a", "p", 2), ("b", "p", 3), ("c", "p", 2)]
    _append(changes, ("e", "x", 9))
    changes.put(["a p 4 1", "e x 9 -1"])
    with monkeypatch.context() as patch:
        _after_looking(patch, lambda: compact(vacuum=True))
        run()
    assert changes.rows() == [("a", "p", 4), ("b", "p", 3), ("c", "p", 2)]
    assert sorted(seen.read_text().split()) == ["a", "e"]


def _after_looking(patch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something once, after a sink has looked at its table and before it reads files."""
    look, left = DeltaManifestLog.reload, [act]

    def looked(log: DeltaManifestLog) -> Any:
        found = look(log)
        if left:
            left.pop()()
        return found

    patch.setattr(DeltaManifestLog, "reload", looked)


def _append(changes: Changes, *rows: tuple[str, str, int]) -> None:
    columns = dict(zip("kpv", map(list, zip(*rows, strict=True)), strict=True))
    write_deltalake(str(changes.place), pa.table(columns), mode="append")


def test_an_older_start_of_the_sink_writes_nothing_more(changes: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    changes.put(["a p 1 1", "b p 1 1"])
    with monkeypatch.context() as patch:
        newer: list[Any] = []

        def overtake(place: str) -> None:
            if place == ROWS_FLUSHED and not newer:
                newer.append(changes.open_again())
                newer[0].start(None)

        at_failpoint(patch, overtake)
        with pytest.raises(StreamingQueryException, match="sink-fenced"):
            changes.run()
        newer[0].close()
    assert changes.rows() == []
    changes.run()
    assert changes.rows() == [("a", "p", 1), ("b", "p", 1)]


def test_files_whose_bounds_have_no_key_of_the_batch_are_not_read(changes: Changes) -> None:
    changes.put(["a p 1 1", "b p 3 1"])
    changes.run(key="v")
    (old,) = changes.files()
    whole = (changes.place / old).read_bytes()
    (changes.place / old).write_bytes(b"nobody can read this")
    changes.put(["c p 4 1", "d p 8 1"])
    changes.run(key="v")
    (changes.place / old).write_bytes(whole)
    assert [row[2] for row in changes.rows()] == [1, 3, 4, 8]


KINDS = {
    "flag": ("true", True),
    "tiny": ("CAST(1 AS TINYINT)", 1),
    "real": ("CAST(1 AS FLOAT)", 1.0),
    "price": ("CAST(1.50 AS DECIMAL(10, 2))", Decimal("1.50")),
    "day": ("DATE '1500-02-03'", date(1500, 2, 3)),
    "moment": ("TIMESTAMP '0099-01-01 00:00:00.000001Z'", datetime(99, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    "local": ("TIMESTAMP_NTZ '2026-01-01 12:00:00.5'", datetime(2026, 1, 1, 12, 0, 0, 500_000)),  # noqa: DTZ001
    "raw": ("X'00ff'", b"\x00\xff"),
    "many": ("array(1, NULL)", [1, None]),
    "named": ("map('a', 1L)", [("a", 1)]),
    "inside": ("named_struct('x', named_struct('z', 1, 'y', k))", {"x": {"z": 1, "y": "a"}}),
    "listed": ("array(named_struct('b', 1, 'a', TIMESTAMP '2026-01-01 00:00:00Z'))", None),
    "nothing": ("CAST(NULL AS STRING)", None),
}


@pytest.mark.long
def test_rows_that_are_copied_keep_all_that_they_have(changes: Changes) -> None:
    changes.put(["a p 1 1", "b p 1 1"])
    columns = [f"{value} AS {name}" for name, (value, _) in KINDS.items()]
    query = "SELECT * FROM t WHERE k = 'a'"
    changes.run(changes.frame().selectExpr("*", *columns), with_ts=True)
    before = table(changes.place, query)
    assert {name: before[0][name] for name in KINDS if name != "listed"} == {
        name: value for name, (_, value) in KINDS.items() if name != "listed"
    }
    changes.put(["b p 2 1"])
    changes.run(changes.frame().selectExpr("*", *columns), with_ts=True)
    assert table(changes.place, query) == before
    assert {(row["k"], row["v"], row["_ts"] > before[0]["_ts"]) for row in table(changes.place)} == {
        ("a", 1, False),
        ("b", 2, True),
    }
    changes.put(["b p 3 1"])
    turned = "array(named_struct('a', TIMESTAMP '2026-01-01 00:00:00Z', 'b', 1)) AS listed"
    with pytest.raises(StreamingQueryException, match="listed is array<struct<b"):
        changes.run(changes.frame().selectExpr("*", *columns[:-2], turned, columns[-1]), with_ts=True)


@pytest.mark.long
def test_windows_that_are_still_open_are_replaced_as_they_grow(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, tmp_path)

    def run(checkpoint: str) -> list[tuple[int, int]]:
        counted = fm.window(feed.read(operators="windows"), "10 seconds").groupBy("window").agg(F.count("*").alias("n"))
        fm.write_stream(
            counted.withColumn("start", F.col("window.start").cast("long") - BASE // SECOND),
            to=f"delta://{tmp_path}/out",
            name="out",
            checkpoint=tmp_path / checkpoint,
            home=tmp_path / "home",
            trigger={"availableNow": True},
            mode="upsert",
            key=["window", "start"],
            output_mode="update",
        ).awaitTermination()
        return sorted((row["start"], row["n"]) for row in table(tmp_path / "out"))

    feed.play([[1, 2, 3], 4, None, [11, 12], 13, None])
    assert run("first") == [(0, 3), (10, 2)]
    feed.play([[14, 21], 22, None])
    assert run("second") == [(0, 3), (10, 3), (20, 1)]
    written = Sinks(feed.home.home).get("out").progress
    assert written is not None
    assert written.total == 4, "what was written is not written again"
    feed.close()
