"""Where a Kafka cluster is, and how to get in. Secrets are kept apart from all that is shown or stored."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.errors import InvalidOption

OPTION_PREFIX: Final = "kafka."
"""What options of Kafka's client begin with where there are others too, as Spark users know it."""

VARIABLE_PREFIX: Final = "FLOODMARK_KAFKA_"
"""Options may also come from variables: FLOODMARK_KAFKA_SASL_PASSWORD is sasl.password."""

MAX_RECORD_BYTES: Final = 16 * 2**20
"""How large a record may be."""

_SCHEME: Final = "kafka://"
_SECRET_WORDS: Final = ("password", "secret", "token", "jaas", "key.pem", "credentials", "oauthbearer.config")
# What Java's client calls otherwise; ours would only say that it does not know the name.
_JAVA_NAMES: Final = {
    "sasl.jaas.config": "kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": "kafka.ssl.ca.location, a PEM file",
    "ssl.truststore.password": "kafka.ssl.ca.location, a PEM file without a password",
    "ssl.truststore.type": "kafka.ssl.ca.location, a PEM file",
    "ssl.keystore.type": "kafka.ssl.keystore.location, a PKCS#12 file",
    "key.deserializer": "nothing: keys and values are bytes",
    "value.deserializer": "nothing: keys and values are bytes",
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The brokers of a cluster, and options of the client, under librdkafka's names.

    >>> settings = KafkaSettings.of("kafka://one:9092,two:9092", {"kafka.sasl.password": "secret"})
    >>> settings
    KafkaSettings('one:9092,two:9092', sasl.password=***)
    >>> settings.url
    'kafka://one:9092,two:9092'
    """

    servers: str
    options: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, address: str, options: Mapping[str, str] | None = None) -> "KafkaSettings":
        """Return the settings for brokers, as `kafka://host:port,...` or as host:port alone, with `kafka.` options."""
        servers = address.removeprefix(_SCHEME).strip()
        if not servers or "/" in servers or "@" in servers or "?" in servers:
            # What stands before an @ may be a password.
            shown = address if "@" not in address else f"{_SCHEME}***@{address.rpartition('@')[2]}"
            raise InvalidOption(
                f"The address of Kafka is {shown!r}.",
                rule="It is kafka://host:port, with commas between several brokers, and nothing else.",
                remedy="Give users and passwords as options such as kafka.sasl.password.",
            )
        return cls(servers, {**_options_of_environment(os.environ), **_strip_prefix(options or {})})

    @property
    def url(self) -> str:
        """The address, which has no secret in it."""
        return _SCHEME + self.servers

    def client(self, **own: Any) -> dict[str, Any]:
        """Return the options of a client, with `own` ones, dots written as underscores, which nobody may change."""
        return {
            "bootstrap.servers": self.servers,
            # Broken connections are part of life: who asks is told, in one error, when it takes too long.
            "log_level": 0,
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 2_000,
            **self.options,
            **{name.replace("_", "."): value for name, value in own.items()},
        }

    def __repr__(self) -> str:
        shown = (f"{name}={'***' if _is_secret(name) else value}" for name, value in sorted(self.options.items()))
        return f"KafkaSettings({', '.join([repr(self.servers), *shown])})"


def _strip_prefix(options: Mapping[str, str]) -> dict[str, str]:
    """Return options under the names of the client, or refuse those that it would take for something else."""
    found = {}
    for name, value in options.items():
        bare = name.removeprefix(OPTION_PREFIX)
        if bare in _JAVA_NAMES:
            raise InvalidOption(
                f"The option {OPTION_PREFIX}{bare} is one of Java's client.",
                rule="Floodmark has no Java of its own: its options are those of librdkafka.",
                remedy=f"Use {_JAVA_NAMES[bare]}.",
                option=OPTION_PREFIX + bare,
            )
        found[bare] = value
    return found


def _options_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what variables say of the client.

    >>> _options_of_environment({"FLOODMARK_KAFKA_SASL_USERNAME": "me", "HOME": "elsewhere"})
    {'sasl.username': 'me'}
    """
    return {
        name.removeprefix(VARIABLE_PREFIX).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIX)
    }


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_WORDS)
