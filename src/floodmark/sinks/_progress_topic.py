"""Reading a progress topic: the newest committed record of a sink, when nobody else can write one any more."""

from collections.abc import Callable
from typing import Final

from floodmark.errors import KafkaAway
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.sinks._failpoints import SCANNED_IN_PART, Failpoint, go_on
from floodmark.sinks._progress import Progress, newest

CLEANUP_SECONDS: Final = 30.0
"""How long brokers may take, beyond its timeout, to end a transaction of somebody who has died."""


class ProgressTopic:
    """Reads the progress of sinks."""

    def __init__(self, settings: KafkaSettings, topic: str, *, timeout: float, failpoint: Failpoint = go_on) -> None:
        """Read this topic. `timeout` is the longest that a transaction of those who write to it may take."""
        self._settings = settings
        self._topic = topic
        self._deadline = timeout + CLEANUP_SECONDS
        self._failpoint = failpoint

    def read(
        self, sink: str, cluster: KafkaCluster, is_own: Callable[[str], bool] | None = None
    ) -> dict[str, Progress]:
        """Return the newest progress of a sink, and of those of its groups that `is_own` names; by their names.

        Everything up to the end is read, that of open transactions included, and what was committed of it is seen.
        Transactions of other sinks may still be open: they are waited for.
        """
        (end,) = cluster.ends(self._topic, [0], committed=False).values()
        (start,) = cluster.starts(self._topic, [0]).values()
        found: dict[str, Progress] = {}
        fetcher = Fetcher(self._settings, patience=self._deadline)
        try:
            for records in fetcher.read(self._topic, 0, start, end, wait_to=end):
                for record in records:
                    name = _name(record.key())
                    if name is not None and (name == sink or (is_own is not None and is_own(name))):
                        known = newest(name, [(record.key(), record.value())], found.get(name))
                        if known is not None:
                            found[name] = known
                self._failpoint(SCANNED_IN_PART)
        except KafkaAway as error:
            raise KafkaAway(
                f"The progress topic {self._topic!r} could not be read up to {end} within {self._deadline:.0f} s.",
                rule="A sink that does not know what it has written does not write.",
                remedy="Start it again; if that does not help, look for a transaction that hangs in this topic.",
                topic=self._topic,
                end=end,
                seconds=self._deadline,
            ) from error
        finally:
            fetcher.close()
        return found


def _name(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None
