"""What the processes of the tests of readers do. Some of them are killed; what they did is in files."""

import json
import os
import time
from pathlib import Path
from typing import Any

from floodmark.streams import connect


def say(file: Any, what: str, place: list[Any]) -> None:
    """Write a line that is there even if this process is killed in the next moment."""
    file.write(json.dumps([what, *place]) + "\n")
    file.flush()


def read_on(location: str, name: str, directory: str, pause: float) -> None:
    """Read until the group is finished, and keep a diary: what was read, and what was acknowledged for certain."""
    with (
        connect(location, controller=False) as home,
        open(Path(directory) / f"{name}-{os.getpid()}", "a", encoding="utf-8") as diary,
        home.group("g").reader(name, ttl="3 seconds", max_rows=40) as reader,
    ):
        for batch in reader:
            place = [batch.segment, batch.first, batch.end]
            say(diary, "read", [*place, [json.loads(row["payload"]) for row in batch.batch.to_pylist()]])
            time.sleep(pause)
            reader.acknowledge()
            say(diary, "acknowledged", place)


def diaries(directory: Path) -> dict[str, list[list[Any]]]:
    return {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in directory.iterdir()}
