"""A connection over kafka-python, and the reason of what fails, which librdkafka gives."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.connection import KafkaConnection, backing_off
from connector.kafka.client.errors import login_failed, unreachable_brokers
from transactional.clock import Deadline
from transactional.errors import RetriableError, StoreError
from transactional.testing import FakeClock

PASSWORD = "hush-hush"
CONFIG = ClientConfig("2pc-kafka", {"bootstrap.servers": "b:9092", "sasl.password": PASSWORD})
UNREACHABLE = unreachable_brokers("2pc-kafka", "b:9092", "connection refused")
REFUSED = login_failed("2pc-kafka", "b:9092", "invalid credentials")


class Network:
    """In place of kafka-python's network: `failure` is what the bootstrap raises, `reason` what librdkafka raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: Exception | None = None
        self.reason: Exception | None = None
        self.settings: dict[str, Any] = {}
        self.calls: list[str] = []
        self.node: int | None = 1
        monkeypatch.setattr("kafka.net.selector.NetworkSelector", self._network)
        monkeypatch.setattr("kafka.net.manager.KafkaConnectionManager", self._manager)
        monkeypatch.setattr("connector.kafka.client.connection.check_brokers", self._check)

    def _network(self, **settings: Any) -> Any:
        names = ("start", "stop", "close")
        return SimpleNamespace(**{name: lambda name=name, **_: self.calls.append(f"network {name}") for name in names})

    def _manager(self, network: Any, **settings: Any) -> Any:
        self.settings = settings
        return SimpleNamespace(
            bootstrap=self._bootstrap,
            close=lambda: self.calls.append("close"),
            least_loaded_node=lambda: self.node,
        )

    def _bootstrap(self, milliseconds: int) -> None:
        if self.failure is not None:
            raise self.failure

    def _check(self, config: ClientConfig, deadline: Deadline) -> None:
        self.calls.append("check")
        if self.reason is not None:
            raise self.reason


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


def test_answers_may_be_large_and_many_requests_are_in_flight(network: Network) -> None:
    KafkaConnection(CONFIG).close()
    assert network.settings["receive_message_max_bytes"] == 100_000_000
    assert network.settings["max_in_flight_requests_per_connection"] > 200
    assert network.settings["bootstrap_servers"] == ["b:9092"]
    assert network.calls == ["network start", "close", "network close"]


@pytest.mark.parametrize(("reason", "condition"), [(REFUSED, "AUTHENTICATION_FAILED"), (None, "BROKERS_UNREACHABLE")])
def test_a_bootstrap_that_fails_gives_librdkafkas_reason_and_leaves_no_thread(
    network: Network, reason: Exception | None, condition: str
) -> None:
    network.failure, network.reason = errors.KafkaTimeoutError(f"Unable to bootstrap with {PASSWORD}"), reason
    with pytest.raises(StoreError, match=condition) as refused:
        KafkaConnection(CONFIG)
    assert PASSWORD not in str(refused.value)
    assert network.calls == ["network start", "close", "network stop", "check"]


@pytest.mark.parametrize("reason", [None, UNREACHABLE])
def test_a_question_that_runs_out_of_time_may_be_asked_again(network: Network, reason: Exception | None) -> None:
    network.reason = reason
    clock = FakeClock()
    with pytest.raises(RetriableError, match=r"KAFKA_TIMEOUT.*waiting for leaders") as late:
        KafkaConnection(CONFIG, clock).until(lambda: None, "leaders")
    assert ("connection refused" in str(late.value)) == (reason is not None)
    assert clock.passed == pytest.approx(30)


def test_a_login_that_is_refused_meanwhile_is_named_when_a_question_runs_out_of_time(network: Network) -> None:
    network.reason = REFUSED
    with pytest.raises(StoreError, match="AUTHENTICATION_FAILED"):
        KafkaConnection(CONFIG, FakeClock()).until(lambda: None, "leaders")


def test_the_limit_of_a_question_is_that_of_its_commit(network: Network) -> None:
    clock = FakeClock()
    connection = KafkaConnection(CONFIG, clock)
    connection.limit = Deadline(90, clock)
    with pytest.raises(RetriableError):
        connection.until(lambda: None, "leaders")
    assert clock.passed == pytest.approx(90)


@pytest.mark.parametrize(
    "problem",
    [errors.KafkaConnectionError("gone"), errors.NodeNotReadyError(1), errors.UnknownBrokerIdError(), OSError()],
)
def test_a_connection_that_breaks_is_passed_over(network: Network, problem: Exception) -> None:
    KafkaConnection(CONFIG).pass_over(problem)


@pytest.mark.parametrize(
    ("problem", "condition"),
    [
        (errors.SaslAuthenticationFailedError(f"no {PASSWORD}"), "AUTHENTICATION_FAILED"),
        (errors.UnsupportedSaslMechanismError(), "AUTHENTICATION_FAILED"),
        (errors.IllegalSaslStateError(), "AUTHENTICATION_FAILED"),
        (errors.ClusterAuthorizationFailedError(), "KAFKA_REFUSED"),
        (errors.IncompatibleBrokerVersion("too old"), "KAFKA_REFUSED"),
        (StoreError("NO_TOKEN", "from the token provider, in the connection's thread"), "NO_TOKEN"),
    ],
)
def test_what_would_fail_again_is_raised_at_once(network: Network, problem: Exception, condition: str) -> None:
    with pytest.raises(StoreError, match=condition) as raised:
        KafkaConnection(CONFIG).pass_over(problem)
    assert PASSWORD not in str(raised.value)


def test_pauses_double_up_to_the_longest_and_the_last_one_ends_at_the_deadline() -> None:
    clock = FakeClock()
    times: list[float] = []
    assert backing_off(Deadline(10, clock), clock, 1.0, 4.0)(lambda: times.append(clock.passed)) is None
    assert times == [0, 1, 3, 7, 10]


def test_the_first_result_ends_the_pauses_even_an_empty_one() -> None:
    clock = FakeClock()
    answers: Iterator[list[int] | None] = iter([None, None, []])
    assert backing_off(Deadline(10, clock), clock, 1.0, 4.0)(lambda: next(answers)) == []
    assert clock.passed == 3


def test_a_deadline_that_has_passed_leaves_one_try() -> None:
    clock = FakeClock()
    assert backing_off(Deadline(0, clock), clock)(lambda: "answer") == "answer"
    assert backing_off(Deadline(0, clock), clock)(lambda: None) is None
