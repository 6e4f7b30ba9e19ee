"""Each answer to EndTxn, times each state in which the transaction is found later; no broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from connector.kafka.client.admin import SECOND_LOOK_SECONDS, Description
from connector.kafka.client.partition_admin import StableEnd
from connector.kafka.client.partition_log import Ending, Verdict, Witness
from connector.kafka.sink.end_txn import ANSWERS, Answer
from connector.kafka.sink.fates import Fate
from connector.kafka.sink.handles import Prepared, parse_handle
from tests.connector.kafka.sink.fake_cluster import PRODUCER, FakeCluster, described, prepared
from transactional.clock import Deadline
from transactional.errors import AmbiguousOutcomeError, RetriableError, StoreError, TwoPhaseCommitError
from transactional.sink import Outcome

OPEN, COMMITTED, ABORTED, CUT, GONE = Fate.OPEN, Fate.COMMITTED, Fate.ABORTED, Fate.CUT, Fate.GONE
LOST, UNKNOWN = Outcome.LOST, Outcome.UNKNOWN


@dataclass(frozen=True)
class Later:
    """A state in which a transaction is found."""

    state: str  # The coordinator's, empty if it does not know the id.
    above: int  # Of its epoch, for version 5.
    fates: tuple[Fate, ...]  # Of its partitions.
    outcome: Outcome  # What a look makes of it.
    below_5: int = 0  # Of the epoch, for an earlier version.


LATER = {
    "open": Later("Ongoing", 0, (OPEN, OPEN), Outcome.PREPARED),
    "committed": Later("CompleteCommit", 1, (COMMITTED, COMMITTED), Outcome.COMMITTED),
    "committed, one marker left out": Later("CompleteCommit", 1, (COMMITTED, OPEN), Outcome.COMMITTED),
    "committed, both markers left out": Later("CompleteCommit", 1, (OPEN, OPEN), Outcome.COMMITTED),
    "committed, after a marker from outside": Later("CompleteCommit", 1, (COMMITTED, ABORTED), UNKNOWN),
    "committed, after a marker from outside, one left out": Later("CompleteCommit", 1, (OPEN, ABORTED), UNKNOWN),
    "committed, after markers from outside": Later("CompleteCommit", 1, (ABORTED, ABORTED), LOST),
    "committed, after rows were cut off": Later("CompleteCommit", 1, (COMMITTED, CUT), UNKNOWN),
    "committed, a topic deleted": Later("CompleteCommit", 1, (COMMITTED, GONE), Outcome.COMMITTED),
    "aborted": Later("CompleteAbort", 1, (ABORTED, ABORTED), LOST, 1),
    "aborted, one marker left out": Later("CompleteAbort", 1, (ABORTED, OPEN), LOST, 1),
    "aborted, after a marker from outside": Later("CompleteAbort", 1, (ABORTED, COMMITTED), UNKNOWN, 1),
    "initialised again, was committed": Later("Empty", 2, (COMMITTED, COMMITTED), Outcome.COMMITTED, 2),
    "initialised again, was aborted": Later("Ongoing", 2, (ABORTED, ABORTED), LOST, 2),
    "forgotten, was committed": Later("", 0, (COMMITTED, COMMITTED), Outcome.COMMITTED),
    "forgotten, was aborted": Later("", 0, (ABORTED, GONE), LOST),
    "forgotten, and nothing is left": Later("", 0, (GONE, GONE), UNKNOWN),
    "open, with a part aborted from outside": Later("Ongoing", 0, (OPEN, ABORTED), LOST),
    "open, with rows cut off": Later("Ongoing", 0, (CUT, OPEN), LOST),
    "open, with a part committed from outside": Later("Ongoing", 0, (OPEN, COMMITTED), UNKNOWN),
    "open, and a topic deleted": Later("Ongoing", 0, (OPEN, GONE), UNKNOWN),
}

CODES = [*ANSWERS, None, 42]
"""None for a broken connection; 42 for a code that is not in the table."""


def found_later(later: Later, version: int, transaction: Prepared) -> FakeCluster:
    cluster = FakeCluster()
    if later.state:
        cluster.states[transaction.name] = described(later.state, later.above if version >= 5 else later.below_5)
    cluster.fates = {(PRODUCER, number): fate for number, fate in enumerate(later.fates)}
    return cluster


def meaning(code: int | None) -> Answer:
    return Answer.FIND_COORDINATOR if code is None else ANSWERS.get(code, Answer.REFUSED)


def answers(code: int | None) -> deque[object]:
    return deque([ConnectionError("gone") if code is None else code])


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("version", [5, 4])
def test_a_look_says_what_is_left_of_a_transaction(name: str, version: int) -> None:
    later, transaction = LATER[name], prepared(version=version, partitions=2)
    state = found_later(later, version, transaction).ender().look([transaction])[0]
    assert state.outcome is later.outcome
    if later.outcome in (LOST, UNKNOWN):
        wrong = [number for number, fate in enumerate(later.fates) if fate is not OPEN]
        assert any(f"t [{number}]" in state.evidence for number in wrong)


@pytest.mark.parametrize(("fate", "outcome"), [(COMMITTED, Outcome.COMMITTED), (ABORTED, LOST)])
@pytest.mark.parametrize("state", ["Ongoing", "CompleteCommit", "CompleteAbort"])
def test_a_later_transaction_at_the_same_epoch_says_nothing_of_ours(state: str, fate: Fate, outcome: Outcome) -> None:
    """Below EndTxn 5, a late request of the task's producer begins one after ours has ended."""
    transaction = parse_handle({**prepared(version=4).handle, "startedAt": described(state).started_ms - 1})
    cluster = FakeCluster({transaction.name: described(state)})
    cluster.fates[PRODUCER, 0] = fate
    assert cluster.ender().look([transaction])[0].outcome is outcome


