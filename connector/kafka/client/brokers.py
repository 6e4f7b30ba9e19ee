"""Check that a broker answers, that a client accepts its settings, and that this user may use a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.config import BOOTSTRAP, ClientConfig
from connector.kafka.client.errors import login_failed, missing_right, unreachable_brokers
from connector.kafka.client.tls import is_tls, ssl_context, tls_failed, tls_hint, tls_problem
from transactional.clock import Deadline, SystemClock
from transactional.errors import StoreError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

REACH_SECONDS: Final = 20.0
"""The maximum time to wait for a broker. Unreachable brokers must be reported within 30 s, of which Spark's worker needs
up to 10 s.
"""

GROUP_SECONDS: Final = 5.0
GROUP_PAUSE_SECONDS: Final = 0.1
"""The pause between the attempts of `check_group`. The first attempts may fail, because the first request about any
consumer group makes the brokers create the topic for all groups' offsets."""

_LOGIN: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"})
_FATAL: Final = _LOGIN | {"_SSL", "TOPIC_AUTHORIZATION_FAILED"}
"""Connection errors that would occur again on every attempt."""

_NO_TOPIC: Final = "__consumer_offsets"
"""The topic that `check_brokers` asks about. Without a topic, the request would list every topic of the cluster."""


def check_brokers(config: ClientConfig, deadline: Deadline | None = None) -> AdminClient:
    """Check that a broker answers, and return a client for further requests. If none answers, raise an error."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    deadline = deadline or Deadline(REACH_SECONDS)
    reasons: list[str] = []
    fatal: list[str] = []

    def note(error: Any) -> None:
        # "All brokers down" follows the real reason, so it must not replace that reason.
        if error.name() != "_ALL_BROKERS_DOWN" or not reasons:
            reasons.append(f"{error.str()}")
        if error.name() in _FATAL:
            fatal.append(error.name())
        elif "SSL routines" in error.str():
            # If a broker refuses our certificate, the client reports it like a broken connection.
            fatal.append("_SSL")

    # Without this limit, the client waits 30 s for an address that does not respond, before it reports a reason.
    limits: dict[str, Any] = {"socket.connection.setup.timeout.ms": "5000", "log_level": 0, "error_cb": note}
    config.check_token()
    if is_tls(config.settings):
        ssl_context(config.name, config.settings)  # raises an error that names the wrong file or password
    try:
        admin = AdminClient({**limits, **config.for_librdkafka()})
    except (KafkaException, ValueError, TypeError, AttributeError) as problem:
        raise config.refused(problem) from None
    while True:
        # Wait in short steps, so that a fatal error ends the loop early.
        step = min(1.0, deadline.left())
        try:
            admin.list_topics(topic=_NO_TOPIC, timeout=step)
        except KafkaException as problem:
            admin.poll(0)
            if fatal or deadline.passed():
                reason = config.scrub(reasons[-1] if reasons else problem.args[0].str())
                raise _unusable(config, fatal, reason) from None
        else:
            return admin


def _unusable(config: ClientConfig, fatal: list[str], reason: str) -> StoreError:
    if fatal and fatal[-1] in _LOGIN:
        return login_failed(config.name, config.bootstrap_servers, reason)
    if "_SSL" in fatal:
        return tls_failed(config.name, config.bootstrap_servers, tls_problem(config.name, config.settings) or reason)
    return unreachable_brokers(config.name, config.bootstrap_servers, f"{reason}{tls_hint(config.settings)}")


def check_reader(config: ClientConfig) -> None:
    """Check that a consumer accepts the settings, without a connection. The driver calls this before the first row."""
    from confluent_kafka import Consumer, KafkaException

    # Without an address, the consumer does not connect. The login was already checked; checking it again costs a token.
    plain = {k: v for k, v in config.settings.items() if k != BOOTSTRAP and not k.startswith(("sasl.", "https."))}
    try:
        Consumer({**plain, "security.protocol": "PLAINTEXT", "log_level": 0}).close()
    except (KafkaException, ValueError, TypeError, AttributeError) as problem:
        raise config.refused(problem) from None


def check_group(admin: AdminClient, config: ClientConfig, group: str, deadline: Deadline | None = None) -> None:
    """Check that this user may commit offsets to a consumer group. The driver calls this in ``load()``.

    If the group's coordinator is loading or moving, or if no broker answers, the check ends without an error, because the
    group's offsets are for monitoring only.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AclOperation
    from tenacity import Retrying, retry_if_exception_type, wait_fixed

    limit = deadline or Deadline(GROUP_SECONDS)

    def ask() -> None:
        asked = admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=REACH_SECONDS
        )
        try:
            allowed = asked[group].result().authorized_operations
        except KafkaException as problem:
            if problem.args[0].name() == "GROUP_AUTHORIZATION_FAILED":
                raise missing_right("READ", f"group {group}") from None
            raise
        if allowed and AclOperation.READ not in allowed:
            raise missing_right("READ", f"group {group}")

    Retrying(
        retry=retry_if_exception_type(KafkaException),
        wait=wait_fixed(GROUP_PAUSE_SECONDS),
        stop=lambda _: limit.passed(),
        sleep=SystemClock().sleep,
        retry_error_callback=lambda _: None,
    )(ask)
