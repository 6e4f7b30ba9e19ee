"""Connections to all brokers of a cluster, for raw protocol requests and their answers.

kafka-python's network and protocol classes do the work. If a request times out, librdkafka is used to find out why, because
kafka-python does not report the reason.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tenacity import Retrying, retry_if_result, wait_exponential

from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import login_failed, unreachable_brokers
from connector.kafka.client.kafka_python import import_kafka
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import RetriableError, StoreError, StoreUnreachableError

CONNECT_SECONDS: Final = 20.0
"""The maximum time to wait for a broker. Unreachable brokers must be reported within 30 s, of which Spark's worker needs
up to 10 s.
"""

REQUEST_SECONDS: Final = 30.0
"""The time limit for one request, including retries while a coordinator or leader moves, which takes a few seconds."""

REASON_SECONDS: Final = 5.0
"""The maximum time to search for the reason why a request timed out."""

OPINION_SECONDS: Final = 10.0
"""The maximum time to wait for two brokers' answers, including the time to connect. If two answer, a paused broker
costs no time."""

ENOUGH: Final = 2
"""The number of brokers that must answer before their answers count as evidence; one, if there is only one broker."""

ASKED_AT_MOST: Final = 3
"""The maximum number of brokers that get the same request. The first `ENOUGH` answers count."""

IN_FLIGHT: Final = 200
"""The maximum number of requests in flight on one connection. kafka-python rejects further requests."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 1.0
"""Pauses between retries double from the first to the longest. Markers are usually written within 20 ms."""

ANSWER_BYTES: Final = 100_000_000
"""The largest answer that a connection accepts, in bytes. kafka-python's default is 1 MB."""

ResponseT = TypeVar("ResponseT")


