"""Sinks that close batches by records: whoever is killed or stopped, and wherever, each row counts once."""

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from floodmark.control import Home
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.sinks import Progress, Sinks
from floodmark.sinks.manifest.files import read_manifests
from floodmark.sinks.manifest.target import Manifest
from floodmark.sinks.manifest.topic import TASK_HEADER, closed_tasks
from floodmark.sinks.target import BEFORE_BEGIN, COMMITTED, FENCED, HOLD_ADVANCED, ROWS_FLUSHED, STARTED
from floodmark.testing import KafkaBroker
from support.sinks.closing_process import BATCHES, HALF_WRITTEN, Job, Processes, log_of, put
from support.sinks.sink_process import BEFORE_COMMIT_LOG, ROWS, bind

KILLED = -signal.SIGKILL
FENCED_OFF = "sink-fenced"


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.close()


@pytest.fixture(params=["delta", "file", "topic"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    place = str(tmp_path / "rows")
    if request.param == "topic":
        broker: KafkaBroker = request.getfixturevalue("broker")
        place = f"{broker.servers}/{request.getfixturevalue('topic_name')}"
    with Home.open(tmp_path / "home") as home:
        bind(home)
    return Job(request.param, str(tmp_path / "home"), place)


def read(job: Job) -> Counter[int]:
    """Return the rows that count, as a reader sees them who knows the format and nothing of this code."""
    if job.kind == "delta":
        if not Path(job.place, "_delta_log").exists():
            return Counter()
        files = DeltaTable(job.place).file_uris()
        return Counter(ds.dataset(files).to_table()["n"].to_pylist() if files else [])
    if job.kind == "file":
        files = [f"{job.place}/{part.name}" for record in read_manifests(Path(job.place)) for part in record.parts]
        return Counter(ds.dataset(files).to_table()["n"].to_pylist() if files else [])
    servers, _, topic = job.place.partition("/")
    settings = KafkaSettings.of(servers)
    if KafkaCluster(settings).find_topic(topic) is None:
        return Counter()
    tasks = closed_tasks(settings, f"{topic}.progress")
    return Counter(number for task, number in sent(job) if task in tasks)


def sent(job: Job) -> list[tuple[str, int]]:
    """Return all rows of a topic, with the names of the tasks that have sent them."""
    servers, _, topic = job.place.partition("/")
    settings = KafkaSettings.of(servers)
    cluster, fetcher = KafkaCluster(settings), Fetcher(settings)
    parts = range(cluster.topic(topic).partitions)
    starts, ends = cluster.starts(topic, parts), cluster.ends(topic, parts)
    try:
        found = [
            (dict(record.headers())[TASK_HEADER].decode(), int(record.value()))
            for part in parts
            for piece in fetcher.read(topic, part, starts[part], ends[part])
            for record in piece
        ]
    finally:
        fetcher.close()
    return found


def known(job: Job) -> Progress | None:
    with Home.open_existing(job.home) as home:
        return Sinks(home).get("K").progress


def code_of(job: Job) -> str:
    return Path(job.home, "error").read_text()


@pytest.mark.parametrize(
    ("place", "visible"),
    [
        pytest.param(FENCED, 0, marks=pytest.mark.full),
        (STARTED, 0),
        pytest.param(BEFORE_BEGIN, 2, marks=pytest.mark.full),
        (HALF_WRITTEN, 2),
        (ROWS_FLUSHED, 2),
        (COMMITTED, 3),
        pytest.param(HOLD_ADVANCED, 3, marks=pytest.mark.full),
        pytest.param(BEFORE_COMMIT_LOG, 3, marks=pytest.mark.full),
    ],
)
def test_a_process_killed_at_any_step_leaves_whole_batches_and_the_next_one_writes_the_rest(
    job: Job, processes: Processes, place: str, visible: int
) -> None:
    die_in = -1 if not visible else 2
    assert processes.run(replace(job, die_at=place, die_in=die_in)) == [KILLED]
    assert read(job) == Counter(range(visible * ROWS))
    # The next one has the checkpoint, and dies in the same way; the last one begins without any.
    codes = processes.run(replace(job, die_at=place, die_in=die_in), replace(job, query_id="q2"))
    assert codes[1:] == [0]
    assert read(job) == Counter(range(BATCHES * ROWS))
    progress = known(job)
    assert progress is not None
    assert (progress.total, progress.rows) == (BATCHES * ROWS, ROWS)
    assert progress.marks["at"].time == BATCHES * 100


@pytest.mark.parametrize(
    "place",
    [
        STARTED,
        pytest.param(BEFORE_BEGIN, marks=pytest.mark.full),
        pytest.param(HALF_WRITTEN, marks=pytest.mark.full),
        ROWS_FLUSHED,
    ],
)
def test_a_process_that_was_stopped_closes_nothing_after_another_has_started(
    job: Job, processes: Processes, place: str
) -> None:
    die_in = -1 if place == STARTED else 1
    zombie = replace(job, die_at=place, die_in=die_in, by="stop")
    assert processes.run(zombie, replace(job, until=3)) == [3, 0]
    assert code_of(job) == FENCED_OFF
    assert read(job) == Counter(range(3 * ROWS))
    assert processes.run(job) == [0]
    assert read(job) == Counter(range(BATCHES * ROWS))


def test_whoever_only_starts_fences_the_one_before(job: Job, processes: Processes) -> None:
    zombie = replace(job, die_at=ROWS_FLUSHED, die_in=0, by="stop")
    assert processes.run(zombie, replace(job, until=0)) == [3, 0]
    assert (code_of(job), read(job)) == (FENCED_OFF, Counter())


def test_what_a_killed_attempt_has_left_is_removed_and_nothing_else(job: Job, processes: Processes) -> None:
    if job.kind == "topic":
        pytest.skip("Kafka's own retention removes it")
    processes.run(replace(job, die_at=ROWS_FLUSHED, die_in=2))
    before = set(Path(job.place).rglob("*.parquet"))
    processes.run(replace(job, until=2))
    after = set(Path(job.place).rglob("*.parquet"))
    assert (len(before), len(after), read(job)) == (6, 4, Counter(range(2 * ROWS)))


def test_an_attempt_that_was_closed_stays_when_starts_after_it_are_killed(job: Job, processes: Processes) -> None:
    """Its note is still there, and the record of the start that was killed is newer than that which closed it."""
    codes = processes.run(
        replace(job, die_at=COMMITTED, die_in=1), replace(job, die_at=FENCED), replace(job, die_at=FENCED), job
    )
    assert codes == [KILLED, KILLED, KILLED, 0]
    assert read(job) == Counter(range(BATCHES * ROWS))


def test_whoever_comes_late_to_clean_leaves_what_others_write_who_started_since(job: Job) -> None:
    slow, other = log_of(job.kind, job.place), log_of(job.kind, job.place)
    slow.create()
    records = []
    for number, log in enumerate((slow, other)):
        log.open()
        records.append((log.newest() or Manifest("K", 0, "")).fence(f"start{number}"))
        assert log.add(records[-1])
    attempt = "a1"
    parts = tuple(put(job.kind, other, attempt, range(ROWS)))
    slow.clean(records[0])
    assert other.add(Manifest("K", records[1].number + 1, "close", attempt, parts))
    assert read(job) == Counter(range(ROWS))


def test_rows_of_others_are_not_appended_to_unless_asked(job: Job, processes: Processes) -> None:
    _begin_as_another(job)
    assert processes.run(job) == [3]
    assert code_of(job) == "sink-progress-missing"
    assert read(job) == Counter([-1, -2])
    assert processes.run(replace(job, append=True, die_at=ROWS_FLUSHED, die_in=0), job) == [KILLED, 0]
    assert read(job) == Counter([-1, -2, *range(BATCHES * ROWS)])


def _begin_as_another(job: Job) -> None:
    log: Any = log_of(job.kind, job.place, "other")
    log.create()
    log.open()
    assert log.newest() is None
    parts = tuple(put(job.kind, log, "ab12", [-1, -2]))
    assert log.add(Manifest("other", 1, "t", "ab12", parts))
    log.close()


def test_a_record_that_does_not_follow_the_last_one_is_not_added(job: Job) -> None:
    log = log_of(job.kind, job.place)
    log.create()
    log.open()
    assert log.newest() is None
    assert [log.add(Manifest("K", number, str(number))) for number in (2, 1, 1, 3, 2)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    newest = log.newest()
    assert newest is not None
    assert newest.number == 2
    log.close()


def test_an_older_version_of_the_program_does_not_start(job: Job, processes: Processes) -> None:
    assert processes.run(replace(job, version=2, until=1), job) == [0, 3]
    assert code_of(job) == "sink-version-old"


def test_a_target_that_was_deleted_is_not_begun_anew_in_silence(job: Job, processes: Processes) -> None:
    if job.kind == "topic":
        pytest.skip("see the tests of topics with transactions")
    assert processes.run(replace(job, until=2)) == [0]
    moved = Path(job.place).rename(f"{job.place}-moved")
    assert processes.run(job) == [3]
    assert code_of(job) == "sink-topic-missing"
    assert not Path(job.place).exists()
    # With its rows back it goes on.
    moved.rename(job.place)
    assert processes.run(job) == [0]
    assert read(job) == Counter(range(BATCHES * ROWS))
    with Home.open_existing(job.home) as home:
        Sinks(home).drop("K")


def test_an_older_copy_of_the_target_is_refused(job: Job, processes: Processes, tmp_path: Path) -> None:
    import shutil

    if job.kind == "topic":
        pytest.skip("nobody can copy a topic with its id")
    assert processes.run(replace(job, until=2)) == [0]
    shutil.copytree(job.place, tmp_path / "older")
    assert processes.run(replace(job, until=3)) == [0]
    shutil.rmtree(job.place)
    (tmp_path / "older").rename(job.place)
    assert processes.run(job) == [3]
    assert code_of(job) == "sink-progress-invalid"


def test_a_query_with_state_that_begins_anew_adopts_what_was_written(job: Job, processes: Processes) -> None:
    with_state = replace(job, stateful=True)
    assert processes.run(replace(with_state, until=2), replace(with_state, query_id="q2")) == [0, 0]
    assert read(job) == Counter(range(BATCHES * ROWS))
    progress = known(job)
    assert progress is not None
    assert (progress.query_id, progress.total) == ("q2", BATCHES * ROWS)
