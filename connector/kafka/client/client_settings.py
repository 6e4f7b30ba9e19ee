"""Translate Java's names of client settings, as users of ``format("kafka")`` write them, into librdkafka's names.

The table `JAVA_SETTINGS` says what happens to a name: it is renamed (and its unit converted), ignored with a reason, or
rejected with advice. Names that mean the same in both clients are not in the table. They are passed on unchanged, and
librdkafka rejects names that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.errors import forbidden_option, invalid_option
from connector.options import shown_value

Role = str
"""The side that uses a setting: ``source`` or ``sink``."""


def _same(text: str) -> str:
    return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _kbytes(text: str) -> str:
    return str(max(1, -(-_whole(text) // 1024)))


def _not_negative(text: str) -> str:
    # Java's -1 (the system's default size, or no limit) is 0 in librdkafka.
    return str(max(0, _whole(text)))


def _at_least_one(text: str) -> str:
    return str(max(1, _whole(text)))


@dataclass(frozen=True)
class Renamed:
    """The rule for a Java setting that has another name, or another unit, in librdkafka."""

    to: str  # librdkafka's name.
    unit: str = ""  # How the value changes, for the docs; empty if it does not change.
    # Converts the user's value. If the value is wrong, it raises ValueError with a message that describes the expected form.
    convert: Callable[[str], str] = _same


@dataclass(frozen=True)
class Ignored:
    """The rule for a setting that is ignored, because it changes no row here. `reason` is for the log and the docs."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """The rule for a setting that can't be used here, and must not be ignored. `way` says what to do instead."""

    way: str


Rule = Renamed | Ignored | Refused

_ROWS_ARE_BYTES: Final = Refused("rows are bytes here; cast or parse the columns in the query.")
_NO_GROUP: Final = Ignored("the source assigns partitions itself and joins no group.")
_NO_METRICS: Final = Ignored(
    "only Java clients have these metrics; use a StreamingQueryListener, or kafka.statistics.interval.ms."
)
_LEVEL: Final = Refused("set kafka.compression.level, which applies to the codec in kafka.compression.type.")
_OWN_PARTITIONER: Final = Ignored(
    "it tunes Java's partitioner; kafka.sticky.partitioning.linger.ms controls how rows without a key are spread."
)
_JAVA_CLASS: Final = "Java classes can't run here"
_TOKENS: Final = (
    f"{_JAVA_CLASS}: for OAUTHBEARER set kafka.sasl.oauthbearer.token.endpoint.url, kafka.sasl.oauthbearer.client.id and "
    "kafka.sasl.oauthbearer.client.secret, or kafka.sasl.oauthbearer.token.provider (package.module:function)."
)
_KERBEROS: Final = Refused(
    "the client libraries, as installed, do not support Kerberos (GSSAPI): set kafka.sasl.mechanism to PLAIN, "
    "SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."
)
_JAVA_SSL: Final = Refused(
    f"{_JAVA_CLASS}; give certificates and keys as PEM files: kafka.ssl.ca.location, kafka.ssl.certificate.location and "
    "kafka.ssl.key.location."
)
_LOGIN: Final = Ignored("it tunes Java's login; the clients here fetch a new token before the old one expires.")
_JWT: Final = Refused("only the client credentials grant is built in: set kafka.sasl.oauthbearer.token.provider.")