class _NoWire(logging.Filter):
    """A filter that drops log records with raw requests, because login requests contain the password."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_NoWire())


def backing_off(
    deadline: Deadline, clock: Clock, first: float = FIRST_PAUSE_SECONDS, longest: float = LONGEST_PAUSE_SECONDS
) -> Retrying:
    """Return a retrier that calls a function until its result is not None, with pauses that double.

    If the deadline passes first, the retrier returns None. It calls the function at least once.
    """
    return Retrying(
        retry=retry_if_result(lambda result: result is None),
        wait=wait_exponential(multiplier=first, max=longest),
        stop=lambda _: deadline.passed(),
        sleep=lambda pause: clock.sleep(min(pause, deadline.left())),
        retry_error_callback=lambda _: None,
    )


class KafkaConnection:
    """Connections to all brokers, opened when they are needed and closed by `close`. Use them from one thread at a time.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``: a certificate or key can't be read.
    StoreError
        ``BROKERS_UNREACHABLE``, ``AUTHENTICATION_FAILED``, ``TLS_FAILED`` or ``NO_TOKEN``, within 30 s.
    """

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        import_kafka()
        from kafka.errors import KafkaError
        from kafka.net.manager import KafkaConnectionManager
        from kafka.net.selector import NetworkSelector

        self.clock: Clock = clock or SystemClock()
        self.limit: Deadline | None = None  # Time limit of a request, including its retries; None means 30 s.
        self.config = config
        # Whether every request so far was answered and no caller has failed. If False, the connections are not reused.
        self.intact = True
        self.life = Deadline(0.0)  # How long the connections may be reused.
        settings = {
            "max_in_flight_requests_per_connection": IN_FLIGHT + 10,
            "receive_message_max_bytes": ANSWER_BYTES,
            "reconnect_backoff_max_ms": 1000,
            **config.for_kafka_python(),
        }
        self._network: Any = NetworkSelector(**settings)
        self._manager: Any = KafkaConnectionManager(self._network, **settings)
        self._network.start()
        try:
            self._manager.bootstrap(int(CONNECT_SECONDS * 1000))
        except (KafkaError, OSError) as problem:
            self._manager.close()
            self._network.stop(timeout_ms=1000)
            check_brokers(config, Deadline(REASON_SECONDS))
            raise unreachable_brokers(
                config.name,
                config.bootstrap_servers,
                f"none answered within {CONNECT_SECONDS:.0f} s ({type(problem).__name__}: {config.scrub(str(problem))})",
            ) from problem

    def close(self) -> None:
        """Close all connections and the thread that serves them."""
        self._manager.close()
        self._network.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        """Send requests to their nodes without waiting in between.

        Return the answers in the order of the requests, with an exception in place of each missing answer.
        """
        answers: list[Any] = []
        intact, self.intact = self.intact, False
        for start in range(0, len(requests), IN_FLIGHT):
            answers += self._manager.run(self._exchange, requests[start : start + IN_FLIGHT])
        if any(isinstance(answer, Exception) for answer in answers):
            self.look_for_brokers()
        else:
            self.intact = intact
        return answers

    async def _exchange(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        # Send all requests before awaiting the first answer.
        sent = [self._start(node, request) for node, request in requests]
        return [await _finish(future) for future in sent]

    def _start(self, node: int, request: Any, seconds: float | None = None) -> Any:
        limit = None if seconds is None else seconds * 1000
        try:
            return self._manager.send(request, node_id=node, request_timeout_ms=limit)
        except Exception as problem:  # noqa: BLE001 - an unknown node counts as an answer.
            return problem

    def ask_several(self, request: Callable[[], Any]) -> list[Any] | None:
        """Send one request to several brokers, and return the first two answers; None if too few brokers answered.

        A broker that was paused and replaced answers with outdated metadata. So one answer does not prove which broker leads
        now. If the cluster has only one broker, that broker's answer is enough.
        """
        nodes = [broker.node_id for broker in self._manager.cluster.brokers()]
        random.shuffle(nodes)
        enough = max(1, min(ENOUGH, len(nodes)))
        requests = [(node, request()) for node in nodes[:ASKED_AT_MOST]]
        answers = self._manager.run(self._first, requests, enough)
        found = [answer for answer in answers if not isinstance(answer, Exception)]
        if len(found) >= enough:
            return found
        self.intact = False
        for answer in answers:
            if isinstance(answer, Exception):
                self.pass_over(answer)
        self.look_for_brokers()
        return None

    def look_for_brokers(self) -> None:
        """Make the client update its list of the cluster's brokers."""
        self._manager.cluster.request_update()

    async def _first(self, requests: Sequence[tuple[int, Any]], enough: int) -> list[Any]:
        """Send all requests, wait for `enough` good answers or for all answers, and return the answers received."""
        from kafka.future import Future

        done = Future()
        answers: list[Any] = []

        def take(answer: Any) -> None:
            answers.append(answer)
            good = sum(not isinstance(each, Exception) for each in answers)
            if not done.is_done and (good == enough or len(answers) == len(requests)):
                done.success(None)

        for node, request in requests:
            future = self._start(node, request, OPINION_SECONDS)
            if isinstance(future, Exception):
                take(future)
            else:
                future.add_both(take)
        await done
        return list(answers)

    def ask(self, request: Callable[[], Any], node: Callable[[], int] | None = None) -> Any:
        """Send a request to a broker (by default, any), and return the answer. If the connection breaks, try again."""

        def attempt() -> Any:
            target = node() if node else self._manager.least_loaded_node()
            answer = self.send_all([(target, request())])[0]
            if isinstance(answer, Exception):
                return self.pass_over(answer)
            return answer

        return self.until(attempt, "an answer")

    def any_node(self) -> int:
        """Return the id of the broker with the fewest requests in flight."""
        return int(self.until(self._manager.least_loaded_node, "a broker"))

    def version_of(self, request: Any, highest: int | None = None) -> int:
        """Return the newest version of a request that both client and brokers support, at most `highest`."""
        limit = {} if highest is None else {"max_version": highest}
        return int(self._manager.broker_version_data.api_version(request, **limit))

    def supported_versions(self) -> Mapping[int, tuple[int, int]]:
        """Return, for each request, the lowest and the highest version that a broker supports.

        The keys are the requests' numbers in the protocol. The broker is the one to which the client connected first.
        """
        return dict(self._manager.broker_version_data.api_versions)

    def until(self, attempt: Callable[[], ResponseT | None], what: str) -> ResponseT:
        """Repeat `attempt`, with growing pauses, until its result is not None. `what` names the result in errors."""
        deadline = self.limit or Deadline(REQUEST_SECONDS, self.clock)
        result: ResponseT | None = backing_off(deadline, self.clock)(attempt)
        if result is None:
            raise self._timed_out(what)
        return result

    def _timed_out(self, what: str) -> RetriableError:
        reason = ""
        try:
            check_brokers(self.config, Deadline(REASON_SECONDS))
        except StoreUnreachableError as problem:
            reason = f"; no broker can be used: {problem.parameters['reason']}"
        return RetriableError("KAFKA_TIMEOUT", reason=f"the client was waiting for {what}{reason}", what=what)

    def pass_over(self, problem: Exception) -> None:
        """Ignore an error of a broken or busy connection; raise every other error."""
        from kafka.errors import (
            AuthorizationError,
            IllegalSaslStateError,
            IncompatibleBrokerVersion,
            SaslAuthenticationFailedError,
            UnknownBrokerIdError,
            UnsupportedSaslMechanismError,
        )
        from kafka.errors import RetriableError as KafkaRetriableError

        if isinstance(problem, (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError)):
            reason = self.config.scrub(f"{type(problem).__name__}: {problem}")
            raise login_failed(self.config.name, self.config.bootstrap_servers, reason) from None
        if isinstance(problem, (AuthorizationError, IncompatibleBrokerVersion)):
            raise StoreError("KAFKA_REFUSED", reason=f"{type(problem).__name__}: {problem}") from problem
        if not isinstance(problem, (KafkaRetriableError, UnknownBrokerIdError, OSError)):
            raise problem


async def _finish(future: Any) -> Any:
    try:
        return future if isinstance(future, Exception) else await future
    except Exception as problem:  # noqa: BLE001 - the caller handles each error.
        return problem
