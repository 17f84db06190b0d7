"""Under which watermark a batch judges its rows: for all its tasks, and when it runs again."""

from dataclasses import replace

import pytest

from floodmark.control import BatchWatermarks, Home, Queries, QueryBatch, QueryRecord
from floodmark.errors import AmbiguousQuery, FloodmarkError

BATCH = QueryBatch("q1", "run-1", 7, "frame-1", "t")
AFTER_RESTART = replace(BATCH, run_id="run-2", frame="frame-2")


@pytest.fixture
def watermarks(home: Home) -> BatchWatermarks:
    return BatchWatermarks(home)


def started(home: Home, query_id: str, incarnation: str) -> None:
    record = QueryRecord(query_id, "run-1", None, 3, ((incarnation, 3, "t"),), None, "running", None, (), 0, 1)
    Queries(home).record(record)


def test_without_any_word_there_is_no_watermark(watermarks: BatchWatermarks) -> None:
    assert watermarks.of(BATCH) is None


def test_all_tasks_of_a_batch_get_what_holds_before_it(watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    assert [watermarks.of(BATCH), watermarks.of(BATCH)] == [50, 50]
    watermarks.set_frame("frame-1", "a", before=60, after=60, now=1)
    assert watermarks.of(replace(BATCH, batch_id=8)) == 60


def test_after_a_restart_a_batch_in_which_time_stood_still_has_the_watermark_it_had(
    watermarks: BatchWatermarks,
) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    watermarks.of(BATCH)
    assert watermarks.of(AFTER_RESTART) == 50, "it had begun before the crash"
    assert watermarks.of(replace(AFTER_RESTART, run_id="run-3", frame="frame-3")) == 50, "and again"


def test_after_a_restart_a_batch_that_had_not_begun_goes_on_where_the_last_one_ended(
    watermarks: BatchWatermarks,
) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    watermarks.of(BATCH)
    assert watermarks.of(replace(AFTER_RESTART, batch_id=8)) == 60


def test_what_the_mark_source_says_wins_over_what_was_remembered(watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    watermarks.of(BATCH)
    watermarks.set_frame("frame-2", "b", before=40, after=45, now=1)
    assert watermarks.of(AFTER_RESTART) == 40


def test_of_two_frames_on_one_column_the_slower_one_is_remembered(watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    watermarks.set_frame("frame-9", "b", before=30, after=35, now=0)
    watermarks.of(BATCH)
    watermarks.of(replace(BATCH, frame="frame-9"))
    assert watermarks.of(AFTER_RESTART) == 30


def test_a_frame_that_had_not_asked_yet_in_the_batch_counts_with_what_came_before(watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-9", "b", before=30, after=35, now=0)
    watermarks.of(replace(BATCH, frame="frame-9", batch_id=6))
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=1)
    watermarks.of(BATCH)
    assert watermarks.of(AFTER_RESTART) == 35


def test_another_query_or_column_is_not_taken_for_this_one(watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    watermarks.of(BATCH)
    assert watermarks.of(replace(AFTER_RESTART, query_id="q2")) is None
    assert watermarks.of(replace(AFTER_RESTART, column="u")) is None


def test_a_far_older_batch_is_not_taken_for_the_last_one(watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    watermarks.of(BATCH)
    assert watermarks.of(replace(AFTER_RESTART, batch_id=9)) is None


def test_queries_from_one_frame_have_their_own_once_they_are_known(home: Home, watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-1", "a", before=50, after=60, now=0)
    watermarks.set_frame("frame-1", "b", before=20, after=25, now=0)
    with pytest.raises(AmbiguousQuery, match="once for each query"):
        watermarks.of(BATCH)
    started(home, "q2", "b")
    assert watermarks.of(BATCH) == 50, "the other one belongs to somebody else"
    started(home, "q1", "a")
    assert watermarks.of(BATCH) == 50
    assert watermarks.of(replace(BATCH, query_id="q2")) == 20


def test_what_was_left_is_not_followed(watermarks: BatchWatermarks) -> None:
    watermarks.set_frame("frame-1", "old", before=50, after=60, now=0)
    watermarks.set_frame("frame-1", "new", before=20, after=25, now=0)
    watermarks.remove_frame("frame-1", "old")
    assert watermarks.of(BATCH) == 20


def test_what_cannot_be_is_refused(watermarks: BatchWatermarks) -> None:
    with pytest.raises(FloodmarkError):
        watermarks.set_frame("", "a", 1, 2, 0)
    with pytest.raises(FloodmarkError):
        watermarks.set_frame("f", "a", 2**63 - 1, None, 0)
    with pytest.raises(FloodmarkError):
        watermarks.of(replace(BATCH, batch_id=-1))
