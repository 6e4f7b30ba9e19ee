"""What one partition's answer says of a transaction, and what it does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from connector.kafka.client.admin import Description
from connector.kafka.client.partition_admin import OpenTransaction, StableEnd
from connector.kafka.client.partition_log import Ending, Verdict, Witness
from connector.kafka.client.topics import Partition
from connector.kafka.sink.fates import Fate, PartFate, ended_fates, judge_ended, open_fates
from connector.kafka.sink.handles import Prepared, parse_handle
from tests.connector.kafka.sink.fake_cluster import EPOCH, PRODUCER, described, prepared
from transactional.sink import Outcome


class Leader:
    """One partition's leader, with these answers; its log holds an abort marker."""

    def __init__(self, end: StableEnd, opened: Mapping[int, OpenTransaction] | None = None) -> None:
        self.end = end
        self.opened = dict(opened or {})
        self.searched: list[int] = []

    def open_transactions(self, places: Collection[Partition]) -> dict[Partition, dict[int, OpenTransaction]]:
        return dict.fromkeys(places, self.opened)

    def stable_ends(self, probes: Sequence[Witness]) -> list[StableEnd]:
        return [self.end for _ in probes]

    def search(self, producer_id: int, epoch: int, part: Witness) -> Verdict:
        self.searched.append(part.offset)
        return Verdict(Ending.ABORT, f"{part} has its abort marker at 11")


def ended(leader: Leader, *transactions: Prepared, together: bool = False) -> list[Fate]:
    found = ended_fates(leader, transactions or [prepared()], together)  # type: ignore[arg-type]
    return [fate.fate for fates in found for fate in fates]


def opened_fates(leader: Leader, *transactions: Prepared) -> list[Fate]:
    found = open_fates(leader, transactions or [prepared()])  # type: ignore[arg-type]
    return [fate.fate for fates in found for fate in fates]


@pytest.mark.parametrize(("stable", "fate"), [(10, Fate.OPEN), (9, Fate.OPEN), (11, Fate.COMMITTED)])
def test_the_stable_offset_has_to_be_past_the_witness(stable: int, fate: Fate) -> None:
    """The marker stands at the witness or behind it."""
    assert ended(Leader(StableEnd(stable=stable), {PRODUCER: OpenTransaction(EPOCH, 4, -1)})) == [fate]


@pytest.mark.parametrize(("first", "fate"), [(9, Fate.ABORTED), (10, Fate.COMMITTED)])
def test_an_aborted_transaction_that_begins_behind_the_witness_is_the_producer_s_next(first: int, fate: Fate) -> None:
    assert ended(Leader(StableEnd(stable=50, aborted={PRODUCER: (first,)}))) == [fate]


def test_where_the_aborted_transactions_are_left_out_the_log_is_searched() -> None:
    leader = Leader(StableEnd(stable=50, aborted=None))
    assert (ended(leader), leader.searched) == ([Fate.ABORTED], [10])


def test_an_aborted_transaction_of_another_producer_is_none_of_ours() -> None:
    assert ended(Leader(StableEnd(stable=50, aborted={PRODUCER + 1: (4,)}))) == [Fate.COMMITTED]


@pytest.mark.parametrize("look", [ended, opened_fates])
@pytest.mark.parametrize(("start", "fate"), [(9, Fate.OPEN), (10, Fate.ABORTED)])
def test_an_open_transaction_that_begins_behind_the_witness_is_the_producer_s_next(
    look: object, start: int, fate: Fate
) -> None:
    leader = Leader(StableEnd(stable=4), {PRODUCER: OpenTransaction(EPOCH + 2, start, -1)})
    assert look(leader) == [fate]  # type: ignore[operator]
    assert leader.searched == ([] if fate is Fate.OPEN else [10])


def test_of_two_transactions_only_the_one_whose_rows_were_cut_off_is_hurt() -> None:
    """One question is asked for both, at the later witness."""
    later = parse_handle({**prepared().handle, "written": {"t": [[0, 14, 0]]}})
    assert ended(Leader(StableEnd(cut_at=12)), prepared(), later, together=True)[1] is Fate.CUT
    leader = Leader(StableEnd(cut_at=12), {PRODUCER: OpenTransaction(EPOCH, 4, -1)})
    assert opened_fates(leader, prepared(), later) == [Fate.OPEN, Fate.CUT]


@pytest.mark.parametrize(
    ("state", "began", "outcome"),
    [
        ("CompleteAbort", 0, Outcome.LOST),
        ("CompleteCommit", 0, Outcome.COMMITTED),
        ("CompleteAbort", 1, Outcome.UNKNOWN),
        ("CompleteCommit", -1, Outcome.UNKNOWN),
    ],
)
def test_below_version_5_too_if_the_coordinator_says_that_it_began_when_ours_did(
    state: str, began: int, outcome: Outcome
) -> None:
    """A timeout, or a new owner of the id, aborts at the next epoch; a broker can leave the marker out (KAFKA-20734)."""
    transaction = parse_handle({**prepared(version=4).handle, "startedAt": 1_700_000_000_000 + began})
    parts = [PartFate(part, Fate.OPEN) for part in transaction.written]
    assert judge_ended(transaction, described(state, 1), parts, 0.0).state.outcome is outcome


@pytest.mark.parametrize(
    ("version", "description", "fates", "outcome"),
    [
        # Nothing is left to confirm that the id's state at the next epoch is about this transaction.
        (5, described("CompleteCommit", 1), (Fate.GONE,), Outcome.UNKNOWN),
        (5, described("CompleteAbort", 1), (Fate.GONE,), Outcome.UNKNOWN),
        (5, described("CompleteCommit", 1), (Fate.OPEN,), Outcome.COMMITTED),
        (5, described("CompleteAbort", 1), (Fate.OPEN,), Outcome.LOST),
        (5, described("CompleteCommit", 1, PRODUCER + 1), (Fate.OPEN,), Outcome.UNKNOWN),
        # Below version 5 it may be the id's next owner that has ended there.
        (4, described("CompleteCommit", 1), (Fate.OPEN,), Outcome.UNKNOWN),
        (4, described("CompleteAbort", 1), (Fate.OPEN,), Outcome.UNKNOWN),
        (4, described("CompleteAbort", 1), (Fate.OPEN, Fate.ABORTED), Outcome.LOST),
        (4, described("CompleteCommit", 1), (Fate.OPEN, Fate.ABORTED), Outcome.UNKNOWN),
        (5, None, (Fate.OPEN, Fate.ABORTED), Outcome.UNKNOWN),
        (5, None, (Fate.CUT,), Outcome.UNKNOWN),
        (5, None, (Fate.CUT, Fate.ABORTED), Outcome.LOST),
        (5, None, (), Outcome.UNKNOWN),
    ],
)
def test_what_the_coordinator_says_at_the_next_epoch_counts_only_for_a_transaction_that_is_still_open_somewhere(
    version: int, description: Description | None, fates: tuple[Fate, ...], outcome: Outcome
) -> None:
    transaction = prepared(version=version, partitions=len(fates))
    parts = [PartFate(part, fate) for part, fate in zip(transaction.written, fates, strict=True)]
    assert judge_ended(transaction, description, parts, 0.0).state.outcome is outcome
