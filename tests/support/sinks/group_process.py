"""A task of a sink of several groups, in a process of its own, which is killed at a place in it."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

from floodmark.sinks import Batch, GroupWriter, OutRow, group_of, partition_of


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


def work_and_die(directory: Path, writer: GroupWriter, given: Batch, place: str) -> int:
    """Let a process write for a group, and be killed; return how it ended."""
    task = directory / "task"
    task.write_bytes(pickle.dumps((writer, given, place)))
    return subprocess.run([sys.executable, __file__, str(task)], timeout=60, check=False).returncode


if __name__ == "__main__":
    writer, given, place = pickle.loads(Path(sys.argv[1]).read_bytes())

    def die(reached: str) -> None:
        if reached == place:
            # Let what was sent arrive.
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

    writer.write(lambda _: rows_for(writer, given), given, failpoint=die)
