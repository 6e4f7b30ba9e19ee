"""One client configuration: what users write as ``kafka.*`` drives both client libraries.

librdkafka (confluent-kafka) reads and writes rows; kafka-python ends transactions. Both get the same addresses and the
same security, given once, in librdkafka's names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client import security
from connector.kafka.client.client_settings import translate
from connector.kafka.client.connection import missing_right
from connector.kafka.client.tokens import TokenSource
from connector.options import OptionTable, ParsedOptions, hides_value
from transactional.clock import Deadline, SystemClock
from transactional.errors import OptionError, RetriableError, StoreError, TwoPhaseCommitError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = [
    "SINK_FORBIDDEN",
    "SOURCE_FORBIDDEN",
    "ClientConfig",
    "check_brokers",
    "check_group",
    "check_reader",
    "client_config",
]

_log = logging.getLogger(__name__)

BOOTSTRAP: Final = "bootstrap.servers"

REACH_SECONDS: Final = 20.0
"""A user waits for at most 30 s until an unreachable broker is an error: the rest is for Spark's own worker."""

GROUP_SECONDS: Final = 5.0
GROUP_PAUSE_SECONDS: Final = 0.1
"""The first question about any group makes the brokers create a topic for all of them."""

SOURCE_FORBIDDEN: Mapping[str, str] = {
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
    "transactional.id": "set transactionalIdPrefix; each task's name is made from it.",
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

_LOGIN: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"})
_FATAL: Final = _LOGIN | {"_SSL", "TOPIC_AUTHORIZATION_FAILED"}
"""Errors of a connection that waiting does not heal."""

_SPARK_HIDES: Final = re.compile(r"secret|password|token|access[.]?key|url", re.IGNORECASE)
"""Options that Spark hides by itself: spark.redaction.regex and spark.sql.redaction.options.regex, as they are by default."""

_KAFKA_PYTHON: Mapping[str, str] = {"client.id": "client_id", "client.dns.lookup": "client_dns_lookup"}
"""librdkafka's name → kafka-python's, of what is neither addresses nor security."""


@dataclass(frozen=True)
class ClientConfig:
    """Checked ``kafka.*`` options, without their prefix; its repr shows no secret.

    Parameters
    ----------
    name : str
        The format, for messages.
    settings : Mapping[str, str]
        In librdkafka's names, defaults of the format included. Has ``bootstrap.servers``.
    origins : Mapping[str, str]
        librdkafka's name → what the user wrote, without ``kafka.``, where the two differ.
    ignored : Mapping[str, str]
        What the user wrote, without ``kafka.`` → why it has no effect here.
    """

    name: str
    settings: Mapping[str, str] = field(repr=False)
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    ignored: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses, as they were given."""
        return self.settings[BOOTSTRAP]

    @property
    def is_secured(self) -> bool:
        """Whether brokers are told who we are, or connections are encrypted."""
        return self.settings.get("security.protocol", "PLAINTEXT") != "PLAINTEXT"

    def with_setting(self, key: str, value: str) -> ClientConfig:
        """The same with another setting."""
        return replace(self, settings={**self.settings, key: value})

    def for_librdkafka(self, **extra: Any) -> dict[str, Any]:
        """Settings for confluent-kafka; `extra` (underscores for dots) wins."""
        more = {key.replace("_", "."): value for key, value in extra.items()}
        return {**security.for_librdkafka(self.settings), **more}

    def for_kafka_python(self) -> dict[str, Any]:
        """Addresses and security for kafka-python's clients; nothing else of the settings concerns them.

        Raises
        ------
        OptionError
            ``INVALID_OPTION``: certificates or keys that can't be read.
        """
        found = {theirs: self.settings[ours] for ours, theirs in _KAFKA_PYTHON.items() if ours in self.settings}
        servers = [part.strip() for part in self.bootstrap_servers.split(",") if part.strip()]
        return {**found, "bootstrap_servers": servers, **security.for_kafka_python(self.name, self.settings)}

    def check_token(self) -> None:
        """Fetch the token that clients will log in with, if they do: its error says more than theirs.

        Raises
        ------
        StoreError
            ``NO_TOKEN``.
        """
        if self.settings.get("sasl.mechanism") == "OAUTHBEARER" and self.is_secured:
            try:
                TokenSource.of(self.settings).token()
            except StoreError as problem:
                raise StoreError(problem.condition, self.scrub(problem.message), **problem.parameters) from None

    def scrub(self, text: str) -> str:
        """The text without any secret of ours: clients quote settings in their errors."""
        for key, value in self.settings.items():
            if hides_value(key) and value:
                text = text.replace(value, "(hidden)")
        return text

    def tell_ignored(self) -> None:
        """Log what the user wrote and what has no effect here. *On the driver, once a start.*"""
        for key, reason in self.ignored.items():
            _log.warning("%s ignores the option kafka.%s: %s", self.name, key, reason)

    def tell_shown(self) -> None:
        """Log which secrets Spark would show in the plans of a source. *On the driver, once a load.*

        Of a sink's options it shows none (4.2: plans, UI, event log); a key as text is encrypted, see `security`.
        """
        for key, value in self.settings.items():
            if value and hides_value(key) and not _SPARK_HIDES.search(key) and key != "ssl.key.pem":
                _log.warning(
                    "Spark shows the option kafka.%s in plans (DataFrame.explain). Put no secret in it, or set "
                    "spark.sql.redaction.options.regex=(?i)url|oauthbearer.config for the session",
                    self.origins.get(key, key),
                )

    def refused(self, problem: Exception) -> TwoPhaseCommitError:
        """The error of settings that the client does not take, with the option's name as the user wrote it."""
        detail = problem.args[0] if problem.args else problem
        reason = self.scrub(detail.str() if hasattr(detail, "str") else str(detail)).strip().rstrip(".")
        if hasattr(detail, "name") and detail.name() == "_CRIT_SYS_RESOURCE":
            return RetriableError(
                "CLIENT_NOT_STARTED",
                f"{self.name}: this machine has no thread, memory or file left for a Kafka client: {reason}.",
                reason=reason,
            )
        quoted = re.findall(r"[\"`]([a-z0-9._]+)[\"`]", reason)
        options = [f"kafka.{self.origins.get(key, key)}" for key in quoted if "." in key or key in self.settings]
        named = options[0] if options else "kafka.*"
        return OptionError(
            "INVALID_OPTION",
            f"{self.name}: the Kafka client refuses the option {named}: {reason}.",
            option=named,
            reason=reason,
        )


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
        ``MISSING_OPTION``: no brokers, or half of what logs in; ``FORBIDDEN_OPTION``: a key that is ours to set, or that
        one of the two libraries can't follow, with the way to use instead; ``INVALID_OPTION``.
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
    plain, stores = security.java_stores(table.name, given)
    translated = translate(table.name, plain, "sink" if forbidden is SINK_FORBIDDEN else "source")
    settings = security.check_security(table.name, translated.settings)
    if "isolation.level" in settings:
        # librdkafka takes any case, and the driver compares: were they not of one mind, ranges would end where no task can.
        settings["isolation.level"] = settings["isolation.level"].lower()
    return ClientConfig(
        table.name, {**(defaults or {}), **settings}, {**stores, **translated.origins}, translated.ignored
    )


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
        At once where waiting can't help: ``AUTHENTICATION_FAILED``, ``TLS_FAILED``, ``NO_TOKEN``. When the deadline has
        passed: ``BROKERS_UNREACHABLE``, with the addresses and the client's last reason.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    deadline = deadline or Deadline(REACH_SECONDS)
    reasons: list[str] = []
    fatal: list[str] = []

    def note(error: Any) -> None:
        # "All brokers down" only follows the reasons; it does not replace them.
        if error.name() != "_ALL_BROKERS_DOWN" or not reasons:
            reasons.append(f"{error.str()}")
        if error.name() in _FATAL:
            fatal.append(error.name())
        elif "SSL routines" in error.str():
            # What the broker has against our certificate ends the connection as if it had broken.
            fatal.append("_SSL")

    # Without a limit a silent address takes the client's own 30 s before it has a reason.
    limits: dict[str, Any] = {"socket.connection.setup.timeout.ms": "5000", "log_level": 0, "error_cb": note}
    config.check_token()
    if security.is_tls(config.settings):
        security.ssl_context(config.name, config.settings)  # says by name which file or password is wrong
    try:
        admin = AdminClient({**limits, **config.for_librdkafka()})
    except (KafkaException, ValueError, TypeError, AttributeError) as problem:
        raise config.refused(problem) from None
    while True:
        # Short waits, so that an error that nothing heals ends it early.
        step = min(1.0, deadline.left())
        try:
            admin.list_topics(topic=_NO_TOPIC, timeout=step)
        except KafkaException as problem:
            admin.poll(0)
            if fatal or deadline.passed():
                reason = config.scrub(reasons[-1] if reasons else problem.args[0].str())
                if fatal and fatal[-1] in _LOGIN:
                    raise security.login_failed(config.name, config.bootstrap_servers, reason) from None
                if "_SSL" in fatal:
                    told = security.tls_problem(config.name, config.settings) or reason
                    raise security.tls_failed(config.name, config.bootstrap_servers, told) from None
                hint = security.tls_hint(config.settings)
                raise StoreError(
                    "BROKERS_UNREACHABLE",
                    f"{config.name}: no broker of {config.bootstrap_servers} (option kafka.bootstrap.servers) can be "
                    f"used: {reason}. Check the addresses, that the brokers run, and kafka.security.protocol.{hint}",
                    option="kafka.bootstrap.servers",
                    addresses=config.bootstrap_servers,
                    reason=reason,
                ) from None
        else:
            return admin


_NO_TOPIC: Final = "__consumer_offsets"
"""Asked for by name, because a metadata request without a name lists every topic of the cluster."""


def check_reader(config: ClientConfig) -> None:
    """Check that a reader's client takes the settings. *Called on the driver, before the first row*. Connects to nobody.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``, with the option's name.
    """
    from confluent_kafka import Consumer, KafkaException

    # Without an address it does not connect. Who we are was looked at by then, and would cost a token.
    plain = {k: v for k, v in config.settings.items() if k != BOOTSTRAP and not k.startswith(("sasl.", "https."))}
    try:
        Consumer({**plain, "security.protocol": "PLAINTEXT", "log_level": 0}).close()
    except (KafkaException, ValueError, TypeError, AttributeError) as problem:
        raise config.refused(problem) from None


def check_group(admin: AdminClient, config: ClientConfig, group: str, deadline: Deadline | None = None) -> None:
    """Check that offsets may be committed to the group that the user named. *Called on the driver, at* ``load()``.

    Raises
    ------
    StoreError
        ``MISSING_RIGHT``: READ on the group.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AclOperation

    deadline = deadline or Deadline(GROUP_SECONDS)
    while not deadline.passed():
        asked = admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=REACH_SECONDS
        )
        try:
            allowed = asked[group].result().authorized_operations
        except KafkaException as problem:
            if problem.args[0].name() == "GROUP_AUTHORIZATION_FAILED":
                raise missing_right("READ", f"group {group}") from None
            # A coordinator that loads or moves, or brokers that can't say: offsets are for monitoring only.
            SystemClock().sleep(GROUP_PAUSE_SECONDS)
            continue
        if allowed and AclOperation.READ not in allowed:
            raise missing_right("READ", f"group {group}")
        return
