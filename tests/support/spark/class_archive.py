"""An archive of the classes that Spark loads: a JVM that has it starts in about half of the time.

`python -m support.spark.class_archive FILE` runs some small queries, and writes the classes that they needed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

from pyspark import SparkContext
from pyspark import __version__ as SPARK

_BUILD = Path(__file__).parents[3] / "build"


def archive_path() -> Path:
    """Return where the archive for this Spark and this Java is, or would be."""
    home = os.environ.get("JAVA_HOME")
    java = Path(f"{home}/bin/java" if home else shutil.which("java") or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    return _BUILD / f"spark-{SPARK}-{crc32(f'{java} {changed}'.encode()):08x}.jsa"


def archive_option() -> str:
    """Return the Java option that uses the archive, if there is one; a JVM that it does not fit ignores it."""
    path = archive_path()
    return f" -XX:SharedArchiveFile={path}" if path.exists() else ""


def make_archive() -> None:
    """Write the archive, unless there is one or another process is writing it."""
    lock = archive_path().with_suffix(".lock")
    _BUILD.mkdir(exist_ok=True)
    if archive_path().exists() or _is_taken(lock):
        return
    try:
        with tempfile.TemporaryDirectory(dir=_BUILD) as directory:
            written = Path(directory) / "classes.jsa"
            command = [sys.executable, "-m", "support.spark.class_archive", str(written)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=directory)
            # Without the archive the tests only take longer.
            if done.returncode == 0 and written.exists():
                written.replace(archive_path())
    finally:
        lock.rmdir()


def _is_taken(lock: Path) -> bool:
    try:
        lock.mkdir()
    except FileExistsError:
        return True
    return False


def main(file: Path) -> None:
    """Run queries of all kinds in a JVM that writes the archive when it ends."""
    import floodmark as fm
    from support.spark.spark_feed import SHORT_LIVED
    from support.spark.stream_feed import StreamFeed, tumbling

    options = "spark.driver.extraJavaOptions"
    conf = {**SHORT_LIVED, options: f"{SHORT_LIVED[options]} -XX:ArchiveClassesAtExit={file}"}
    spark = fm.session("floodmark-classes", conf=conf)
    feed = StreamFeed(spark, file.parent / "orders")
    feed.play([[1, 2, 3], 14, None, [21, 22], 33, None])
    feed.collect(tumbling(feed, {"max_rows": 3}))
    query = fm.write_stream(
        feed.read(),
        to=f"delta://{file.parent}/table",
        name="table",
        checkpoint=file.parent / "table-sink",
        home=feed.path / "home",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    feed.close()
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    # The JVM ends with its standard input.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
