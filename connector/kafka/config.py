"""One client configuration: what users write as ``kafka.*`` drives both client libraries.

librdkafka (confluent-kafka) reads and writes rows; kafka-python ends transactions. Both get the same addresses and the
same security, given once, in librdkafka's names.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from connector.options import OptionTable, ParsedOptions, hides_value, shown_value
from transactional.clock import Deadline
from transactional.errors import OptionError, StoreError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["SINK_FORBIDDEN", "SOURCE_FORBIDDEN", "ClientConfig", "check_brokers", "client_config"]

BOOTSTRAP: Final = "bootstrap.servers"

REACH_SECONDS: Final = 20.0
"""A user waits for at most 30 s until an unreachable broker is an error: the rest is for Spark's own worker."""

_OURS_TO_SAY = "rows are bytes here; cast or parse the columns in the query."

_JAVA_ONLY: Mapping[str, str] = {
    "sasl.jaas.config": "a JAAS text is for Java clients: set kafka.sasl.username and kafka.sasl.password.",
    "ssl.truststore.location": "Java key stores can't be read here: set kafka.ssl.ca.location (a PEM file).",
    "ssl.truststore.password": "Java key stores can't be read here: set kafka.ssl.ca.location (a PEM file).",
    "ssl.truststore.type": "Java key stores can't be read here: set kafka.ssl.ca.location (a PEM file).",
    "ssl.keystore.type": "set kafka.ssl.keystore.location (PKCS#12) or kafka.ssl.certificate.location (PEM).",
    "key.deserializer": _OURS_TO_SAY,
    "value.deserializer": _OURS_TO_SAY,
    "key.serializer": _OURS_TO_SAY,
    "value.serializer": _OURS_TO_SAY,
    "interceptor.classes": "interceptors are Java classes and can't run here.",
    "metric.reporters": "metric reporters are Java classes; use a StreamingQueryListener.",
    "plugin.library.paths": "plugins of the client are not loaded here.",
}

SOURCE_FORBIDDEN: Mapping[str, str] = {
    **_JAVA_ONLY,
    "auto.offset.reset": "set startingOffsets; later runs go on where the checkpoint says.",
    "enable.auto.commit": "positions live in Spark's checkpoint; group offsets are committed after each checkpoint.",
    "auto.commit.interval.ms": "positions live in Spark's checkpoint.",
    "enable.auto.offset.store": "positions live in Spark's checkpoint.",
    "enable.partition.eof": "the source needs it to find the end of a range.",
    "group.instance.id": "the source assigns partitions itself and joins no group.",
    "group.protocol": "the source assigns partitions itself and joins no group.",
    "partition.assignment.strategy": "the source assigns partitions itself and joins no group.",
    "transactional.id": "a source writes nothing.",
}
"""Keys (without ``kafka.``) that the source refuses, and what to do instead."""

SINK_FORBIDDEN: Mapping[str, str] = {
    **_JAVA_ONLY,
    "transactional.id": "set transactionalIdPrefix; each task's name is made from it.",
    "group.id": "a sink reads nothing.",
    "enable.auto.commit": "a sink reads nothing.",
    "auto.offset.reset": "a sink reads nothing.",
    "enable.gapless.guarantee": "transactions give the guarantee.",
    "delivery.report.only.error": "the sink counts deliveries itself.",
    "message.timeout.ms": "the sink derives it from kafka.transaction.timeout.ms.",
    "delivery.timeout.ms": "the sink derives it from kafka.transaction.timeout.ms.",
}
"""Keys (without ``kafka.``) that the sink refuses, and what to do instead."""

_FIXED: Mapping[str, tuple[frozenset[str], str]] = {
    "enable.idempotence": (frozenset({"true"}), "transactions need true, which is the default."),
    "acks": (frozenset({"all", "-1"}), "transactions need all, which is the default."),
    "request.required.acks": (frozenset({"all", "-1"}), "transactions need all, which is the default."),
}
"""Keys of the sink that may be set, but only to what it does anyhow."""

_FATAL_SASL: Final = ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED")
"""Errors of a connection that waiting does not heal."""

_KAFKA_PYTHON: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.cipher.suites": "ssl_ciphers",
    "ssl.crl.location": "ssl_crlfile",
}
"""librdkafka's name → kafka-python's, of everything that says where the brokers are and who we are."""


