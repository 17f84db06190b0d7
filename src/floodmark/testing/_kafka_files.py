"""The files of a Kafka broker, fetched once for all tests and programs of a user."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from floodmark.errors import MissingPackage, ServerNotStarted

VERSION: Final = "4.1.2"
"""The Kafka that is started."""

_FETCH_SECONDS: Final = 600
_WANTED: Final = """<ivy-module version="2.0">
  <info organisation="floodmark" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->master,runtime">
{dependencies}
  </dependencies>
</ivy-module>
"""
_BROKER: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
)

Artifact = tuple[str, str, str]
"""The group, name and version of something that Maven Central has."""


def broker_jars() -> Path:
    """Return the directory with the jars of a broker, and of Kafka's own programs; the first time they are fetched."""
    return fetched(f"kafka-{VERSION}-with-tools", _BROKER)


def fetched(name: str, artifacts: tuple[Artifact, ...], *, with_dependencies: bool = True) -> Path:
    """Return the directory of this name with the jars of these artifacts; where it is not there yet, fetch them.

    Ivy does that, which PySpark brings along.
    """
    place = _cache() / name
    with _locked(place.with_name(f"{name}.lock")):
        if not place.is_dir():
            _fetch(place, name, artifacts, with_dependencies)
    return place


def java() -> str:
    """Return the program that runs Java."""
    home = os.environ.get("JAVA_HOME")
    # What is set to nothing is not set.
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise ServerNotStarted(
            "There is no Java to start a Kafka broker with.",
            rule="A broker needs Java 17 or newer: JAVA_HOME, or `java` on the path.",
            remedy="Install it, such as the package openjdk-17-jre-headless.",
        )
    return found


def _fetch(place: Path, name: str, artifacts: tuple[Artifact, ...], with_dependencies: bool) -> None:
    """Fetch into a directory beside the place, so that what has the right name is whole."""
    line = '    <dependency org="{}" name="{}" rev="{}" transitive="{}"/>'
    lines = [line.format(*artifact, str(with_dependencies).lower()) for artifact in artifacts]
    with tempfile.TemporaryDirectory(dir=place.parent) as beside:
        wanted, jars = Path(beside, "ivy.xml"), Path(beside, "jars")
        wanted.write_text(_WANTED.format(name=name, dependencies="\n".join(lines)))
        jars.mkdir()
        command = [java(), "-jar", str(_ivy()), "-ivy", str(wanted), "-cache", str(place.parent / "ivy"), "-warn"]
        command += ["-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False, cwd=beside
            )
        except subprocess.TimeoutExpired as error:
            raise _not_fetched(name, f"nothing came within {_FETCH_SECONDS} seconds") from error
        if done.returncode or not any(jars.iterdir()):
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise _not_fetched(name, " ".join(lines[-3:]) or "nothing came")
        jars.rename(place)


def _ivy() -> Path:
    package = find_spec("pyspark")
    places = [] if package is None else [Path(place) for place in package.submodule_search_locations or ()]
    for jar in (jar for place in places for jar in place.glob("jars/ivy-*.jar")):
        return jar
    raise MissingPackage(
        "There is nothing to fetch a Kafka broker with: PySpark is not installed, or came without its jars.",
        rule="Ivy fetches it, which PySpark brings along.",
        remedy="Install pyspark from its wheel.",
        package="pyspark",
    )


def _cache() -> Path:
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = base / "floodmark"
    place.mkdir(parents=True, exist_ok=True)
    return place


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let one program at a time fetch."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _not_fetched(name: str, reason: str) -> ServerNotStarted:
    return ServerNotStarted(
        f"The files of {name} could not be fetched: {reason}.",
        rule="They come from Maven Central the first time, and are kept in the user's cache directory.",
        remedy="Check the network, and try again.",
        reason=reason,
    )