JAVA_SETTINGS: Final[Mapping[str, Rule]] = {
    # -- producer
    "max.request.size": Renamed("message.max.bytes"),
    "buffer.memory": Renamed("queue.buffering.max.kbytes", "bytes → kbytes", _kbytes),
    "batch.size": Renamed("batch.size", "0 → 1", _at_least_one),
    "compression.gzip.level": _LEVEL,
    "compression.lz4.level": _LEVEL,
    "compression.zstd.level": _LEVEL,
    "max.block.ms": Ignored("a task waits for room in its queue as long as its transaction lives."),
    "metadata.max.idle.ms": Ignored("it tunes Java's metadata cache; a producer lives for one task here."),
    "partitioner.class": Refused(
        "Java classes can't run here; the default places keys where Java's producers do: remove this option, set "
        "kafka.partitioner, or add a column partition."
    ),
    "partitioner.ignore.keys": Refused("set kafka.partitioner to random, or add a column partition."),
    "partitioner.adaptive.partitioning.enable": _OWN_PARTITIONER,
    "partitioner.availability.timeout.ms": _OWN_PARTITIONER,
    "transaction.two.phase.commit.enable": Refused("the sink prepares and commits its transactions itself."),
    "key.serializer": _ROWS_ARE_BYTES,
    "value.serializer": _ROWS_ARE_BYTES,
    # -- consumer
    "fetch.max.wait.ms": Renamed("fetch.wait.max.ms"),
    "max.partition.fetch.bytes": Renamed("fetch.message.max.bytes"),
    "max.poll.records": Ignored("the source reads whole ranges; set maxOffsetsPerTrigger for smaller micro-batches."),
    "max.poll.interval.ms": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "default.api.timeout.ms": Ignored("the source has its own time limit for each request to the brokers."),
    "exclude.internal.topics": Ignored("a topic pattern never matches internal topics here."),
    "key.deserializer": _ROWS_ARE_BYTES,
    "value.deserializer": _ROWS_ARE_BYTES,
    # -- both
    "request.timeout.ms": Renamed("socket.timeout.ms"),
    "receive.buffer.bytes": Renamed("socket.receive.buffer.bytes", "-1 → 0", _not_negative),
    "send.buffer.bytes": Renamed("socket.send.buffer.bytes", "-1 → 0", _not_negative),
    "connections.max.idle.ms": Renamed("connections.max.idle.ms", "-1 → 0", _not_negative),
    "socket.connection.setup.timeout.max.ms": Ignored("kafka.socket.connection.setup.timeout.ms limits every attempt."),
    "bootstrap.controllers": Refused("set kafka.bootstrap.servers to the addresses of brokers."),
    "config.providers": Refused(f"{_JAVA_CLASS}: read the values in your own program, and pass the values themselves."),
    "interceptor.classes": Refused("interceptors are Java classes and can't run here."),
    "metric.reporters": Refused("metric reporters are Java classes; use a StreamingQueryListener."),
    "auto.include.jmx.reporter": _NO_METRICS,
    "metrics.num.samples": _NO_METRICS,
    "metrics.recording.level": _NO_METRICS,
    "metrics.sample.window.ms": _NO_METRICS,
    "plugin.library.paths": Refused("plugins of the client are not loaded here."),
    # -- login: SASL
    "sasl.jaas.config": Refused(
        "a JAAS configuration is for Java clients: set kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password."
    ),
    "sasl.client.callback.handler.class": Refused(_TOKENS),
    "sasl.login.callback.handler.class": Refused(_TOKENS),
    "sasl.login.class": Refused(_TOKENS),
    "sasl.kerberos.service.name": _KERBEROS,
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.keytab": _KERBEROS,
    "sasl.kerberos.principal": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": _KERBEROS,
    "sasl.login.refresh.buffer.seconds": _LOGIN,
    "sasl.login.refresh.min.period.seconds": _LOGIN,
    "sasl.login.refresh.window.factor": _LOGIN,
    "sasl.login.refresh.window.jitter": _LOGIN,
    "sasl.login.connect.timeout.ms": _LOGIN,
    "sasl.login.read.timeout.ms": _LOGIN,
    "sasl.login.retry.backoff.ms": _LOGIN,
    "sasl.login.retry.backoff.max.ms": _LOGIN,
    "sasl.oauthbearer.client.credentials.client.id": Renamed("sasl.oauthbearer.client.id"),
    "sasl.oauthbearer.client.credentials.client.secret": Renamed("sasl.oauthbearer.client.secret"),
    "sasl.oauthbearer.jwt.retriever.class": Refused(_TOKENS),
    "sasl.oauthbearer.jwt.validator.class": Refused(_TOKENS),
    "sasl.oauthbearer.assertion.algorithm": _JWT,
    "sasl.oauthbearer.assertion.file": _JWT,
    "sasl.oauthbearer.assertion.private.key.file": _JWT,
    "sasl.oauthbearer.assertion.private.key.pem": _JWT,
    "sasl.oauthbearer.assertion.private.key.passphrase": _JWT,
    "enable.sasl.oauthbearer.unsecure.jwt": Refused(
        "only librdkafka can make unsecured tokens: set kafka.sasl.oauthbearer.token.provider (package.module:function)."
    ),
    # -- encryption: SSL. For stores (ssl.truststore.*, ssl.keystore.*) see `connector.kafka.client.java_stores`.
    "security.providers": _JAVA_SSL,
    "ssl.engine.factory.class": _JAVA_SSL,
    "ssl.keymanager.algorithm": _JAVA_SSL,
    "ssl.trustmanager.algorithm": _JAVA_SSL,
    "ssl.provider": _JAVA_SSL,
    "ssl.secure.random.implementation": _JAVA_SSL,
}
"""The rule for each of Java's settings, by the setting's name without ``kafka.``."""

