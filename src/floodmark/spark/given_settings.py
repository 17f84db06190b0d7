"""Which Spark settings are given outside of the program, and which defaults of `session` are left to set.

Spark reads settings from the command line of spark-submit (also in PYSPARK_SUBMIT_ARGS), from environment variables and
from spark-defaults.conf. A setting that is given there wins over a default of Floodmark, and one that the program
itself names wins over both, as always in Spark.
"""

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

MASTER: Final = "spark.master"
REMOTE: Final = "spark.remote"
APP_NAME: Final = "spark.app.name"
DRIVER_HOST: Final = "spark.driver.host"
BIND_ADDRESS: Final = "spark.driver.bindAddress"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
WORKER_PYTHON: Final = "spark.pyspark.python"

_LOCAL_MASTER: Final = re.compile(r"local(\[.*\])?")
_ARGUMENTS: Final = {
    "--master": MASTER,
    "--remote": REMOTE,
    "--name": APP_NAME,
    "--driver-java-options": JAVA_OPTIONS,
}
_VARIABLES: Final = {
    "MASTER": MASTER,
    "SPARK_REMOTE": REMOTE,
    "SPARK_LOCAL_HOSTNAME": DRIVER_HOST,
    "SPARK_LOCAL_IP": DRIVER_HOST,
    "PYSPARK_PYTHON": WORKER_PYTHON,
}
_LINE: Final = re.compile(r"(?P<key>[^\s=:]+)\s*[=:\s]\s*(?P<value>.*)")
_RUNNING_SPARK: Final = re.compile(r"spark\.(sql|pyspark)\.")


def is_local(master: str) -> bool:
    """Return whether tasks run in the driver's own process.

    >>> is_local("local[2]"), is_local("local-cluster[2,1,1024]"), is_local("spark://one:7077")
    (True, False, False)
    """
    return _LOCAL_MASTER.fullmatch(master) is not None


def settings_of_arguments(arguments: str) -> dict[str, str]:
    """Return the settings on a command line of spark-submit, such as that in PYSPARK_SUBMIT_ARGS.

    >>> settings_of_arguments("--master local[1] --conf spark.ui.enabled=true pyspark-shell")
    {'spark.master': 'local[1]', 'spark.ui.enabled': 'true'}
    """
    words = [part for word in shlex.split(arguments) for part in _split_at_equals(word)]
    settings = {}
    for word, value in pairwise(words):
        if word in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            settings[key] = setting
        elif word in _ARGUMENTS:
            settings[_ARGUMENTS[word]] = value
    return settings


def properties_file_of_arguments(arguments: str) -> str | None:
    """Return the file that a command line of spark-submit names in place of spark-defaults.conf.

    >>> properties_file_of_arguments("--properties-file ours.conf pyspark-shell")
    'ours.conf'
    """
    words = [part for word in shlex.split(arguments) for part in _split_at_equals(word)]
    return next((file for word, file in pairwise(words) if word == "--properties-file"), None)


def settings_of_file(text: str) -> dict[str, str]:
    """Return the settings in the text of a spark-defaults.conf.

    >>> settings_of_file('''
    ... # Our cluster
    ... spark.master        spark://one:7077
    ... spark.driver.host = driver.example
    ... ''')
    {'spark.master': 'spark://one:7077', 'spark.driver.host': 'driver.example'}
    """
    lines = (line.strip() for line in text.splitlines())
    matches = (_LINE.fullmatch(line) for line in lines if line and line[0] not in "#!")
    return {match["key"]: match["value"].strip() for match in matches if match}


def settings_of_environment(environment: Mapping[str, str], defaults: str = "", *, files: str = "") -> dict[str, str]:
    """Return the settings that Spark would start with, by its own order of precedence.

    `defaults` is the text of spark-defaults.conf, `files` that of --properties-file, which replaces it.

    >>> settings_of_environment({"MASTER": "local[7]", "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"})
    {'spark.master': 'local[1]'}
    """
    variables = {key: environment[name] for name, key in _VARIABLES.items() if environment.get(name)}
    arguments = settings_of_arguments(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    return {**variables, **settings_of_file(files or defaults), **arguments}


def read_given_settings(environment: Mapping[str, str], spark_home: Path) -> dict[str, str]:
    """Return the settings of the environment and of the files that it names."""
    folder = Path(environment.get("SPARK_CONF_DIR") or spark_home / "conf")
    named = properties_file_of_arguments(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    texts = []
    for file in (folder / "spark-defaults.conf", None if named is None else Path(named)):
        try:
            texts.append("" if file is None else file.read_text())
        except OSError:
            # Spark reports a file that it cannot read.
            texts.append("")
    return settings_of_environment(environment, texts[0], files=texts[1])


def choose_settings(
    defaults: Mapping[str, str],
    local_defaults: Mapping[str, str],
    given: Mapping[str, str],
    chosen: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings for Spark's builder: the chosen ones, and the defaults that are not given elsewhere.

    The local defaults, such as the loopback interface, are for a master on this machine alone. A session on a Spark
    Connect server only gets settings that a running Spark can change.

    >>> defaults, local = {"spark.sql.session.timeZone": "UTC"}, {"spark.driver.host": "127.0.0.1"}
    >>> choose_settings(defaults, local, {}, {"spark.master": "local[2]"})
    {'spark.sql.session.timeZone': 'UTC', 'spark.driver.host': '127.0.0.1', 'spark.master': 'local[2]'}
    >>> choose_settings(defaults, local, {"spark.master": "yarn"}, {})
    {'spark.sql.session.timeZone': 'UTC'}
    >>> choose_settings(defaults, local, {"spark.remote": "sc://one"}, {"spark.master": "local[2]"})
    {'spark.sql.session.timeZone': 'UTC'}
    """
    known = {**given, **chosen}
    if REMOTE in known:
        settable = {key: value for key, value in defaults.items() if _RUNNING_SPARK.match(key) and key not in given}
        return settable | {key: value for key, value in chosen.items() if key != MASTER}
    applicable = {**defaults, **(local_defaults if is_local(known.get(MASTER, "local")) else {})}
    if DRIVER_HOST in known:
        # Bound to the loopback interface, the driver could not be reached at its address.
        applicable.pop(BIND_ADDRESS, None)
    return {key: value for key, value in applicable.items() if key not in given} | dict(chosen)


def _split_at_equals(word: str) -> list[str]:
    """Return an argument such as --master=yarn as two words; others as they are."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name.startswith("--") else [word]
