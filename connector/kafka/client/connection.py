"""Connections to all brokers of a cluster, over which requests go out as they are built.

kafka-python's network and protocol classes do the work; the outcome of each request is told apart, not folded into an
exception by a library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from connector.kafka.client.security import login_failed, tls_failed
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import RetriableError, StoreError, TwoPhaseCommitError

__all__ = ["KafkaConnection", "error_name", "missing_right"]

CONNECT_SECONDS = 20.0
"""A query is refused within 30 s when no broker can be reached: the rest is for Spark's own worker."""

REQUEST_SECONDS = 30.0
"""Limit of one question, with its retries while a coordinator or leader moves; a failover takes a few seconds."""

IN_FLIGHT = 200
"""Requests that may be under way on one connection. The library refuses what is over its limit instead of queueing."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 1.0
"""Pauses between retries double from the first to the longest. Markers are usually written within 20 ms."""

ResponseT = TypeVar("ResponseT")


def error_name(code: int) -> str:
    """Name a protocol error: ``PRODUCER_FENCED (90)``."""
    from kafka.errors import for_code

    return f"{getattr(for_code(code), 'message', 'UNKNOWN')} ({code})"


class KafkaConnection:
    """Connections to all brokers, made when they are needed and dropped by `close`; for one thread at a time.

    Parameters
    ----------
    configuration : Mapping[str, Any]
        kafka-python's, as `connector.kafka.client.config` makes it.
    clock : Clock, optional

    Attributes
    ----------
    limit : Deadline or None
        How long a question may take with its retries; 30 s where it is None.

    Raises
    ------
    StoreError
        ``BROKERS_UNREACHABLE`` within 30 s; at once ``AUTHENTICATION_FAILED``, ``TLS_FAILED``, ``NO_TOKEN``.
    """

    def __init__(self, configuration: Mapping[str, Any], clock: Clock | None = None) -> None:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        from connector.kafka.client.network import telling_client

        self.clock: Clock = clock or SystemClock()
        self.limit: Deadline | None = None
        settings = {
            "bootstrap_timeout_ms": int(CONNECT_SECONDS * 1000),
            "max_in_flight_requests_per_connection": IN_FLIGHT + 10,
            "reconnect_backoff_max_ms": 1000,
            "kafka_client": telling_client,
            **configuration,
        }
        self._servers = ",".join(settings["bootstrap_servers"])
        self._client: Any = KafkaAdminClient.__new__(KafkaAdminClient)
        try:
            self._client.__init__(**settings)
        except (KafkaError, OSError, ValueError) as problem:
            manager = self._abandon()
            self._raise_fatal(manager)
            reason = getattr(manager, "reason", None) or problem
            raise StoreError(
                "BROKERS_UNREACHABLE",
                f"No broker of kafka.bootstrap.servers={self._servers} could be used within {CONNECT_SECONDS:.0f} s "
                f"({type(reason).__name__}: {reason}). Check the addresses, that the brokers run, and "
                "kafka.security.protocol.",
                servers=self._servers,
            ) from problem
        self._manager: Any = self._client._manager

    def close(self) -> None:
        """Drop all connections and the thread that serves them."""
        self._client.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        """Send requests to their nodes, pipelined; answers in order, an exception in place of a missing one."""
        answers: list[Any] = []
        for start in range(0, len(requests), IN_FLIGHT):
            answers += self._manager.run(self._exchange, requests[start : start + IN_FLIGHT])
        if any(isinstance(answer, Exception) for answer in answers):
            self._manager.cluster.request_update()
        return answers

    async def _exchange(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        # All are sent before the first answer is awaited.
        sent = [self._start(node, request) for node, request in requests]
        return [await _finish(future) for future in sent]

    def _start(self, node: int, request: Any) -> Any:
        try:
            return self._manager.send(request, node_id=node)
        except Exception as problem:  # noqa: BLE001 - an unknown node is an answer too.
            return problem

    def ask(self, request: Callable[[], Any], node: Callable[[], int] | None = None) -> Any:
        """Send one request, again while connections break; to any node unless told which."""

        def attempt() -> Any:
            target = node() if node else self._manager.least_loaded_node()
            answer = self.send_all([(target, request())])[0]
            if isinstance(answer, Exception):
                return self.pass_over(answer)
            return answer

        return self.until(attempt, "an answer")

    def until(self, attempt: Callable[[], ResponseT | None], what: str) -> ResponseT:
        """Repeat `attempt` with growing pauses until it returns something.

        Raises
        ------
        RetriableError
            ``KAFKA_TIMEOUT`` when `limit` has passed.
        """
        deadline = self.limit or Deadline(REQUEST_SECONDS, self.clock)
        pause = FIRST_PAUSE_SECONDS
        while True:
            result = attempt()
            if result is not None:
                return result
            self._raise_fatal(self._manager)
            if deadline.passed():
                reason = self._manager.reason
                told = f" The last connection that failed: {type(reason).__name__}: {reason}." if reason else ""
                raise RetriableError(
                    "KAFKA_TIMEOUT", f"Kafka did not give {what} in time. Are all brokers up?{told}", what=what
                )
            self.clock.sleep(min(pause, deadline.left()))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def pass_over(self, problem: Exception) -> None:
        """Pass over what a broken or busy connection raises; raise everything else."""
        from kafka.errors import (
            AuthorizationError,
            IncompatibleBrokerVersion,
            UnknownBrokerIdError,
        )
        from kafka.errors import RetriableError as KafkaRetriableError

        self._raise_fatal(self._manager)
        if isinstance(problem, (AuthorizationError, IncompatibleBrokerVersion)):
            raise StoreError(
                "KAFKA_REFUSED", f"Kafka refused a request: {type(problem).__name__}: {problem}", error=str(problem)
            ) from problem
        if not isinstance(problem, (KafkaRetriableError, UnknownBrokerIdError, OSError)):
            raise problem

    def _raise_fatal(self, manager: Any) -> None:
        """Raise why the last connection failed, where no waiting heals it."""
        import ssl

        fatal = getattr(manager, "fatal", None)
        if fatal is None:
            return
        if isinstance(fatal, TwoPhaseCommitError):
            raise fatal
        if isinstance(fatal, ssl.SSLError):
            raise tls_failed("2pc-kafka", self._servers, fatal) from None
        raise login_failed("2pc-kafka", self._servers, f"{type(fatal).__name__}: {fatal}") from None

    def _abandon(self) -> Any:
        net = getattr(self._client, "_net", None) or getattr(getattr(self._client, "_client", None), "_net", None)
        if net is None:
            return None
        manager = self._client._client._manager
        manager.closed = True
        net.stop(timeout_ms=1000)
        return manager


async def _finish(future: Any) -> Any:
    try:
        return future if isinstance(future, Exception) else await future
    except Exception as problem:  # noqa: BLE001 - the caller judges each by itself.
        return problem


def missing_right(operation: str, resource: str) -> StoreError:
    """Make the error of a right that is lacking."""
    return StoreError(
        "MISSING_RIGHT",
        f"This user lacks {operation} on {resource}. Grant it: kafka-acls.sh --add --operation {operation.title()} ...",
        operation=operation,
        resource=resource,
    )
