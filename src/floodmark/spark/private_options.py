"""Options of a source that must not be seen: passwords of the home and of Kafka.

Spark shows the options of a source in plans, in its UI and in event logs. So secrets are no options: they are part of
the class of the source, which the program registers with its session under a name of its own. Spark passes that class
on as pickled bytes, also through Spark Connect, to the Python process that plans the query, and the readers that it
makes there go to the tasks in the same way.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Any, ClassVar, Final
from uuid import uuid4
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from floodmark.control import Home


class SourceWithSecrets(DataSource):
    """A source whose class may have options that are not shown; they win over those of the query."""

    format_name: ClassVar[str]
    """The name of the format."""
    private_options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Any) -> None:
        """Take the options of a query."""
        super().__init__(options)
        for name, value in self.private_options.items():
            self.options[name] = value

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name


_Registered = dict[tuple[type[SourceWithSecrets], tuple[tuple[str, str], ...]], str]
_lock: Final = Lock()
_formats: "WeakKeyDictionary[SparkSession, _Registered]" = WeakKeyDictionary()


def register_source(spark: SparkSession, source: type[SourceWithSecrets], private: Mapping[str, str]) -> str:
    """Register a source with a session, with these private options; return the name of its format.

    The same options give the same format again. Without private options the format has the name of the source.
    """
    with _lock:
        registered = _formats.setdefault(spark, {})
        key = source, tuple(sorted(private.items()))
        if key not in registered:
            # A random name, and not a hash of the secrets, by which they could be guessed.
            name = f"{source.format_name}_{uuid4().hex[:12]}" if private else source.format_name
            # Not an attribute of any module, so the class itself is pickled.
            values = {"format_name": name, "private_options": dict(private)}
            spark.dataSource.register(type(source.__name__, (source,), values) if private else source)
            registered[key] = name
        return registered[key]


def private_home(home: Home) -> dict[str, str]:
    """Return the private option with the location of a home; empty if that has no password."""
    return {} if home.location == home.address else {"home": home.location}
