"""No secret of a job is in a plan, an output, a log, an error or the home, also if the service repeats it."""

import json
import logging
from pathlib import Path

import pytest

from floodmark.cli import ingest as _ingest
from floodmark.cli import main
from floodmark.control import Home
from floodmark.errors import FloodmarkError
from floodmark.ingest import Job, LandingResult, PlannedRange, RestSource, Run
from floodmark.ingest.extract.rest.split import rest_splits
from floodmark.kafka import KafkaSettings
from support.ingest.rest_server import Asked, Says, rest_service
from support.secrets import SecretScanner

NOW = 1_577_836_800_000_000 + 3 * 86_400_000_000
"""2020-01-04 UTC."""

JOB = """\
[job]
name = "orders"
zone = "UTC"
[time]
from = 2020-01-01
to = 2020-01-04
grid = "daily"
[source]
kind = "rest"
url = "{url}/orders"
params = {{ since = "{{{{range.from}}}}" }}
[source.auth]
{auth}
secret = "env:SHOP_SECRET"
[target]
path = "landed"
mode = "append"
[limits]
attempts = 2
"""
AUTH = {
    "bearer": 'by = "bearer"',
    "basic": 'by = "basic"\nuser = "ann"',
    "header": 'by = "header"\nname = "X-Key"',
    "query": 'by = "query"\nname = "api_key"',
}


class ReadingExecutor:
    """Reads the ranges of a job from its service, and lands nothing."""

    def __init__(self, job: Job) -> None:
        assert isinstance(job.source, RestSource)
        self._source, self._zone = job.source, job.zone

    def prepare(self, run: Run) -> None:
        """Do nothing."""

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        (part,) = rest_splits(self._source, self._zone, row)
        return LandingResult(sum(batch.num_rows for batch in part.read()))

    def finish(self, run: Run) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("by", AUTH)
def test_no_secret_of_a_rest_job_is_shown(
    by: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    scanner = SecretScanner()
    secret = scanner.add('p@ss/w"ord+1')
    monkeypatch.setenv("SHOP_SECRET", secret)
    # In place of Spark, which has tests of its own.
    monkeypatch.setattr(_ingest, "_executor", lambda job, home, workers: ReadingExecutor(job))

    def answer(asked: Asked) -> Says:
        if "2020-01-02" in asked.query["since"]:
            # A service that repeats in its error all that it was sent.
            return Says({"error": dict(asked.headers), "query": asked.query, "again": secret}, status=400)
        return Says([{"id": 1}])

    with rest_service(answer) as service:
        (tmp_path / "orders.toml").write_text(JOB.format(url=service.url, auth=AUTH[by]))
        options = [str(tmp_path / "orders.toml"), "--home", str(tmp_path / "home")]
        codes = {
            " ".join((action, *more)): main(["ingest", action, *options, *more], now=NOW)
            for action, *more in (
                ("plan", "--json"), ("run",), ("run", "--json"), ("plan",), ("status", "--json"), ("status",),
                ("history", "--json"), ("history", "--events", "--json"), ("history", "--run", "1", "--json"),
                ("gaps", "--json"),
            )
        }  # fmt: skip
        assert service.asked
    assert codes["history --json"] == codes["plan --json"] == 0, codes
    printed = capsys.readouterr()
    assert "400" in printed.out + printed.err
    scanner.check("the output of commands", printed.out, printed.err)
    scanner.check("the log", caplog.text)
    scanner.check_files(tmp_path / "home")


def test_no_error_of_a_home_or_a_broker_shows_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    scanner = SecretScanner("hunter2/hunter2")
    url = "postgresql://ann:hunter2%2Fhunter2@127.0.0.1:1/shop"
    for opening in (Home.open, Home.open_existing):
        with pytest.raises(FloodmarkError) as refusal:
            opening(url)
        scanner.check("an error of a home", refusal.value)
    settings = KafkaSettings.of("127.0.0.1:1", {"kafka.sasl.username": "ann", "kafka.sasl.password": "hunter2/hunter2"})
    scanner.check("settings of a broker", settings)
    scanner.check("the log", caplog.text)


@pytest.mark.parametrize(
    "shown",
    ["a hunter2hunter2 b", b"hunter2hunter2".hex(), "aHVudGVyMmh1bnRlcjI=", "YW5uOmh1bnRlcjJodW50ZXIy",
     json.dumps({"a": "hunter2hunter2"}), "hunter2hunter2".encode("utf-16-le"), ValueError("hunter2hunter2"),
     f"fmk_{'0' * 12}_{'5' * 64}"],
    ids=["plain", "hex", "base64", "basic", "json", "utf-16", "error", "token"],
)  # fmt: skip
def test_the_scanner_finds_what_it_looks_for(shown: object) -> None:
    scanner = SecretScanner("hunter2hunter2")
    scanner.check("nothing", "hunter2", "hunter3hunter3", b"")
    with pytest.raises(AssertionError, match=r"an answer shows (the secret number 1|a token): ") as refusal:
        scanner.check("an answer", shown)
    assert "hunter2hunter2" not in str(refusal.value)