@dataclass(frozen=True)
class ClientConfig:
    """Checked ``kafka.*`` options, without their prefix; its repr shows no secret.

    Parameters
    ----------
    name : str
        The format, for messages.
    settings : Mapping[str, str]
        In librdkafka's names, defaults of the format included. Has ``bootstrap.servers``.
    """

    name: str
    settings: Mapping[str, str] = field(repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses, as they were given."""
        return self.settings[BOOTSTRAP]

    def for_librdkafka(self, **extra: Any) -> dict[str, Any]:
        """Settings for confluent-kafka; `extra` (underscores for dots) wins."""
        return {**self.settings, **{key.replace("_", "."): value for key, value in extra.items()}}

    def for_kafka_python(self) -> dict[str, Any]:
        """Addresses and security for kafka-python's clients; nothing else of the settings concerns them."""
        found: dict[str, Any] = {
            theirs: self.settings[ours] for ours, theirs in _KAFKA_PYTHON.items() if ours in self.settings
        }
        found["bootstrap_servers"] = [part.strip() for part in self.bootstrap_servers.split(",") if part.strip()]
        if "security_protocol" in found:
            found["security_protocol"] = found["security_protocol"].upper()
        if "sasl_mechanism" in found:
            found["sasl_mechanism"] = found["sasl_mechanism"].upper()
        identification = self.settings.get("ssl.endpoint.identification.algorithm", "https").lower()
        found["ssl_check_hostname"] = identification not in ("", "none")
        return found

    def scrub(self, text: str) -> str:
        """The text without any secret of ours: clients quote settings in their errors."""
        for key, value in self.settings.items():
            if hides_value(key) and value:
                text = text.replace(value, "(hidden)")
        return text

    def __repr__(self) -> str:
        shown = {key: shown_value(key, value) for key, value in sorted(self.settings.items())}
        return f"ClientConfig({self.name!r}, {shown})"


def client_config(
    table: OptionTable,
    options: ParsedOptions,
    forbidden: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
) -> ClientConfig:
    """Make the client configuration of what the user wrote as ``kafka.*``.

    Parameters
    ----------
    table : OptionTable
        The format's, for messages.
    options : ParsedOptions
    forbidden : Mapping[str, str]
        `SOURCE_FORBIDDEN` or `SINK_FORBIDDEN`.
    defaults : Mapping[str, str], optional
        The format's own defaults, below what the user wrote.

    Raises
    ------
    OptionError
        ``MISSING_OPTION``: no brokers; ``FORBIDDEN_OPTION``: a key that is ours to set, with the way to use instead.
    """
    given = {key.removeprefix("kafka."): text.strip() for key, text in options.passthrough.items()}
    if not given.get(BOOTSTRAP):
        raise OptionError(
            "MISSING_OPTION",
            f"{table.name} needs the option kafka.bootstrap.servers: the brokers' addresses, host:port, comma between.",
            option="kafka.bootstrap.servers",
        )
    for key, text in given.items():
        way = forbidden.get(key)
        allowed, reason = _FIXED.get(key, (None, "")) if forbidden is SINK_FORBIDDEN else (None, "")
        if allowed is not None and text.lower() not in allowed:
            way = reason
        if way is not None:
            raise OptionError(
                "FORBIDDEN_OPTION",
                f"{table.name} does not take the option kafka.{key}: {way}",
                option=f"kafka.{key}",
            )
    return ClientConfig(table.name, {**(defaults or {}), **given})


def check_brokers(config: ClientConfig, deadline: Deadline | None = None) -> AdminClient:
    """Check that a broker answers, and return the client that asked. *Called on the driver, before the first row*.

    Parameters
    ----------
    config : ClientConfig
    deadline : Deadline, optional
        20 s from now by default.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``: the client refuses the settings.
    StoreError
        ``BROKERS_UNREACHABLE``: with the addresses and the client's last reason; at once where waiting can't help
        (a wrong password), else when the deadline has passed.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    deadline = deadline or Deadline(REACH_SECONDS)
    reasons: list[str] = []
    fatal = threading.Event()

    def note(error: Any) -> None:
        # "All brokers down" only follows the reasons; it does not replace them.
        if error.name() != "_ALL_BROKERS_DOWN" or not reasons:
            reasons.append(f"{error.str()}")
        if error.name() in _FATAL_SASL:
            fatal.set()

    # Without a limit a silent address takes the client's own 30 s before it has a reason.
    limits: dict[str, Any] = {"socket.connection.setup.timeout.ms": "5000", "log_level": 0, "error_cb": note}
    try:
        admin = AdminClient({**limits, **config.for_librdkafka()})
    except (KafkaException, ValueError, TypeError) as problem:
        raise _refused(config, problem) from None
    while True:
        # Short waits, so that an error that nothing heals ends it early.
        step = min(1.0, deadline.left())
        try:
            admin.list_topics(topic=_NO_TOPIC, timeout=step)
        except KafkaException as problem:
            admin.poll(0)
            if fatal.is_set() or deadline.passed():
                reason = config.scrub(reasons[-1] if reasons else problem.args[0].str())
                raise StoreError(
                    "BROKERS_UNREACHABLE",
                    f"{config.name}: no broker of {config.bootstrap_servers} (option kafka.bootstrap.servers) can be "
                    f"used: {reason}. Check the addresses, that the brokers run, and kafka.security.protocol.",
                    option="kafka.bootstrap.servers",
                    addresses=config.bootstrap_servers,
                    reason=reason,
                ) from None
        else:
            return admin


_NO_TOPIC: Final = "__consumer_offsets"
"""Asked for by name, because a metadata request without a name lists every topic of the cluster."""


def _refused(config: ClientConfig, problem: Exception) -> OptionError:
    detail = problem.args[0] if problem.args else problem
    reason = config.scrub(detail.str() if hasattr(detail, "str") else str(detail))
    return OptionError(
        "INVALID_OPTION", f"{config.name}: the Kafka client refuses an option kafka.*: {reason}", reason=reason
    )
