"""A task of a sink of several groups, in a process of its own, which is killed at a place in it."""

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

from floodmark.sinks import Batch, GroupLayout, GroupResult, GroupWriter, OutRow, TargetOptions, group_of, partition_of
from floodmark.sinks.startup import SourceBounds
from support import processes
from support.sinks.sink_places import START, Spot, batch, place

OPTIONS = TargetOptions(timeout=10.0)
TWO = GroupLayout(partitions=4, groups=2)
PLACES: list[Spot] = [START, (1, 10), (2, 20), (3, 30), (4, 40)]


def everything(sources: Any) -> dict[str, SourceBounds]:
    """Return bounds that hold all rows."""
    return {source: SourceBounds(0, 0, 10**9) for source in sources}


def numbered(number: int, *, stateful: bool = False, query_id: str = "q1") -> Batch:
    """Return the batch of a number, from 1 on."""
    return batch(place(S=PLACES[number - 1]), place(S=PLACES[number]), stateful=stateful, query_id=query_id)


def work(writer: GroupWriter, given: Batch, hook: Any = lambda place: None) -> GroupResult:
    """Write the rows of a group, as a task does."""
    return writer.write(lambda _: rows_for(writer, given), given, failpoint=hook)


def rows_for(writer: GroupWriter, given: Batch) -> list[list[OutRow]]:
    """Return the rows of a group, in pieces of two."""
    layout = writer.base.layout
    assert layout is not None
    first, last = given.starts["S"].cut.get(0, 0), given.ends["S"].cut[0]
    found: list[OutRow] = []
    for number in range(first, last):
        partition = partition_of(b"k%d" % number, layout.partitions)
        if group_of(partition, layout) == writer.group:
            found.append((b"k%d" % number, b"%d" % number, number // 10 + 1, partition, None))
    return [found[start : start + 2] for start in range(0, len(found), 2)]


def work_and_die(directory: Path, writer: GroupWriter, given: Batch, failpoint: str) -> int:
    """Let a process write for a group, and be killed; return how it ended."""
    task = directory / "task"
    task.write_bytes(pickle.dumps((writer, given, failpoint)))
    return processes.run(__spec__.name, str(task))[0]


if __name__ == "__main__":
    writer, given, failpoint = pickle.loads(Path(sys.argv[1]).read_bytes())

    def die(reached: str) -> None:
        if reached == failpoint:
            # Let what was sent arrive.
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

    writer.write(lambda _: rows_for(writer, given), given, failpoint=die)
