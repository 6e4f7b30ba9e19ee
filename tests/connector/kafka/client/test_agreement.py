"""How several brokers are asked for topics, and what counts as an answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Uuid
from kafka.errors import KafkaConnectionError

from connector.kafka.client.agreement import ASKED_AT_MOST, TopicView, ask_each_broker
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import short_id
from transactional.errors import RetriableError, StoreError

CONFIG = ClientConfig("barrier-kafka", {"bootstrap.servers": "b:9092"})
ID = uuid.UUID(int=5)
HERE = TopicView(short_id(ID), frozenset({0, 1}))

Answer = Mapping[str, tuple[int, Sequence[int]]] | Exception
"""Of one broker: error code and partitions of each topic."""


class Brokers:
    """In place of a `KafkaConnection`: each round has the answers of all nodes, from 1 on.

    The last round stays.
    """

    def __init__(self, *rounds: Sequence[Answer]) -> None:
        self.rounds = list(rounds)
        self.asked: list[list[int]] = []
        self.closed = False

    def __call__(self, configuration: Mapping[str, Any], clock: Any) -> Brokers:
        return self

    def ask(self, request: Callable[[], Any]) -> Any:
        assert request().topics == []
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=number + 1) for number in range(len(self.rounds[0]))])

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        answers = self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]
        self.asked.append([node for node, _ in requests])
        assert all(request.allow_auto_topic_creation is False for _, request in requests)
        return [_metadata(answers[node - 1]) for node, _ in requests]

    def pass_over(self, problem: Exception) -> None:
        assert isinstance(problem, KafkaConnectionError)

    def until(self, attempt: Callable[[], Any], what: str) -> Any:
        for _ in range(5):
            found = attempt()
            if found is not None:
                return found
        raise RetriableError("KAFKA_TIMEOUT", f"no {what}")

    def close(self) -> None:
        self.closed = True


def _metadata(answer: Answer) -> Any:
    if isinstance(answer, Exception):
        return answer
    topics = [
        SimpleNamespace(
            name=name, error_code=code, topic_id=ID, partitions=[SimpleNamespace(partition_index=n) for n in numbers]
        )
        for name, (code, numbers) in answer.items()
    ]
    return SimpleNamespace(topics=topics)


def ask(
    monkeypatch: pytest.MonkeyPatch, *rounds: Sequence[Answer]
) -> tuple[Sequence[Mapping[str, TopicView]], Brokers]:
    brokers = Brokers(*rounds)
    monkeypatch.setattr("connector.kafka.client.agreement.KafkaConnection", brokers)
    try:
        return ask_each_broker(CONFIG, ["t"]), brokers
    finally:
        assert brokers.closed


KNOWS: Answer = {"t": (0, [0, 1])}
KNOWS_NOT: Answer = {"t": (3, [])}
CAN_NOT_SAY: Answer = {"t": (5, [])}
AWAY: Answer = KafkaConnectionError("away")


def test_each_broker_has_a_word_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, [KNOWS, KNOWS_NOT, KNOWS])[0] == [{"t": HERE}, {"t": TopicView()}, {"t": HERE}]
    assert ask(monkeypatch, [KNOWS_NOT])[0] == [{"t": TopicView()}], "there is no other"


@pytest.mark.parametrize("silent", [AWAY, CAN_NOT_SAY])
def test_one_broker_of_several_is_not_enough_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, silent: Answer
) -> None:
    answers, brokers = ask(monkeypatch, [KNOWS_NOT, silent], [KNOWS_NOT, silent], [KNOWS_NOT, KNOWS])
    assert answers == [{"t": TopicView()}, {"t": HERE}]
    assert brokers.asked == [[1, 2]] * 3
    with pytest.raises(RetriableError, match=r"KAFKA_TIMEOUT.*no second broker answered"):
        ask(monkeypatch, [KNOWS_NOT, silent])
    assert len(ask(monkeypatch, [KNOWS_NOT, silent, KNOWS_NOT])[0]) == 2


def test_of_many_brokers_some_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, brokers = ask(monkeypatch, [KNOWS] * 50)
    assert len(answers) == len(brokers.asked[0]) == ASKED_AT_MOST


def test_a_topic_that_may_not_be_seen_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"MISSING_RIGHT.*DESCRIBE on topic t"):
        ask(monkeypatch, [KNOWS_NOT, {"t": (29, [])}])


@pytest.mark.parametrize("number", [0, 1, 2**64 - 1, 2**127, 2**128 - 1 - 2**70, 0x4CD641BD9AC34D38FB799B04CBFE826D])
def test_both_client_libraries_ids_of_a_topic_are_one(number: int) -> None:
    parts = [part - 2**64 if part >= 2**63 else part for part in (number >> 64, number % 2**64)]
    assert short_id(str(uuid.UUID(int=number))) == str(Uuid(*parts))
