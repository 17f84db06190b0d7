"""A run from its plan to its end: rows in parallel, each failing for itself, under a lease that is kept alive."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Event, Thread
from time import perf_counter_ns
from typing import Final
from urllib.parse import unquote

from floodmark.errors import FloodmarkError, InvalidOption, LeaseLost
from floodmark.ingest._executor import Executor, Landed
from floodmark.ingest._fit import check_fit
from floodmark.ingest._ingestion import Ingestion
from floodmark.ingest._job import Job
from floodmark.ingest._rest_spec import RestSource
from floodmark.ingest._row import Row
from floodmark.ingest._run import LEASE_TTL, Outcome, Run
from floodmark.ingest._source_spec import FilesSource, SqlSource
from floodmark.ingest._spec_checks import secrets_in
from floodmark.ingest._target_spec import Landing

_SHORTEST_SECRET: Final = 4
"""Shorter ones are not looked for in errors: they would blot out words."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has done."""

    job: str
    run: int
    planned: int
    succeeded: int
    failed: int
    rows: int
    """Rows that were landed, as far as the executor has counted them."""
    errors: tuple[str, ...]
    """The first few of what went wrong, each once."""

    @property
    def is_whole(self) -> bool:
        """Whether all that was planned has succeeded."""
        return self.succeeded == self.planned


@dataclass(slots=True)
class _Tally:
    succeeded: int = 0
    failed: int = 0
    rows: int = 0
    errors: tuple[str, ...] = ()


def check_runnable(job: Job) -> None:
    """Refuse a job that does not say where rows come from and where they go; it can only be planned."""
    for name, kinds in (("source", (SqlSource, FilesSource, RestSource)), ("target", (Landing,))):
        if not isinstance(getattr(job, name), kinds):
            raise InvalidOption(
                f"The job {job.name!r} names no {name}.",
                rule="A job that is run says where rows come from and where they go.",
                remedy=f"Add [{name}] to its file. A properties file has none: write it as TOML (job_text does).",
                job=job.name,
                option=name,
            )
    check_fit(job)


def run_job(
    jobs: Ingestion,
    job: Job,
    executor: Executor,
    *,
    owner: str,
    workers: int = 8,
    ttl: int = LEASE_TTL,
    on_row: Callable[[Run, Outcome], None] | None = None,
) -> RunResult:
    """Plan a job, and extract and land what is due; a row that fails fails alone, and the others go on.

    `on_row` is told of each row when it is recorded, and what became of it. If the run is overtaken, `LeaseLost` is
    raised: what was recorded stays, and nothing more is.
    """
    if workers < 1:
        raise InvalidOption(
            f"There are {workers} workers.", rule="There is at least one.", remedy="Give 1 or more.", option="workers"
        )
    tally = _Tally()
    with jobs.start(job, owner=owner, ttl=ttl) as run:
        with _kept_alive(run, ttl):
            executor.prepare(run)
            for row, landed, error, took in _landed(run, executor, workers):
                if error is None:
                    run.succeeded(row, rows=landed.rows, took=took, lateness=landed.lateness)
                elif not run.failed(row, error, took=took):
                    error = None  # noqa: PLW2901 - it was landed all the same
                if error is None:
                    tally.succeeded += 1
                    tally.rows += landed.rows or 0
                else:
                    tally.failed += 1
                    if error not in tally.errors and len(tally.errors) < 5:
                        tally.errors += (error,)
                if on_row is not None:
                    on_row(run, Outcome(row, error, landed.rows, took, landed.lateness))
            executor.finish(run)
        planned = len(run.plan.rows)
    return RunResult(job.name, run.number, planned, tally.succeeded, tally.failed, tally.rows, tally.errors)


def _landed(run: Run, executor: Executor, workers: int) -> Iterator[tuple[Row, Landed, str | None, int]]:
    """Give each row as it is done. No more rows are begun than there are workers."""
    rest = iter(run.plan.rows)
    with ThreadPoolExecutor(workers, "floodmark-ingest") as pool:
        open_: set[Future[tuple[Row, Landed, str | None, int]]] = set()
        while True:
            open_ |= {pool.submit(_land, run, executor, row) for row in islice(rest, workers - len(open_))}
            if not open_:
                return
            done, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()


def _land(run: Run, executor: Executor, row: Row) -> tuple[Row, Landed, str | None, int]:
    begun = perf_counter_ns()
    landed, said = Landed(), None
    try:
        landed = executor.land(run, row)
    except Exception as error:
        said = without_secrets(_words(error), run.job)
    return row, landed, said, (perf_counter_ns() - begun) // 1000


def without_secrets(text: str, job: Job) -> str:
    """Return a text without the secrets that a job refers to: drivers and servers repeat what they were given."""
    known = [job.source, job.target, None if job.units is None else job.units.secondary]
    for secret in secrets_in(known):
        try:
            value = secret.value()
        except FloodmarkError:
            continue
        for one in (value, *_passwords(value)):
            if len(one) >= _SHORTEST_SECRET:
                text = text.replace(one, "***")
    return text


def _passwords(url: str) -> Iterator[str]:
    """Give the password of a URL, as it is written there and as it is meant.

    >>> list(_passwords("postgresql://ann:p%40ss@db/shop"))
    ['p%40ss', 'p@ss']
    """
    if "://" in url:
        written = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
        yield from (written, unquote(written)) if written else ()


def _words(error: Exception) -> str:
    said = str(error).strip()
    if isinstance(error, FloodmarkError):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def _kept_alive(run: Run, ttl: int) -> Iterator[None]:
    """Renew the lease in the background. If it is lost all the same, the next row that is recorded says so."""
    ended = Event()

    def renew() -> None:
        while not ended.wait(ttl / 3e6):
            try:
                run.renew()
            except LeaseLost:
                return
            except FloodmarkError:
                continue  # the home is busy or away: there is time for another try

    thread = Thread(target=renew, name="floodmark-ingest-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
