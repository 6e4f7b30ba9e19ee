"""The client configuration: the user's options ``kafka.*``, for both client libraries.

librdkafka (confluent-kafka) reads and writes rows; kafka-python ends transactions. Both get the same addresses and the
same security settings, which the user sets once, under librdkafka's names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connector.kafka.client import security
from connector.kafka.client.client_settings import translate
from connector.kafka.client.errors import forbidden_option
from connector.kafka.client.java_stores import java_stores
from connector.kafka.client.tokens import TokenSource
from connector.options import OptionTable, ParsedOptions, hides_value, shown_value
from transactional.errors import OptionError, RetriableError, StoreError, TwoPhaseCommitError

_log = logging.getLogger(__name__)

BOOTSTRAP: Final = "bootstrap.servers"

SOURCE_FORBIDDEN: Mapping[str, str] = {
    "auto.offset.reset": "set startingOffsets; later runs continue from the checkpoint.",
    "enable.auto.commit": "positions are stored in Spark's checkpoint; group offsets are committed after each checkpoint.",
    "auto.commit.interval.ms": "positions are stored in Spark's checkpoint.",
    "enable.auto.offset.store": "positions are stored in Spark's checkpoint.",
    "enable.partition.eof": "the source sets it to find the end of a range.",
    "group.instance.id": "the source assigns partitions itself and joins no group.",
    "group.protocol": "the source assigns partitions itself and joins no group.",
    "partition.assignment.strategy": "the source assigns partitions itself and joins no group.",
    "transactional.id": "a source writes nothing.",
}
"""The settings (without ``kafka.``) that the source rejects, each with the reason or with what to do instead."""

SINK_FORBIDDEN: Mapping[str, str] = {
    "transactional.id": "set transactionalIdPrefix; the sink makes each task's transactional id from it.",
    "enable.auto.commit": "a sink reads nothing.",
    "auto.offset.reset": "a sink reads nothing.",
    "enable.gapless.guarantee": "transactions already give this guarantee.",
    "delivery.report.only.error": "the sink counts deliveries itself.",
    "message.timeout.ms": "the sink derives it from kafka.transaction.timeout.ms.",
    "delivery.timeout.ms": "the sink derives it from kafka.transaction.timeout.ms.",
}
"""The settings (without ``kafka.``) that the sink rejects, each with the reason or with what to do instead."""

_FIXED: Mapping[str, tuple[frozenset[str], str]] = {
    "enable.idempotence": (frozenset({"true"}), "transactions need true, which is the default."),
    "acks": (frozenset({"all", "-1"}), "transactions need all, which is the default."),
    "request.required.acks": (frozenset({"all", "-1"}), "transactions need all, which is the default."),
}
"""Settings for which the sink accepts only the values that it uses anyway, each with these values and the reason."""

_SPARK_HIDES: Final = re.compile(r"secret|password|token|access[.]?key|url", re.IGNORECASE)
"""Matches the names of options whose values Spark hides by default (the settings spark.redaction.regex and
spark.sql.redaction.options.regex)."""

_KAFKA_PYTHON: Mapping[str, str] = {"client.id": "client_id", "client.dns.lookup": "client_dns_lookup"}
"""librdkafka's name → kafka-python's name, for the settings that concern neither addresses nor security."""


@dataclass(frozen=True)
class ClientConfig:
    """The checked ``kafka.*`` options, without that prefix. The repr shows no secrets."""

    name: str  # The name of the format, for messages.
    # The settings under librdkafka's names, with the format's defaults. ``bootstrap.servers`` is always included.
    settings: Mapping[str, str] = field(repr=False)
    # librdkafka's name → the name that the user wrote, without ``kafka.``, if the names differ.
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    # The name that the user wrote, without ``kafka.`` → why it has no effect here.
    ignored: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as the user wrote them."""
        return self.settings[BOOTSTRAP]

    @property
    def is_secured(self) -> bool:
        """True if the clients log in or encrypt their connections."""
        return self.settings.get("security.protocol", "PLAINTEXT") != "PLAINTEXT"

    def with_setting(self, key: str, value: str) -> ClientConfig:
        """Return a copy in which the setting `key` has this value."""
        return replace(self, settings={**self.settings, key: value})

    def for_librdkafka(self, **extra: Any) -> dict[str, Any]:
        """Return the settings for confluent-kafka. Keyword arguments add or replace some; ``_`` in a name means a dot."""
        more = {key.replace("_", "."): value for key, value in extra.items()}
        return {**security.for_librdkafka(self.settings), **more}

    def for_kafka_python(self) -> dict[str, Any]:
        """Return the settings for kafka-python's clients: addresses, security, ``client.id`` and ``client.dns.lookup``."""
        plain = {theirs: self.settings[ours] for ours, theirs in _KAFKA_PYTHON.items() if ours in self.settings}
        servers = [part.strip() for part in self.bootstrap_servers.split(",") if part.strip()]
        return {**plain, "bootstrap_servers": servers, **security.for_kafka_python(self.name, self.settings)}

    def check_token(self) -> None:
        """If the clients log in with tokens, fetch one now: an error here is clearer than the clients' own errors."""
        if self.settings.get("sasl.mechanism") == "OAUTHBEARER" and self.is_secured:
            try:
                TokenSource.of(self.settings).token()
            except StoreError as problem:
                raise StoreError(
                    problem.condition, **{name: self.scrub(str(value)) for name, value in problem.parameters.items()}
                ) from None

    def scrub(self, text: str) -> str:
        """Hide the values of secret settings in a text, because the clients' errors can quote these values."""
        for key, value in self.settings.items():
            if hides_value(key) and value:
                text = text.replace(value, "(hidden)")
        return text

    def warn_of_ignored(self) -> None:
        """Warn about the settings that have no effect here. The driver calls this once per start."""
        for key, reason in self.ignored.items():
            _log.warning("%s ignores the option kafka.%s: %s", self.name, key, reason)

    def warn_of_shown(self) -> None:
        """Warn about each option that may hold a secret and that Spark does not hide in query plans (``DataFrame.explain``).

        The driver calls this each time the source is loaded. A sink's options need no warning: Spark 4.2 shows them
        neither in plans nor in the UI or the event log. ``ssl.key.pem`` needs no warning either: `check_security`
        rejects a key that is not encrypted.
        """
        for key, value in self.settings.items():
            if value and hides_value(key) and not _SPARK_HIDES.search(key) and key != "ssl.key.pem":
                _log.warning(
                    "Spark shows the option kafka.%s in plans (DataFrame.explain). Don't put a secret in it, or set "
                    "spark.sql.redaction.options.regex=(?i)url|oauthbearer.config for the session",
                    self.origins.get(key, key),
                )

    def refused(self, problem: Exception) -> TwoPhaseCommitError:
        """Return the error for settings that the client rejects, with the option's name as the user wrote it."""
        detail = problem.args[0] if problem.args else problem
        reason = self.scrub(detail.str() if hasattr(detail, "str") else str(detail)).strip().rstrip(".")
        if hasattr(detail, "name") and detail.name() == "_CRIT_SYS_RESOURCE":
            return RetriableError("CLIENT_NOT_STARTED", reason=reason)
        quoted = re.findall(r"[\"`]([a-z0-9._]+)[\"`]", reason)
        key = next((key for key in quoted if "." in key or key in self.settings), "*")
        named, value = f"kafka.{self.origins.get(key, key)}", shown_value(key, self.settings.get(key, "..."))
        return OptionError(
            "INVALID_OPTION",
            owner=self.name,
            option=named,
            value=value,
            expectation=f"a value that the Kafka client accepts ({reason})",
        )


