"""Runs queries that write exactly once, kills them, changes what is around them, and compares what was written.

`python sink_rounds.py --seconds 240` kills drivers, tasks and the broker at random until the time is over; `make chaos`
does that.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from floodmark.sinks.target import FAILPOINTS
from floodmark.testing import KafkaBroker
from support.spark import SCRIPTS
from support.spark.sink_shop import KINDS, Shop, found

DRIVER = SCRIPTS / "sink_driver.py"


class Rounds:
    """Queries over a shop, in drivers that are started again and again."""

    def __init__(self, directory: Path, servers: str, prefix: str, *, kinds: tuple[str, ...] = KINDS, seed: int = 0):
        self.directory, self.servers, self.prefix, self.kinds = directory, servers, prefix, kinds
        self.shop = Shop(directory, seed)
        self.checkpoints = directory / "checkpoints"

    def start(self, **settings: Any) -> "subprocess.Popen[str]":
        """Start a driver; it ends when all is written, or is killed."""
        given = {
            "home": str(self.shop.home),
            "checkpoints": str(self.checkpoints),
            "servers": self.servers,
            "prefix": self.prefix,
            "kinds": self.kinds,
            **settings,
        }
        # A file, since nobody reads a pipe while the driver runs.
        with (self.directory / "driver.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(given)],
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def run(self, seconds: float = 150, **settings: Any) -> int:
        """Run a driver to its end, and whatever it has started, and return how it ended."""
        process = self.start(**settings)
        try:
            return process.wait(timeout=seconds)
        finally:
            end_group(process)

    def said(self) -> str:
        """Return what the last driver has said."""
        return (self.directory / "driver.log").read_text()[-4_000:]

    def keep(self) -> None:
        """Keep the checkpoints as they are, to go back to them later."""
        kept = self.directory / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        if self.checkpoints.exists():
            shutil.copytree(self.checkpoints, kept)

    def go_back(self, kind: str) -> None:
        """Restore the older checkpoint of a query."""
        kept = self.directory / "kept" / kind
        if kept.exists():
            shutil.rmtree(self.checkpoints / kind, ignore_errors=True)
            shutil.copytree(kept, self.checkpoints / kind)

    def forget(self, kind: str) -> None:
        """Delete the checkpoint of a query."""
        shutil.rmtree(self.checkpoints / kind, ignore_errors=True)

    def problems(self) -> list[str]:
        """Return what is lost, doubled or should not be there, by query."""
        told = []
        for kind in self.kinds:
            wanted, got = self.shop.wanted(kind), found(self.servers, self.prefix + kind, kind)
            if wanted != got:
                told.append(f"{kind}: lost {dict(wanted - got)}, too many {dict(got - wanted)}")
        return told

    def too_many(self) -> list[str]:
        """Return what was doubled so far, while not all is written."""
        every = {kind: found(self.servers, self.prefix + kind, kind) for kind in self.kinds}
        return [f"{kind}: {dict(extra)}" for kind, got in every.items() if (extra := got - self.shop.wanted(kind))]

    def rows(self) -> int:
        """Return how many rows are in the topics."""
        return sum(found(self.servers, self.prefix + kind, kind).total() for kind in self.kinds)


def end_group(process: "subprocess.Popen[str]") -> None:
    """End a driver and the processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def disturb(rounds: Rounds, chance: random.Random) -> dict[str, Any]:
    """Change something between two drivers, and return the settings of the next."""
    for kind in rounds.kinds:
        what = chance.random()
        if what < 0.15:
            rounds.forget(kind)
        elif what < 0.3:
            rounds.go_back(kind)
    if chance.random() < 0.3:
        rounds.keep()
    return {"max_rows": chance.choice([None, 7, 23, 100])}


def chaos(seconds: float, seed: int, *, parallel: bool) -> Counter[str]:
    """Kill drivers, tasks and the broker at random for so long, and return how often what was done."""
    chance, done = random.Random(seed), Counter[str]()
    give_up = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place, KafkaBroker() as broker:
        rounds = Rounds(Path(place), broker.servers, "out-", seed=seed)
        while time.monotonic() < give_up:
            rounds.shop.trade()
            settings = disturb(rounds, chance) | {"parallel": parallel}
            what = chance.choice(["failpoint", "failpoint", "driver", "task", "broker"])
            if what == "failpoint":
                settings["kill"] = (chance.choice(FAILPOINTS), chance.choice(KINDS), chance.randint(1, 2))
            process = rounds.start(**settings)
            try:
                if what != "failpoint":
                    time.sleep(chance.uniform(4, 12))
                    _strike(what, process, broker, chance)
                process.wait(timeout=120)
            finally:
                end_group(process)
            done[what] += 1
            done["ended well"] += process.returncode == 0
            if extra := rounds.too_many():
                raise AssertionError(f"seed {seed}, after {dict(done)}: doubled {extra}")
        code = rounds.run(300, parallel=parallel)
        problems = rounds.problems()
        if code or problems:
            raise AssertionError(f"seed {seed}, after {dict(done)}: {problems} {rounds.said() if code else ''}")
        done["rows"] = rounds.rows()
        rounds.shop.close()
    return done


def _strike(what: str, process: "subprocess.Popen[str]", broker: KafkaBroker, chance: random.Random) -> None:
    if what == "broker":
        broker.kill()
        time.sleep(chance.uniform(0, 2))
        broker.start()
    elif what == "driver":
        os.kill(process.pid, signal.SIGKILL)
    else:
        workers = _workers(process.pid)
        if workers:
            os.kill(chance.choice(workers), signal.SIGKILL)


def _workers(group: int) -> list[int]:
    """Return the processes that run Python for Spark in a driver's group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != group:
            try:
                is_of_group = os.getpgid(int(entry.name)) == group
                command = (entry / "cmdline").read_bytes()
            except (ProcessLookupError, FileNotFoundError):
                continue
            if is_of_group and b"pyspark" in command and b"java" not in command:
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--parallel", action="store_true", help="let tasks write where they can")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    print(dict(chaos(given.seconds, given.seed, parallel=given.parallel)), "- nothing lost, nothing doubled")
