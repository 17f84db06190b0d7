"""What Spark's own connectors need, for comparisons: a JVM takes jars only when it starts, so it gets all of them."""

from floodmark.testing.kafka import Artifact, fetch_jars

_KAFKA: tuple[Artifact, ...] = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
"""Spark's own source and sink: what the registry has that runs on this Spark."""

_JDBC: tuple[Artifact, ...] = (("org.postgresql", "postgresql", "42.7.8"),)


def foreign_jars() -> list[str]:
    """Return the jars; the first time they are fetched."""
    places = (
        fetch_jars("spark-kafka", _KAFKA, with_dependencies=False),
        fetch_jars("jdbc", _JDBC, with_dependencies=False),
    )
    return sorted(str(jar) for place in places for jar in place.glob("*.jar"))