READ_ONLY: Final = frozenset(
    {
        "allow.auto.create.topics",
        "check.crcs",
        "coordinator.query.interval.ms",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.id",
        "isolation.level",
        "queued.max.messages.kbytes",
        "queued.min.messages",
    }
)
"""The librdkafka settings that only readers use. The sink ignores them, as Java's producers do."""

WRITE_ONLY: Final = frozenset(
    {
        "acks",
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "partitioner",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "request.required.acks",
        "retries",
        "sticky.partitioning.linger.ms",
        "transaction.timeout.ms",
    }
)
"""The librdkafka settings that only writers use. The source ignores them, as Java's consumers do."""


@dataclass(frozen=True)
class Translation:
    """The user's settings, translated to librdkafka's names."""

    settings: Mapping[str, str]
    origins: Mapping[str, str]  # librdkafka's name → the user's name, without ``kafka.``, if the names differ.
    # The user's name, without ``kafka.`` → why it has no effect. Settings that only the other side uses are not included.
    ignored: Mapping[str, str]


def translate(name: str, given: Mapping[str, str], role: Role) -> Translation:
    """Translate Java's names into librdkafka's, and omit settings that only the other side (`Role`) uses."""
    settings: dict[str, str] = {}
    origins: dict[str, str] = {}
    ignored: dict[str, str] = {}
    foreign = WRITE_ONLY if role == "source" else READ_ONLY
    for key, text in given.items():
        rule = JAVA_SETTINGS.get(key)
        if isinstance(rule, Refused):
            raise forbidden_option(name, key, rule.way)
        if isinstance(rule, Ignored):
            ignored[key] = rule.reason
            continue
        to = rule.to if rule else key
        if to in foreign:
            continue
        if to != key and to in given:
            raise forbidden_option(name, key, f"it is Java's name for kafka.{to}, which is also set")
        try:
            settings[to] = rule.convert(text) if rule else text
        except ValueError as expectation:
            shown = shown_value(key, text)
            raise invalid_option(name, key, shown, str(expectation)) from None
        if to != key:
            origins[to] = key
    return Translation(settings, origins, ignored)


def as_markdown() -> str:
    """Return a table of Java's settings and their translations, as Markdown for `docs/security.md`."""
    lines = ["| `kafka.` | becomes |", "|---|---|"]
    for key, rule in JAVA_SETTINGS.items():
        match rule:
            case Renamed(to, unit):
                outcome = f"`{to}`" + (f" ({unit})" if unit else "")
            case Ignored(reason):
                outcome = f"ignored: {reason}"
            case Refused(way):
                outcome = f"refused: {way}"
        lines.append(f"| `{key}` | {outcome} |")
    return "\n".join(lines) + "\n"