@pytest.mark.parametrize("state", ["Ongoing", "CompleteCommit"])
@pytest.mark.parametrize("first", [CUT, GONE, Fate.UNKNOWN, Fate.PENDING])
def test_a_look_asks_again_before_it_judges_against_a_transaction(state: str, first: Fate) -> None:
    """One leader was replaced while it was paused, or has not told its followers yet."""
    transaction = prepared(partitions=2)
    then = OPEN if state == "Ongoing" else COMMITTED
    cluster = FakeCluster({transaction.name: described(state, int(state != "Ongoing"))})
    cluster.fates = {(PRODUCER, 0): then, (PRODUCER, 1): first}

    def wake() -> None:
        if cluster.clock.passed >= SECOND_LOOK_SECONDS / 2:
            cluster.fates[PRODUCER, 1] = then

    cluster.when_probed = wake
    (found,) = cluster.ender().look([transaction])
    assert found.outcome is (Outcome.PREPARED if state == "Ongoing" else Outcome.COMMITTED)


def test_a_coordinator_that_was_replaced_and_calls_a_committed_transaction_open_is_asked_again() -> None:
    transaction = prepared(partitions=2)
    cluster = FakeCluster({transaction.name: described("Ongoing")})
    cluster.fates = {(PRODUCER, 0): COMMITTED, (PRODUCER, 1): COMMITTED}

    def learn() -> None:
        if cluster.forgotten:
            cluster.states[transaction.name] = described("CompleteCommit", 1)

    cluster.when_described = learn
    assert [state.outcome for state in cluster.ender().look([transaction])] == [Outcome.COMMITTED]


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("version", [5, 4])
def test_a_commit_after_each_answer_and_each_later_state(name: str, version: int) -> None:
    for code in CODES:
        commit_after(name, code, version)


def commit_after(name: str, code: int | None, version: int) -> None:
    later, transaction = LATER[name], prepared(version=version, partitions=2)
    cluster = found_later(later, version, transaction)
    cluster.answers = answers(code)
    ender, deadline = cluster.ender(), Deadline(60, cluster.clock)
    # From 5 on a request that is sent again is judged by the broker; before, or if told to, we look first.
    looked = version < 5 or meaning(code) is Answer.JUDGE
    outcome = later.outcome
    if not looked and later.state == "CompleteCommit":
        outcome = Outcome.COMMITTED  # what readers see of it, ensure_readable judges
    if not looked and later.state == "Ongoing" and not later.above:
        outcome = Outcome.COMMITTED
    if version >= 5 and meaning(code) is Answer.ENDED:
        outcome = Outcome.COMMITTED
    if meaning(code) is Answer.REFUSED and (version >= 5 or outcome is Outcome.PREPARED):
        with pytest.raises(StoreError, match="KAFKA_REFUSED") as refused:
            ender.commit([transaction], deadline)
        assert transaction.name in str(refused.value)
    elif outcome is UNKNOWN:
        with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN"):
            ender.commit([transaction], deadline)
    else:
        assert ender.commit([transaction], deadline) == ([transaction] if outcome is LOST else [])
    if meaning(code) is Answer.FIND_COORDINATOR and cluster.ended:
        assert set(cluster.forgotten) == {transaction.name}
    assert cluster.initialised == []
    assert cluster.limit is None


