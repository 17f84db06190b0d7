"""Python workers of Spark that are forks of a process which has imported everything already.

`python -m support.spark.warm_workers SOCKET` is that process. It forks once for each connection, and ends with its
parent.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

MODULES = (
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "floodmark.spark",
    "floodmark.spark.ingest.tasks",
    "floodmark.spark.sink.batch_sink",
    "floodmark.spark.source.stream_reader",
    "floodmark.spark.source.topic_reader",
    "floodmark.spark.watermark.mark_source",
)
_STANDARD_STREAMS = 3


def preload() -> None:
    """Import what workers need."""
    import gc
    import importlib

    # Threads would not be there after a fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()


@contextmanager
def warm_workers() -> Iterator[dict[str, str]]:
    """Run the process that forks, and give the environment of a JVM that is to use it."""
    with tempfile.TemporaryDirectory(prefix="workers") as directory:
        path = str(Path(directory) / "socket")
        command = [sys.executable, "-m", "support.spark.warm_workers", path]
        # It ends when this pipe does, also if this process is killed.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            yield {"WARM_WORKERS": path}
            server.kill()


def run_in_fork(path: str) -> NoReturn:
    """Let a fork run instead of this process, and end as it does."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    request = json.dumps({"environment": dict(os.environ), "directory": os.getcwd()}).encode()
    socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(request)
    worker = int.from_bytes(connection.recv(4), "big")
    signal.signal(signal.SIGTERM, lambda *_: os.kill(worker, signal.SIGTERM))
    status = connection.recv(1)
    os._exit(status[0] if status else 1)


def serve(path: str) -> None:
    """Fork for each connection, until standard input ends."""
    import select

    preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([0, listener.fileno()], [], [])
        if 0 in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _work(connection)
        connection.close()


def _work(connection: socket.socket) -> NoReturn:
    """Be the worker that another process was to be."""
    status = 1
    try:
        head, streams, _, _ = socket.recv_fds(connection, 4, _STANDARD_STREAMS)
        request = json.loads(_receive(connection, int.from_bytes(head, "big")))
        connection.sendall(os.getpid().to_bytes(4, "big"))
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        _run_source()
        status = 0
    except SystemExit as exit_:
        status = exit_.code & 0xFF if isinstance(exit_.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([status]))
        os._exit(status)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        received += connection.recv(size - len(received))
    return received


def _run_source() -> None:
    from pyspark.sql.streaming.python_streaming_source_runner import main
    from pyspark.worker_util import get_sock_file_to_executor

    with get_sock_file_to_executor(timeout=None) as file:
        main(file, file)


if __name__ == "__main__":
    serve(sys.argv[1])
