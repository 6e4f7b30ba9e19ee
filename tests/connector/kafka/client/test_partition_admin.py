"""What leaders answer about a partition: which answers pass, which are evidence, and what one request may hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from connector.kafka.client.admin import SECOND_LOOK_SECONDS
from connector.kafka.client.partition_admin import FRESH_SECONDS, OpenTransaction, PartitionAdmin
from connector.kafka.client.partition_log import Witness
from connector.kafka.client.topics import Partition, TopicInfo
from connector.kafka.sink.hanging import end_hanging
from connector.kafka.sink.second_look import LOOK_SECONDS
from tests.connector.kafka.sink.fake_cluster import TOPIC_ID, described
from transactional.errors import RetriableError, StoreError
from transactional.testing import FakeClock

PARTITION = Partition("t", 0)
WITNESS = Witness(PARTITION, TOPIC_ID, 10, 2)


class Brokers:
    """Stands for a `KafkaAdmin`: gives these answers to the requests of each round, one after the other."""

    def __init__(self, *rounds: Any, topics: dict[str, TopicInfo] | None = None) -> None:
        self.clock = FakeClock()
        self.rounds = list(rounds)
        self.sent: list[list[tuple[int, Any]]] = []
        self.looked = 0
        self.known = {"t": TopicInfo(TOPIC_ID, {0: 1, 1: 2}, None)} if topics is None else topics

    def topics(self, names: Iterable[str], places: Collection[Any] | None = None) -> dict[str, TopicInfo]:
        self.looked += 1
        return {name: self.known[name] for name in names if name in self.known}

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        self.sent.append(list(requests))
        answer = self.rounds.pop(0) if requests else []
        return answer if isinstance(answer, list) else [answer] * len(requests)

    def pass_over(self, problem: Exception) -> None:
        pass

    def until(self, attempt: Callable[[], Any], what: str) -> Any:
        for _ in range(10):
            found = attempt()
            if found is not None:
                return found
        raise AssertionError(f"no end: {what}")

    def admin(self) -> PartitionAdmin:
        return PartitionAdmin(self)  # type: ignore[arg-type]


def part(number: int = 0, **given: Any) -> Any:
    """One partition of a fetch."""
    usual: dict[str, Any] = {
        "partition_index": number,
        "error_code": 0,
        "last_stable_offset": 99,
        "log_start_offset": 0,
        "diverging_epoch": None,
        "aborted_transactions": [],
    }
    return SimpleNamespace(**{**usual, **given})


def fetched(*parts: Any, code: int = 0) -> Any:
    return SimpleNamespace(
        error_code=code, responses=[SimpleNamespace(topic="", topic_id=TOPIC_ID, partitions=parts or (part(),))]
    )


def producers(*active: Any, code: int = 0, number: int = 0) -> Any:
    one = SimpleNamespace(partition_index=number, error_code=code, active_producers=active)
    return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[one])])


def producer(identity: int, start: int, epoch: int = 3) -> Any:
    return SimpleNamespace(
        producer_id=identity, producer_epoch=epoch, current_txn_start_offset=start, coordinator_epoch=-1
    )


def cut(end: int) -> Any:
    return SimpleNamespace(epoch=1, end_offset=end)


@pytest.mark.parametrize(
    "passing",
    [
        ConnectionError("gone"),
        *(fetched(code=code) for code in (-1, 7, 56)),
        *(fetched(part(error_code=code)) for code in (-1, 3, 5, 6, 9, 56, 74, 75, 78)),
    ],
)
def test_a_leader_that_moves_or_does_not_answer_is_asked_again(passing: Any) -> None:
    brokers = Brokers(passing, fetched(part(last_stable_offset=12)))
    assert brokers.admin().stable_ends([WITNESS])[0].stable == 12
    assert len(brokers.sent) == 2


def test_leaders_are_looked_up_once_for_several_questions_and_again_after_a_missing_answer_or_a_second() -> None:
    brokers = Brokers(producers(), fetched(), fetched(part(error_code=6)), *[fetched()] * 2)
    admin = brokers.admin()
    admin.open_transactions([PARTITION])
    admin.stable_ends([WITNESS])
    assert brokers.looked == 1
    admin.stable_ends([WITNESS])
    assert brokers.looked == 2, "the leader had moved"
    brokers.clock.advance(SECOND_LOOK_SECONDS)
    admin.stable_ends([WITNESS])
    assert brokers.looked == 3, "a second look is a new one"
    assert FRESH_SECONDS < SECOND_LOOK_SECONDS


def test_a_partition_that_was_added_is_looked_up_at_once() -> None:
    brokers = Brokers(producers(), producers(number=2))
    admin = brokers.admin()
    admin.open_transactions([PARTITION])
    brokers.known = {"t": TopicInfo(TOPIC_ID, {0: 1, 1: 2, 2: 2}, None)}
    assert admin.open_transactions([Partition("t", 2)]) == {Partition("t", 2): {}}
    assert brokers.looked == 2


def test_a_log_in_which_the_epoch_ends_before_the_witness_has_lost_rows() -> None:
    end = Brokers(fetched(part(diverging_epoch=cut(7), last_stable_offset=20))).admin().stable_ends([WITNESS])[0]
    assert (end.cut_at, end.stable) == (7, -1)


def test_a_leader_that_changed_without_a_row_has_lost_nothing() -> None:
    """Its log does not know the epoch, and says how far the one before reaches: as far as the witness, or farther."""
    brokers = Brokers(fetched(part(diverging_epoch=cut(10))), fetched(part(last_stable_offset=20)))
    end = brokers.admin().stable_ends([WITNESS])[0]
    assert (end.cut_at, end.stable) == (None, 20)
    epochs = [sent[0][1].topics[0].partitions[0].last_fetched_epoch for sent in brokers.sent]
    assert epochs == [2, -1]


@pytest.mark.parametrize(
    "answer", [part(error_code=1), part(error_code=100), part(log_start_offset=11)], ids=["range", "id", "start"]
)
def test_offsets_that_are_no_more_say_nothing(answer: Any) -> None:
    assert Brokers(fetched(answer)).admin().stable_ends([WITNESS])[0].gone.startswith("t [0] from 10: ")


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ({}, "does not exist"),
        ({"t": TopicInfo("another", {0: 1}, None)}, "was created again"),
        ({"t": TopicInfo(TOPIC_ID, {1: 1}, None)}, "the partition does not exist"),
    ],
)
def test_a_topic_that_is_another_one_is_not_asked(topics: dict[str, TopicInfo], told: str) -> None:
    brokers = Brokers(topics=topics)
    assert told in brokers.admin().stable_ends([WITNESS])[0].gone
    assert brokers.sent == [[]]


def test_the_aborted_transactions_are_told_by_their_producer() -> None:
    aborted = [SimpleNamespace(producer_id=7, first_offset=at) for at in (4, 30)]
    end = Brokers(fetched(part(aborted_transactions=aborted))).admin().stable_ends([WITNESS])[0]
    assert end.aborted == {7: (4, 30)}


def test_aborted_transactions_that_the_leader_leaves_out_are_not_taken_for_none() -> None:
    """So it answers for an offset that only its remote tier holds, and after a part of a batch."""
    assert Brokers(fetched(part(aborted_transactions=None))).admin().stable_ends([WITNESS])[0].aborted is None


def test_one_request_a_leader_and_never_a_partition_twice_in_one() -> None:
    probes = [WITNESS, Witness(Partition("t", 1), TOPIC_ID, 5, 0), Witness(PARTITION, TOPIC_ID, 12, 2)]
    answers = [
        fetched(part(0, last_stable_offset=50)),
        fetched(part(1, last_stable_offset=51)),
        fetched(part(0, last_stable_offset=52)),
    ]
    brokers = Brokers(answers)
    assert [end.stable for end in brokers.admin().stable_ends(probes)] == [50, 51, 52]
    asked = [
        (node, [(each.partition, each.fetch_offset) for each in request.topics[0].partitions])
        for node, request in brokers.sent[0]
    ]
    assert asked == [(1, [(0, 10)]), (2, [(1, 5)]), (1, [(0, 12)])]


def test_a_probe_asks_for_no_bytes() -> None:
    """A part of a batch would come without the aborted transactions."""
    brokers = Brokers(fetched())
    brokers.admin().stable_ends([WITNESS])
    request = brokers.sent[0][0][1]
    assert (request.isolation_level, request.max_wait_ms) == (1, 0)
    assert request.topics[0].partitions[0].partition_max_bytes == 0


@pytest.mark.parametrize("passing", [ConnectionError("gone"), *(producers(code=code) for code in (3, 5, 6, 9, 75))])
def test_open_transactions_are_asked_for_again_while_leaders_move(passing: Any) -> None:
    brokers = Brokers(passing, producers(producer(7, 4), producer(8, -1)))
    assert brokers.admin().open_transactions([PARTITION]) == {PARTITION: {7: OpenTransaction(3, 4, -1)}}


def test_open_transactions_of_a_partition_that_is_gone_are_none() -> None:
    assert Brokers(topics={}).admin().open_transactions([PARTITION]) == {}


@pytest.mark.parametrize("ask", [lambda a: a.stable_ends([WITNESS]), lambda a: a.open_transactions([PARTITION])])
def test_without_the_right_to_read_the_topic_its_name_is_told(ask: Callable[[PartitionAdmin], Any]) -> None:
    denied = fetched(part(error_code=29))
    denied.topics = producers(code=29).topics
    with pytest.raises(StoreError, match="MISSING_RIGHT") as refused:
        ask(Brokers(denied).admin())
    assert "READ on topic t" in str(refused.value)


@pytest.mark.parametrize(("version", "epoch", "rules"), [(5, 4, 2), (4, 3, 0)])
def test_a_marker_is_written_as_the_coordinator_would_have(version: int, epoch: int, rules: int) -> None:
    one = SimpleNamespace(partitions=[SimpleNamespace(error_code=0)])
    brokers = Brokers(SimpleNamespace(markers=[SimpleNamespace(topics=[one])]))
    assert brokers.admin().write_marker(PARTITION, 7, OpenTransaction(3, 4, 6), epoch, True, version) == 0
    node, request = brokers.sent[0][0]
    marker = request.markers[0]
    assert node == 1
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, epoch, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (6, rules)


# -- transactions that hang ------------------------------------------------------------------------------------------------


class Coordinator(Brokers):
    """Also knows who has which producer id."""

    def __init__(self, name: str, state: Any, *rounds: Any, version: int = 5) -> None:
        super().__init__(*rounds)
        self.name, self.state, self.version = name, state, version
        self.ending: list[list[str]] = []

    def transactional_ids(self, states: Sequence[str]) -> list[str]:
        assert "Ongoing" not in states
        return self.ending.pop(0) if self.ending else []

    def owners(self, producer_ids: Iterable[int]) -> dict[int, str]:
        return dict.fromkeys(producer_ids, self.name)

    def describe(self, ids: Iterable[str]) -> dict[str, Any]:
        return {self.name: self.state} if self.name in list(ids) else {}

    def end_txn_version(self) -> int:
        return self.version


def latest(offset: int, number: int = 0, code: int = 0) -> Any:
    one = SimpleNamespace(partition_index=number, error_code=code, offset=offset)
    return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[one])])


HELD = [latest(4), latest(9, 1), latest(20), latest(9, 1)]
QUIET = [latest(20), latest(9, 1)] * 2
WRITTEN = SimpleNamespace(
    markers=[SimpleNamespace(topics=[SimpleNamespace(partitions=[SimpleNamespace(error_code=0)])])]
)
REFUSED = SimpleNamespace(
    markers=[SimpleNamespace(topics=[SimpleNamespace(partitions=[SimpleNamespace(error_code=31)])])]
)
OPEN = producers(producer(7, 4))
HANGS = [HELD, OPEN, OPEN]
SEEN = HANGS * 6
"""Looks until the pause between two that agree is over."""


def fenced() -> Any:
    """A leader to which a newer coordinator has spoken."""
    one = SimpleNamespace(partitions=[SimpleNamespace(error_code=52)])
    return SimpleNamespace(markers=[SimpleNamespace(topics=[one])])


class Stubborn(Coordinator):
    """A leader at which a transaction hangs, and which refuses its marker."""

    def send_all(self, requests: Sequence[tuple[int, Any]]) -> list[Any]:
        answers = {"ListOffsetsRequest": HELD, "DescribeProducersRequest": [OPEN], "WriteTxnMarkersRequest": [fenced()]}
        return answers[type(requests[0][1]).__name__]


def end(coordinator: Coordinator, known: Sequence[tuple[str, int, int]] = (), over: bool = True) -> int:
    return end_hanging(coordinator, coordinator.admin(), "t", "q", known, over)  # type: ignore[arg-type]


def test_where_no_reader_is_held_back_nobody_else_is_asked() -> None:
    coordinator = Coordinator("q.0.1", described("CompleteAbort", 1), QUIET)
    assert end(coordinator) == 0
    assert len(coordinator.sent) == 1


def test_as_long_as_a_coordinator_writes_markers_the_leaders_prove_nothing() -> None:
    """A marker that only its leader has is lost if the leader is replaced: then the transaction hangs after all."""
    coordinator = Coordinator("q.0.1", described("CompleteAbort", 1), QUIET)
    coordinator.ending = [["q.0.1"], ["q.0.1", "another.0.1"]]
    assert end(coordinator, over=False) == 0
    assert (coordinator.ending, len(coordinator.sent)) == ([], 1)


def test_a_marker_that_is_not_replicated_yet_is_waited_for() -> None:
    """Its leader has no transaction open, and readers are stuck all the same."""
    coordinator = Coordinator("q.0.1", described("CompleteAbort", 1), HELD, producers(), QUIET)
    assert end(coordinator) == 0
    assert len(coordinator.sent) == 3


def test_a_transaction_that_is_being_committed_is_not_waited_for_and_a_stranger_s_neither() -> None:
    coordinator = Coordinator("q.0.1", described("PrepareCommit"), QUIET)
    coordinator.ending = [["q.0.1", "another.0.1", "q.run"]]
    assert end(coordinator, [("q.0.1", 7, 3)], over=False) == 0


@pytest.mark.parametrize("missing", [ConnectionError("gone"), latest(-1, code=78), latest(-1, code=6)])
@pytest.mark.parametrize("of", [0, 2])
def test_a_leader_that_does_not_answer_is_no_proof_that_nothing_hangs(missing: Any, of: int) -> None:
    """A new one answers `OFFSET_NOT_AVAILABLE` until it knows what readers have seen."""
    unknown = [missing if at == of else answer for at, answer in enumerate(QUIET)]
    coordinator = Coordinator("q.0.1", described("CompleteAbort", 1), unknown, *SEEN, *HANGS, WRITTEN)
    assert end(coordinator) == 1


def test_a_partition_without_a_leader_is_waited_for() -> None:
    coordinator = Coordinator("q.0.1", described("CompleteAbort", 1), [latest(20)] * 2, QUIET)
    both = coordinator.known

    def elected(names: Iterable[str], places: Any = None) -> dict[str, TopicInfo]:
        return {"t": TopicInfo(TOPIC_ID, {0: 1, 1: -1}, None)} if not coordinator.sent else both

    coordinator.topics = elected  # type: ignore[method-assign]
    assert end(coordinator) == 0
    assert len(coordinator.sent) == 2


@pytest.mark.parametrize(
    ("state", "above", "version", "written"),
    [
        ("CompleteAbort", 1, 5, (4, False, 2)),
        ("CompleteCommit", 1, 5, (4, True, 2)),
        ("CompleteCommit", 0, 4, (3, True, 0)),
        ("CompleteAbort", 1, 4, (4, False, 0)),
    ],
)
def test_what_hangs_is_ended_as_its_coordinator_has_ended_it(
    state: str, above: int, version: int, written: tuple[int, bool, int]
) -> None:
    coordinator = Coordinator("q.0.1", described(state, above), *SEEN, *HANGS, WRITTEN, version=version)
    assert end(coordinator) == 1
    marker = coordinator.sent[-1][0][1].markers[0]
    assert (marker.producer_epoch, marker.transaction_result, marker.transaction_version) == written


@pytest.mark.parametrize(
    ("name", "state", "known"),
    [
        ("q.0.1", described("Ongoing"), []),
        ("q.0.1", described("CompleteCommit", 1), [("q.0.1", 7, 3)]),
        ("another.0.1", described("CompleteAbort", 1), []),
        ("q.run", described("CompleteAbort", 1), []),
    ],
)
def test_what_is_open_prepared_or_a_stranger_s_is_left_alone(
    name: str, state: Any, known: list[tuple[str, int, int]]
) -> None:
    assert end(Coordinator(name, state, HELD, OPEN), known) == 0


def test_what_is_still_ending_is_waited_for_as_its_marker_may_be_left_out_yet() -> None:
    coordinator = Coordinator("q.0.1", described("PrepareAbort", 1), HELD, OPEN, *SEEN, WRITTEN)
    describe = coordinator.describe

    def describe_later(ids: Iterable[str]) -> dict[str, Any]:
        found = describe(ids)
        coordinator.state = described("CompleteAbort", 1)
        return found

    coordinator.describe = describe_later  # type: ignore[method-assign]
    assert end(coordinator) == 1
    with pytest.raises(RetriableError, match=r"KAFKA_TIMEOUT.*some transactions did not end"):
        end(Stubborn("q.0.1", described("PrepareAbort", 1)))


def test_what_ends_between_the_questions_does_not_hang() -> None:
    assert end(Coordinator("q.0.1", described("CompleteAbort", 1), HELD, OPEN, producers())) == 0


@pytest.mark.parametrize(
    ("state", "above", "version"), [("Empty", 2, 5), ("CompleteCommit", 2, 5), ("CompleteCommit", 1, 4)]
)
def test_what_hangs_and_nobody_knows_of_stops_the_query(state: str, above: int, version: int) -> None:
    with pytest.raises(StoreError, match="MARKERS_SKIPPED") as stopped:
        end(Coordinator("q.0.1", described(state, above), *SEEN, *HANGS, version=version))
    for told in ("q.0.1", "t [0]", "offset 4"):
        assert told in str(stopped.value)


def test_what_hangs_and_may_not_be_ended_stops_the_query_with_the_right_to_grant() -> None:
    with pytest.raises(StoreError, match="MARKERS_SKIPPED") as stopped:
        end(Coordinator("q.0.1", described("CompleteAbort", 1), *SEEN, *HANGS, REFUSED))
    assert "CLUSTER_ACTION" in str(stopped.value)


def test_what_a_replaced_leader_still_calls_open_does_not_hang() -> None:
    """It wakes, answers once from what it knew, and learns that another one leads."""
    coordinator = Coordinator("q.0.1", described("CompleteAbort", 1), *HANGS, QUIET)
    assert end(coordinator) == 0


def test_a_marker_that_somebody_newer_has_made_needless_is_looked_at_again() -> None:
    coordinator = Coordinator("q.0.1", described("CompleteAbort", 1), *SEEN, *HANGS, fenced(), QUIET)
    assert end(coordinator) == 0


def test_a_marker_that_is_refused_for_ever_stops_the_query_in_the_end() -> None:
    coordinator = Stubborn("q.0.1", described("CompleteAbort", 1))
    with pytest.raises(StoreError, match="TRANSACTION_COORDINATOR_FENCED"):
        end(coordinator)
    assert LOOK_SECONDS <= coordinator.clock.passed < LOOK_SECONDS + 5
