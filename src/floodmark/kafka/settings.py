"""How to connect to a Kafka cluster. Secrets are kept out of everything that is shown or stored."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from floodmark.errors import InvalidOption

OPTION_PREFIX: Final = "kafka."
"""Prefix of Kafka client options among other options, as in Spark."""

VARIABLE_PREFIX: Final = "FLOODMARK_KAFKA_"
"""Prefix of environment variables with client options: FLOODMARK_KAFKA_SASL_PASSWORD sets sasl.password.

FLOODMARK_KAFKA_SASL_PASSWORD_FILE names a file that has it, as secrets of containers are mounted.
"""

MAX_RECORD_BYTES: Final = 16 * 2**20
"""Maximum size of a record."""

_FILE: Final = ".file"
_SCHEME: Final = "kafka://"
_SECRET_WORDS: Final = ("password", "secret", "token", "jaas", "key.pem", "credentials", "oauthbearer.config")
# Options of the Java client, and what to use instead.
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
    """The brokers of a cluster, and client options under their librdkafka names.

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
        """Return settings for `kafka://host:port,...` or `host:port,...`, with options that may begin with `kafka.`."""
        servers = address.removeprefix(_SCHEME).strip()
        if not servers or "/" in servers or "@" in servers or "?" in servers:
            # The text before an @ may be a password.
            shown = address if "@" not in address else f"{_SCHEME}***@{address.rpartition('@')[2]}"
            raise InvalidOption(
                f"The address of Kafka is {shown!r}.",
                rule="An address is kafka://host:port, with commas between several brokers, and nothing else.",
                remedy="Set user and password as the options kafka.sasl.username and kafka.sasl.password.",
            )
        return cls(servers, {**_options_of_environment(os.environ), **_strip_prefix(options or {})})

    @property
    def url(self) -> str:
        """The address, without secrets."""
        return _SCHEME + self.servers

    def client(self, **own: Any) -> dict[str, Any]:
        """Return the options of a client. Options in `own`, with underscores for dots, override all others."""
        return {
            "bootstrap.servers": self.servers,
            # Connection errors are reported by exceptions, so the client need not log them.
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 2_000,
            **self.options,
            **{name.replace("_", "."): value for name, value in own.items()},
        }

    def private_options(self) -> dict[str, str]:
        """Return all client options with the prefix `kafka.`: those of the program and those of its environment."""
        return {OPTION_PREFIX + name: value for name, value in self.options.items()}

    def __repr__(self) -> str:
        shown = (f"{name}={'***' if _is_secret(name) else value}" for name, value in sorted(self.options.items()))
        return f"KafkaSettings({', '.join([repr(self.servers), *shown])})"


def _strip_prefix(options: Mapping[str, str]) -> dict[str, str]:
    """Return options under their librdkafka names; raise an error for options of the Java client."""
    bare_options = {}
    for name, value in options.items():
        bare = name.removeprefix(OPTION_PREFIX)
        if bare in _JAVA_NAMES:
            raise InvalidOption(
                f"The option {OPTION_PREFIX}{bare} belongs to the Java client.",
                rule="Floodmark uses librdkafka, whose options have other names.",
                remedy=f"Use {_JAVA_NAMES[bare]}.",
                option=OPTION_PREFIX + bare,
            )
        bare_options[bare] = value
    return bare_options


def _options_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the client options set by environment variables.

    >>> _options_of_environment({"FLOODMARK_KAFKA_SASL_USERNAME": "me", "HOME": "elsewhere"})
    {'sasl.username': 'me'}
    """
    options = {
        name.removeprefix(VARIABLE_PREFIX).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIX)
    }
    for name in [name for name in options if name.endswith(_FILE) and _is_secret(name)]:
        options[name.removesuffix(_FILE)] = _read_secret(name, options.pop(name))
    return options


def _read_secret(name: str, file: str) -> str:
    try:
        return Path(file).read_text().rstrip("\r\n")
    except OSError as error:
        variable = VARIABLE_PREFIX + name.upper().replace(".", "_")
        raise InvalidOption(
            f"{variable} is {file!r}, which cannot be read: {error.strerror}.",
            rule="It must name a file that has the secret.",
            remedy=f"Correct the path or its permissions, or set {variable.removesuffix('_FILE')} to the secret.",
            option=variable,
            value=file,
        ) from error


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_WORDS)
