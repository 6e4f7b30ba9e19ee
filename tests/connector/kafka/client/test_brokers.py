"""The check of a consumer group: a right that is missing is an error, brokers without an answer are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from connector.kafka.client.brokers import check_group
from connector.kafka.client.config import ClientConfig
from transactional.clock import Deadline
from transactional.errors import StoreError

CONFIG = ClientConfig("barrier-kafka", {"bootstrap.servers": "b:9092"})
MOVING = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))


class Admin:
    """Gives these answers about a group, one after the other: what its user may do, or an error; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    def describe_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, Any]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

        def result() -> Any:
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(authorized_operations=answer)

        return {group: SimpleNamespace(result=result) for group in groups}


@pytest.mark.parametrize("answer", [[AclOperation.READ], [], None])
def test_a_group_that_may_be_read_or_whose_rights_are_unknown_is_taken(answer: Any) -> None:
    admin = Admin(answer)
    check_group(admin, CONFIG, "g")  # type: ignore[arg-type]
    assert admin.asked == 1


@pytest.mark.parametrize(
    "answer",
    [[AclOperation.DESCRIBE], KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))],
)
def test_a_group_that_may_not_be_read_is_refused_by_name(answer: Any) -> None:
    with pytest.raises(StoreError, match=r"MISSING_RIGHT.*READ on group g"):
        check_group(Admin(MOVING, answer), CONFIG, "g")  # type: ignore[arg-type]


def test_a_coordinator_that_moves_for_long_keeps_no_query_from_its_start() -> None:
    admin = Admin(MOVING)
    check_group(admin, CONFIG, "g", Deadline(0.15))  # type: ignore[arg-type]
    assert admin.asked > 1