@pytest.mark.parametrize("name", LATER)
def test_an_abort_after_each_answer_and_each_later_state(name: str) -> None:
    for code in CODES:
        abort_after(name, code)


def abort_after(name: str, code: int | None) -> None:
    later, transaction = LATER[name], prepared(partitions=2)
    cluster = found_later(later, 5, transaction)
    cluster.answers = answers(code)
    ender, deadline = cluster.ender(), Deadline(60, cluster.clock)
    ours = later.state == "Ongoing" and not later.above
    if ours and meaning(code) is Answer.ENDED:
        # The coordinator has ended it, and shows it.
        cluster.states[transaction.name] = described("CompleteAbort", 1)
        cluster.fates = {key: ABORTED if fate is OPEN else fate for key, fate in cluster.fates.items()}
    # An abort that version 5 has taken holds, although nobody can tell any more of what.
    fenced = later.fates == (GONE, GONE) and meaning(code) is Answer.ENDED
    outcome = LOST if ours or fenced else later.outcome
    if COMMITTED in later.fates and ours:
        outcome = UNKNOWN
    if meaning(code) is Answer.REFUSED:
        with pytest.raises(StoreError, match="KAFKA_REFUSED"):
            ender.abort([transaction], deadline)
    elif outcome is UNKNOWN:
        with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN"):
            ender.abort([transaction], deadline)
    else:
        assert ender.abort([transaction], deadline) == ([transaction] if outcome is Outcome.COMMITTED else [])
    assert all(not request.committed for request in cluster.ended)


@pytest.mark.parametrize(
    "name", [name for name, later in LATER.items() if later.state == "Ongoing" and not later.above]
)
@pytest.mark.parametrize("version", [5, 4])
def test_what_the_coordinator_calls_open_is_always_ended_by_an_abort(name: str, version: int) -> None:
    """Also if a part of it is lost already: a late commit by a frozen process would make the others readable."""
    transaction = prepared(version=version, partitions=2)
    cluster = found_later(LATER[name], version, transaction)
    if COMMITTED in LATER[name].fates:
        with pytest.raises(AmbiguousOutcomeError):
            cluster.ender().abort([transaction], Deadline(60, cluster.clock))
    elif GONE in LATER[name].fates:
        cluster.ender().abort([transaction], Deadline(60, cluster.clock))
    else:
        assert cluster.ender().abort([transaction], Deadline(60, cluster.clock)) == []
    assert cluster.states[transaction.name].state == "CompleteAbort"
    assert bool(cluster.initialised) is (version < 5)


def test_what_is_lost_in_part_is_never_committed_below_version_5() -> None:
    transaction = prepared(version=4, partitions=2)
    cluster = found_later(LATER["open, with a part aborted from outside"], 4, transaction)
    assert cluster.ender().commit([transaction], Deadline(60, cluster.clock)) == [transaction]
    assert cluster.ended == []


@pytest.mark.parametrize("step", ["commit", "abort"])
def test_an_end_that_never_comes_stops_at_the_deadline(step: str) -> None:
    transaction = prepared()
    cluster = FakeCluster({transaction.name: described("Ongoing")}, {(PRODUCER, 0): OPEN}, deque([51] * 1000))
    ender, deadline = cluster.ender(), Deadline(60, cluster.clock)
    with pytest.raises(TwoPhaseCommitError, match="KAFKA_TIMEOUT") as late:
        getattr(ender, step)([transaction], deadline)
    assert late.value.parameters["step"] == step
    assert "CONCURRENT_TRANSACTIONS" in str(late.value)
    assert 60 <= cluster.clock.passed < 62


def test_the_first_goes_alone_and_the_others_together() -> None:
    transactions = [prepared(f"q.{number}.0", producer=number) for number in range(5)]
    cluster = FakeCluster(
        {each.name: described("Ongoing", producer=each.producer_id) for each in transactions},
        {(number, 0): OPEN for number in range(5)},
        deque([53]),
    )
    with pytest.raises(StoreError, match="KAFKA_REFUSED"):
        cluster.ender().commit(transactions, Deadline(60, cluster.clock))
    assert len(cluster.ended) == 1


def test_a_handle_of_another_cluster_is_never_sent_anywhere() -> None:
    transaction = prepared()
    cluster = FakeCluster({transaction.name: described("Ongoing")}, {(PRODUCER, 0): OPEN})
    ender = cluster.ender()
    ender._cluster_id = "another"
    assert ender.look([transaction])[0].outcome is UNKNOWN
    with pytest.raises(AmbiguousOutcomeError, match="another"):
        ender.commit([transaction], Deadline(60, cluster.clock))
    assert (cluster.ended, cluster.probes) == ([], [])