def client_config(
    table: OptionTable,
    options: ParsedOptions,
    forbidden: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
) -> ClientConfig:
    """Check the user's ``kafka.*`` options, add the defaults, and return the client configuration.

    `forbidden` has the settings that the format rejects, without ``kafka.``, and what to do instead.
    """
    given = {key.removeprefix("kafka."): text.strip() for key, text in options.passthrough.items()}
    if not given.get(BOOTSTRAP):
        raise OptionError(
            "MISSING_OPTION",
            owner=table.name,
            option="kafka.bootstrap.servers",
            reason="the brokers' addresses (host:port), separated by commas",
        )
    for key, text in given.items():
        way = forbidden.get(key)
        allowed, reason = _FIXED.get(key, (None, "")) if forbidden is SINK_FORBIDDEN else (None, "")
        if allowed is not None and text.lower() not in allowed:
            way = reason
        if way is not None:
            raise forbidden_option(table.name, key, way)
    plain, stores = java_stores(table.name, given)
    translated = translate(table.name, plain, "sink" if forbidden is SINK_FORBIDDEN else "source")
    settings = security.check_security(table.name, translated.settings)
    if "isolation.level" in settings:
        # librdkafka ignores case, but the driver compares strings. If they disagreed, ranges would end where no task can read.
        settings["isolation.level"] = settings["isolation.level"].lower()
    return ClientConfig(
        table.name, {**(defaults or {}), **settings}, {**stores, **translated.origins}, translated.ignored
    )
