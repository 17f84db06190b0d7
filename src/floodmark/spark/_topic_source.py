"""Topics of Kafka behind the format "floodmark": what `option("subscribe", ...)` leads to."""

from collections.abc import Mapping

from pyspark.sql.types import StructType

from floodmark.control import Home
from floodmark.errors import InvalidOption, SchemaInvalid
from floodmark.spark._topic_columns import decoder_of, spark_schema
from floodmark.spark._topic_reader import TopicReader, TopicSnapshotReader
from floodmark.spark._topic_settings import TopicSettings


class TopicSource:
    """Makes readers of topics from the options of a query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Take the options, or refuse them."""
        if any(name.lower() in ("stream", "path") for name in options):
            raise InvalidOption(
                "Both a stream and topics to subscribe to are named.",
                rule="A query reads a stream of a home, or topics of Kafka.",
                remedy="Leave one out, and unite two DataFrames to have both.",
                option="subscribe",
            )
        self._settings = TopicSettings.of(options)

    def schema(self) -> StructType:
        """Return the columns."""
        return spark_schema(self._settings)

    def stream_reader(self, schema: StructType) -> TopicReader:
        """Return what reads the topics as they grow."""
        self._check(schema)
        for option, is_given in (
            ("asOf", self._settings.as_of is not None),
            ("endingOffsets", self._settings.ending_offsets != "latest"),
        ):
            if is_given:
                raise InvalidOption(
                    f"{option} is given for a query that goes on.",
                    rule="It says where a batch ends.",
                    remedy="Use spark.read, or leave it out.",
                    option=option,
                )
        return TopicReader(self._settings, self._location())

    def reader(self, schema: StructType) -> TopicSnapshotReader:
        """Return what reads the topics as they were at one moment."""
        self._check(schema)
        return TopicSnapshotReader(self._settings, self._location())

    def _location(self) -> str:
        # Whoever only has topics need not make a home first.
        with Home.open(self._settings.home) as home:
            return home.location

    def _check(self, schema: StructType) -> None:
        known = self.schema()
        decoder_of(self._settings)
        if schema.simpleString() != known.simpleString():
            raise SchemaInvalid(
                f"The query has the schema {schema.simpleString()}.",
                rule=f"What is read of the topics {', '.join(self._settings.topics)} has {known.simpleString()}.",
                remedy="Leave the schema out, and give that of the values by the option schema.",
                schema=schema.simpleString(),
            )
