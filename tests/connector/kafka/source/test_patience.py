"""What the source says where brokers do not answer for longer than it asks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connector.kafka.client.cluster_admin import MOVING
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.kafka.source.topic_reader import Retries, TopicReader
from transactional.errors import TwoPhaseCommitError
from transactional.failure import Remedy, failure_of
from transactional.testing import FakeClock


def refused(name: str, asked: Callable[[], None] = lambda: None) -> TwoPhaseCommitError:
    """The error of brokers that answer every question with this; `asked` is called when all topics are asked for."""
    from confluent_kafka import KafkaError, KafkaException

    class Brokers:
        def list_offsets(self, *_: Any, **__: Any) -> Any:
            raise KafkaException(KafkaError(getattr(KafkaError, name)))

        describe_topics = list_offsets

        def list_topics(self, *_: Any, **__: Any) -> Any:
            asked()
            self.list_offsets()

    config = ClientConfig("barrier-kafka", {"bootstrap.servers": "b:9092"})
    reader = TopicReader(Brokers(), config, Retries(1, 0.1), patience=0.3, clock=FakeClock())  # type: ignore[arg-type]
    with pytest.raises(TwoPhaseCommitError) as problem:
        reader.latest([Partition("in", 0)])
    return problem.value


@pytest.mark.parametrize(
    "name",
    [
        "_TRANSPORT",
        "_TIMED_OUT",
        "_ALL_BROKERS_DOWN",
        "_FAIL",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "FENCED_LEADER_EPOCH",
        "_NOENT",
        "_UNKNOWN_PARTITION",
        "UNKNOWN",
    ],
)
def test_brokers_that_are_away_for_longer_than_the_source_waits_are_mended_by_a_restart(name: str) -> None:
    problem = refused(name)
    assert problem.condition == "KAFKA_TIMEOUT"
    assert failure_of(problem).remedy is Remedy.RESTART
    assert "b:9092" in problem.message
    assert "start the query again" in problem.message


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "FENCED_LEADER_EPOCH", "_NOENT", "_UNKNOWN_PARTITION"])
def test_who_asks_a_leader_that_is_none_any_more_looks_for_the_new_one(name: str) -> None:
    looks: list[None] = []
    refused(name, lambda: looks.append(None))
    assert looks


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", "MISSING_RIGHT"),
        ("CLUSTER_AUTHORIZATION_FAILED", "KAFKA_REFUSED"),
        ("UNSUPPORTED_VERSION", "KAFKA_REFUSED"),
        ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC"),
    ],
)
def test_what_no_waiting_heals_is_refused_at_once_and_not_restarted(name: str, condition: str) -> None:
    problem = refused(name)
    assert problem.condition == condition
    assert failure_of(problem).remedy is Remedy.NONE


@pytest.mark.parametrize(
    "name",
    [
        *(
            "CoordinatorLoadInProgressError",
            "CoordinatorNotAvailableError",
            "NotCoordinatorError",
            "RequestTimedOutError",
        ),
        *("LeaderNotAvailableError", "NotLeaderForPartitionError", "BrokerNotAvailableError", "NetworkExceptionError"),
        *(
            "NotEnoughReplicasError",
            "NotEnoughReplicasAfterAppendError",
            "KafkaStorageError",
            "ThrottlingQuotaExceededError",
        ),
        "UnknownError",
    ],
)
def test_what_passes_is_asked_again_by_the_sink(name: str) -> None:
    from kafka import errors

    assert getattr(errors, name).errno in MOVING


@pytest.mark.parametrize(
    "name", ["TransactionalIdAuthorizationFailedError", "UnsupportedVersionError", "InvalidRequestError"]
)
def test_what_no_waiting_heals_is_not_asked_again_by_the_sink(name: str) -> None:
    from kafka import errors

    assert getattr(errors, name).errno not in MOVING


def test_a_machine_without_a_thread_to_spare_is_not_taken_for_a_wrong_option() -> None:
    from confluent_kafka import KafkaError, KafkaException

    config = ClientConfig("barrier-kafka", {"bootstrap.servers": "b:9092"})
    full = config.refused(KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Failed to create thread")))
    wrong = config.refused(KafkaException(KafkaError(KafkaError._INVALID_ARG, 'No such configuration property: "x.y"')))
    assert [(each.condition, failure_of(each).remedy) for each in (full, wrong)] == [
        ("CLIENT_NOT_STARTED", Remedy.RESTART),
        ("INVALID_OPTION", Remedy.NONE),
    ]
