"""Who leads and who coordinates: by two brokers, as one may have been paused while it was replaced."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.topics import Partition, TopicInfo
from transactional.errors import RetriableError, StoreError
from transactional.testing import FakeClock

TOPIC_ID, OTHER_ID = "f3b8a1de-2222-4444-8888-0123456789ab", "f3b8a1de-2222-4444-8888-0123456789ac"
PLACE = Partition("t", 0)


class Opinions(KafkaAdmin):
    """An admin whose brokers give these opinions, and whose leaders give these answers, one round after the other."""

    def __init__(self, *opinions: Any, answers: list[Any] | None = None) -> None:
        self.clock = FakeClock()
        self.limit = None
        self.opinions = list(opinions)
        self.answers = answers or []
        self.asked: list[Any] = []
        self._coordinators = {}

    def ask_several(self, request: Callable[[], Any]) -> list[Any] | None:
        request()
        found: list[Any] | None = self.opinions.pop(0) if len(self.opinions) > 1 else self.opinions[0]
        return found

    def look_for_brokers(self) -> None:
        self.asked.append("brokers")

    def send_all(self, requests: Any) -> list[Any]:
        self.asked += requests
        return [self.answers.pop(0) for _ in requests]

    def version_of(self, request: Any, highest: int | None = None) -> int:
        return 4

    def until(self, attempt: Callable[[], Any], what: str) -> Any:
        for _ in range(5):
            found = attempt()
            if found is not None:
                return found
        raise RetriableError("KAFKA_TIMEOUT", reason=what)


def metadata(leader: int, epoch: int, identity: str = TOPIC_ID, code: int = 0, brokers: int = 3) -> Any:
    part = SimpleNamespace(partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1])
    topic = SimpleNamespace(
        name="t", error_code=code, topic_id=identity, partitions=[] if code else [part], authorized_operations=None
    )
    return SimpleNamespace(brokers=range(brokers), topics=[topic])


def test_the_newer_of_two_leaders_counts() -> None:
    for both in ([metadata(1, 5), metadata(2, 6)], [metadata(2, 6), metadata(1, 5)]):
        info = Opinions(both).topics(["t"])["t"]
        assert (info.leaders[0], info.epoch(0)) == (2, 6)


def listed(*transactions: tuple[str, int], code: int = 0) -> Any:
    states = [SimpleNamespace(transactional_id=name, producer_id=producer) for name, producer in transactions]
    return SimpleNamespace(error_code=code, transaction_states=states)


def test_the_owner_of_a_producer_is_looked_for_twice_as_a_new_coordinator_lists_nothing_at_first() -> None:
    log = SimpleNamespace(name="__transaction_state", error_code=0, partitions=[SimpleNamespace(leader_id=1)])
    one = SimpleNamespace(brokers=[SimpleNamespace(node_id=1)], topics=[log])
    admin = Opinions(None, answers=[listed(("q.0.1", 7)), listed(("q.0.2", 8), ("q.0.1", 7))])
    admin.metadata = lambda topics: one  # type: ignore[method-assign]
    assert admin.owners({7, 8}) == {7: "q.0.1", 8: "q.0.2"}
    assert admin.clock.monotonic() == FakeClock().monotonic() + 1
    admin.answers = [listed(("q.0.1", 7))]
    assert admin.owners({7}) == {7: "q.0.1"}  # who is listed needs no second look
    admin.answers = [listed(code=14), listed(), listed()]
    assert admin.owners({9}) == {}
    assert admin.owners(set()) == {}


def test_a_topic_that_one_broker_does_not_know_yet_is_there() -> None:
    assert "t" in Opinions([metadata(-1, 0, code=3), metadata(1, 0)]).topics(["t"])
    assert Opinions([metadata(-1, 0, code=3)] * 2).topics(["t"]) == {}


@pytest.mark.parametrize(
    "first",
    [None, [metadata(1, 0)], [metadata(1, 0), metadata(1, 0, OTHER_ID)], [metadata(1, 0), metadata(1, 0, code=5)]],
    ids=["no answer", "one of three brokers", "two ids", "an error"],
)
def test_brokers_that_give_no_clear_answer_are_asked_again(first: Any) -> None:
    admin = Opinions(first, [metadata(2, 1), metadata(2, 1)])
    assert admin.topics(["t"])["t"].leaders == {0: 2}
    assert len(admin.opinions) == 1
    assert admin.asked == (["brokers"] if first is not None and len(first) == 1 else [])


def test_a_cluster_of_one_broker_has_no_second_opinion() -> None:
    assert Opinions([metadata(1, 0, brokers=1)]).topics(["t"])["t"].leaders == {0: 1}


def coordinator(node: int, code: int = 0) -> Any:
    return SimpleNamespace(coordinators=[SimpleNamespace(key="q.0.1", node_id=node, error_code=code)])


@pytest.mark.parametrize("first", [None, [coordinator(1), coordinator(2)], [coordinator(1, 15), coordinator(2)]])
def test_a_coordinator_counts_when_two_brokers_name_it(first: Any) -> None:
    admin = Opinions(first, [coordinator(2), coordinator(2)])
    assert admin.coordinators(["q.0.1"]) == {"q.0.1": 2}
    assert len(admin.opinions) == 1


def test_without_the_right_to_see_an_id_its_name_is_told() -> None:
    with pytest.raises(StoreError, match="MISSING_RIGHT"):
        Opinions([coordinator(1), coordinator(1, 53)]).coordinators(["q.0.1"])


def latest(offset: int = 0, code: int = 0) -> Any:
    part = SimpleNamespace(partition_index=0, error_code=code, offset=offset, leader_epoch=6)
    return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[part])])


@pytest.mark.parametrize("first", [ConnectionError("gone"), *(latest(27, code) for code in (3, 6, 9, 74, 75, 78))])
def test_ends_are_those_of_the_leader_of_now(first: Any) -> None:
    """A leader that was replaced refuses the epoch of its successor; asked without one, it would give an old end."""
    admin = Opinions([metadata(2, 6)] * 2, answers=[first, latest(38)])
    old = {"t": TopicInfo(TOPIC_ID, {0: 1}, None, epochs={0: 5})}
    assert admin.end_offsets([PLACE], old) == {PLACE: (38, 6)}
    asked = [(node, request.topics[0].partitions[0].current_leader_epoch) for node, request in admin.asked]
    assert asked == [(1, 5), (2, 6)]


def test_ends_of_a_topic_that_was_created_again_are_not_taken_for_the_old_one_s() -> None:
    admin = Opinions([metadata(1, 0, OTHER_ID)] * 2, answers=[latest(0, 3)])
    with pytest.raises(RetriableError, match="TOPIC_CHANGED"):
        admin.end_offsets([PLACE], {"t": TopicInfo(TOPIC_ID, {0: 1}, None, epochs={0: 5})})


def test_ends_that_may_not_be_read_are_named() -> None:
    with pytest.raises(StoreError, match=r"KAFKA_REFUSED.*TOPIC_AUTHORIZATION_FAILED"):
        Opinions(answers=[latest(0, 29)]).end_offsets([PLACE], {"t": TopicInfo(TOPIC_ID, {0: 1}, None)})