@pytest.mark.parametrize("end", ["CompleteCommit", "CompleteAbort"])
def test_what_ends_while_its_partitions_are_asked_is_not_taken_for_a_marker_from_outside(end: str) -> None:
    """Another driver of the query settles at the same moment."""
    transaction = prepared()
    cluster = FakeCluster({transaction.name: described("Ongoing")}, {(PRODUCER, 0): OPEN})

    def finish() -> None:
        cluster.states[transaction.name] = described(end, 1)
        cluster.fates[PRODUCER, 0] = COMMITTED if end == "CompleteCommit" else ABORTED

    cluster.when_probed = finish
    cluster.fates[PRODUCER, 0] = COMMITTED if end == "CompleteCommit" else ABORTED
    found = cluster.ender().look([transaction])[0]
    assert found.outcome is (Outcome.COMMITTED if end == "CompleteCommit" else LOST)
    assert end in found.evidence


def test_an_end_whose_markers_are_not_written_is_waited_for_and_then_told() -> None:
    transaction = prepared()
    cluster = FakeCluster({transaction.name: described("PrepareCommit", 1)}, {(PRODUCER, 0): OPEN})

    def complete() -> None:
        if cluster.clock.passed > 3:
            cluster.states[transaction.name] = described("CompleteCommit", 1)
            cluster.fates[PRODUCER, 0] = COMMITTED

    cluster.when_described = complete
    assert cluster.ender().look([transaction])[0].outcome is Outcome.COMMITTED
    cluster.when_described = lambda: None
    cluster.states[transaction.name] = described("PrepareCommit", 1)
    with pytest.raises(RetriableError, match="MARKERS_PENDING") as pending:
        cluster.ender().look([transaction])
    assert "t [0]" in str(pending.value)


class Compacted(FakeCluster):
    """A cleaned log: aborted rows are gone, and with them the leader's word of the abort; perhaps its marker, too."""

    marker = Ending.UNKNOWN

    def stable_ends(self, probes: Sequence[Witness]) -> list[StableEnd]:
        return [StableEnd(stable=99) for _ in probes]

    def search(self, producer_id: int, epoch: int, part: Witness) -> Verdict:
        return Verdict(self.marker, f"{part} was searched")


@pytest.mark.parametrize(
    ("marker", "outcome"),
    [(Ending.ABORT, LOST), (Ending.UNKNOWN, UNKNOWN), (Ending.COMMIT, Outcome.COMMITTED)],
)
@pytest.mark.parametrize("state", [described("CompleteAbort", 1), described("Empty", 2), None])
def test_a_log_that_lists_no_abort_proves_no_commit(
    state: Description | None, marker: Ending, outcome: Outcome
) -> None:
    transaction = prepared()
    cluster = Compacted({transaction.name: state} if state else {})
    cluster.marker = marker
    assert cluster.ender().look([transaction])[0].outcome is outcome


@pytest.mark.parametrize("fates", [(CUT,), (CUT, GONE)])
def test_a_transaction_that_was_cut_off_and_then_given_up_or_timed_out_is_lost(fates: tuple[Fate, ...]) -> None:
    """While it is open it is LOST; a driver that dies after it has aborted it leaves the next one no worse off."""
    transaction = prepared(partitions=len(fates))
    cluster = FakeCluster({transaction.name: described("CompleteAbort", 1)})
    cluster.fates = {(PRODUCER, number): fate for number, fate in enumerate(fates)}
    assert cluster.ender().look([transaction])[0].outcome is LOST


def test_what_the_coordinator_calls_committed_is_not_searched_for() -> None:
    transaction = prepared()
    cluster = Compacted({transaction.name: described("CompleteCommit", 1)})
    assert cluster.ender().look([transaction])[0].outcome is Outcome.COMMITTED


def test_an_open_transaction_has_its_time_left() -> None:
    transaction = prepared()
    started: Description = described("Ongoing")
    cluster = FakeCluster({transaction.name: started}, {(PRODUCER, 0): OPEN})
    cluster.clock.advance(20)
    state = cluster.ender().look([transaction])[0]
    assert (state.outcome, state.seconds_left, state.margin) == (Outcome.PREPARED, 40.0, 15.0)


def test_abort_open_counts_what_it_has_ended() -> None:
    cluster = FakeCluster({"a": described("Ongoing"), "b": described("CompleteCommit", 1)})
    found = {"a": described("Ongoing"), "b": described("Ongoing")}
    assert cluster.ender().abort_open(found, 5, Deadline(60, cluster.clock)) == 1
    assert cluster.states["a"].state == "CompleteAbort"
