"""The log in which Spark keeps where each batch of a query ends. It is written before the batch runs."""

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from floodmark.errors import SinkCheckpointInvalid

_FORMS: Final = ("v1",)
_NOTHING: Final = "-"

Offsets = tuple[dict[str, Any] | None, ...]
"""Of each source, in Spark's order, where a batch ends; None where it has not begun."""


class OffsetLog:
    """The checkpoint of a query, as far as it tells places.

    It is read as files where it is on this machine, and else by Spark, which knows other file systems.
    """

    def __init__(self, checkpoint: str) -> None:
        """Read the checkpoint at this place."""
        self._checkpoint = checkpoint.rstrip("/")
        parts = urlsplit(checkpoint)
        self._local = Path(unquote(parts.path)) if parts.scheme in ("", "file") else None

    def query_id(self, spark: SparkSession) -> str | None:
        """Return the id of the query; None before it was ever started."""
        text = self._text(spark, "metadata")
        return None if text is None else str(json.loads(text)["id"])

    def last_committed(self, spark: SparkSession) -> int | None:
        """Return the number of the last batch that was done."""
        return max(self._numbers(spark, "commits"), default=None)

    def has_begun(self, spark: SparkSession) -> bool:
        """Return whether the end of any batch was ever chosen."""
        return bool(self._numbers(spark, "offsets"))

    def offsets(self, spark: SparkSession, batch: int) -> Offsets | None:
        """Return where a batch ends; None if that is not known any more."""
        text = self._text(spark, f"offsets/{batch}")
        if text is None:
            return None
        form, *lines = text.strip().split("\n")
        try:
            if form.strip() not in _FORMS:
                raise ValueError(form)
            # The line after the form is about the query.
            return tuple(None if line == _NOTHING else json.loads(line) for line in lines[1:])
        except ValueError as error:
            raise SinkCheckpointInvalid(
                f"The offsets of batch {batch} in {self._checkpoint} are {text!r:.200}.",
                rule=f"They are written as Spark does it, in form {', '.join(_FORMS)}.",
                remedy="Set spark.sql.streaming.offsetLog.formatVersion to 1, and start with a new checkpoint.",
                checkpoint=self._checkpoint,
                batch=batch,
            ) from error

    def _numbers(self, spark: SparkSession, folder: str) -> list[int]:
        if self._local is not None:
            place = self._local / folder
            names = [path.name for path in place.iterdir()] if place.is_dir() else []
        else:
            names = self._list(spark, f"{self._checkpoint}/{folder}/*")
        return [int(name) for name in names if name.isdecimal()]

    def _text(self, spark: SparkSession, name: str) -> str | None:
        if self._local is not None:
            path = self._local / name
            return path.read_text() if path.is_file() else None
        if name.rpartition("/")[2] not in self._list(spark, f"{self._checkpoint}/{name}"):
            return None
        rows = spark.read.text(f"{self._checkpoint}/{name}", wholetext=True).collect()
        return str(rows[0][0]) if rows else None

    def _list(self, spark: SparkSession, pattern: str) -> list[str]:
        try:
            found = spark.read.format("binaryFile").load(pattern).select("path").collect()
        except PySparkException:
            # Nothing is there.
            return []
        return [str(row[0]).rpartition("/")[2] for row in found]
