"""What becomes of an open transaction, by the brokers' answer and the journals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from connector.kafka.client.partition_admin import OpenTransaction
from connector.kafka.client.topics import Partition
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.transactions.assessment import Assessment, Verdict, assess
from connector.transactions.ending import check_end
from connector.transactions.in_journals import Claim, Owner
from connector.transactions.on_brokers import OpenOnBrokers
from transactional.errors import ProtocolError

PLACE = Partition("orders", 2)
OURS, STRANGER = "etl.3.17", "billing-7"
PREPARED = Claim(4, 3, 10, None, False, None)
DECIDED = Claim(4, 3, 10, 12, False, None)
LOST = Claim(4, 3, 10, 12, False, "lost")


def transaction(name: str = OURS, state: str = "Ongoing", epoch: int = 5) -> OpenOnBrokers:
    opened = {PLACE: OpenTransaction(5, 70, 0)}
    return OpenOnBrokers(name, 9, 5, state, epoch, 1_000, 60_000, (PLACE,), opened)


def owner(alive: bool | None, claim: Claim | None = None, ended: str | None = None, prefix: str = "etl") -> Owner:
    claims = {} if claim is None else {(OURS, 9, 5): claim}
    process = {"host": "a", "pid": 77}
    sink = cast("KafkaSink", object())
    return Owner("/c/etl", prefix, frozenset({prefix}), 1, ended, process, alive, sink, claims, frozenset(), 3)


@pytest.mark.parametrize(
    ("claim", "alive", "ended", "verdict", "command"),
    [
        (DECIDED, True, None, Verdict.DECIDED, ""),
        (DECIDED, False, None, Verdict.DECIDED, "barrier stop /c/etl"),
        (DECIDED, None, None, Verdict.DECIDED, "barrier stop /c/etl --query-stopped"),
        (DECIDED, True, "aborted", Verdict.DECIDED, "barrier stop /c/etl"),
        (PREPARED, True, None, Verdict.PREPARED, ""),
        (PREPARED, None, None, Verdict.PREPARED, "barrier stop /c/etl --query-stopped"),
        (PREPARED, False, None, Verdict.WAITING, "barrier stop /c/etl"),
        (PREPARED, True, "aborted", Verdict.WAITING, "barrier stop /c/etl"),
        (LOST, False, None, Verdict.LOST, "barrier stop /c/etl"),
        (None, True, None, Verdict.WRITING, ""),
        (None, False, None, Verdict.LINGERING, "barrier stop /c/etl"),
        (None, True, "aborted", Verdict.LINGERING, "barrier stop /c/etl"),
    ],
)
def test_a_querys_transaction(
    claim: Claim | None, alive: bool | None, ended: str | None, verdict: Verdict, command: str
) -> None:
    found = assess(transaction(), [owner(alive, claim, ended)])
    assert (found.verdict, found.command, found.claim) == (verdict, command, claim)
    assert "/c/etl" in found.reason
    for commit in (True, False):
        with pytest.raises(ProtocolError, match="END_REFUSED") as refused:
            check_end(found, commit)
        assert found.advice in str(refused.value)


@pytest.mark.parametrize("other", ["et", "etl.3", "x.etl"])
def test_a_prefix_is_compared_whole(other: str) -> None:
    assert assess(transaction(), [owner(False, prefix=other)]).verdict is Verdict.STRANGER


def test_a_claim_is_of_one_epoch() -> None:
    """The next transaction of the same id is not the one that the journal has decided."""
    later = OpenOnBrokers(OURS, 9, 6, "Ongoing", 6)
    found = assess(later, [owner(False, DECIDED)])
    assert (found.verdict, found.claim) == (Verdict.LINGERING, None)


@pytest.mark.parametrize(
    ("shown", "refused"),
    [
        (transaction(STRANGER), {True: "only its program knows", False: ""}),
        (transaction(OURS), {True: "only its program knows", False: "Name the checkpointLocation"}),
        (transaction(STRANGER, "PrepareAbort"), {True: "writing the markers", False: "writing the markers"}),
        (transaction(STRANGER, "CompleteCommit", 6), {True: "", False: "calls it committed"}),
        (transaction(STRANGER, "CompleteAbort", 6), {True: "calls it aborted", False: ""}),
        (transaction(STRANGER, "Empty", 9), {True: "how it ended", False: "how it ended"}),
        (transaction("", "", -1), {True: "how it ended", False: "how it ended"}),
    ],
)
def test_what_no_journal_names(shown: OpenOnBrokers, refused: Mapping[bool, str]) -> None:
    found = assess(shown, [], "host:9092")
    allowed = {commit for commit, text in refused.items() if not text}
    for commit, text in refused.items():
        if text:
            with pytest.raises(ProtocolError, match=text):
                check_end(found, commit)
        else:
            assert check_end(found, commit)
    verbs = {verb for verb in ("commit", "abort") if f"transactions {verb} {shown.name} " in found.command}
    assert verbs == {"commit" if commit else "abort" for commit in allowed}, "no command is named that would be refused"


def test_a_hanging_transaction_of_a_query_is_ended_by_the_query() -> None:
    found = assess(transaction(state="CompleteCommit", epoch=6), [owner(False, DECIDED)])
    assert (found.verdict, found.command) == (Verdict.HANGING, "barrier stop /c/etl")
    assert "orders-2 from offset 70" in found.reason


def test_an_owner_with_another_sink_owns_no_transaction() -> None:
    other: Any = owner(True)
    found: Assessment = assess(transaction(), [Owner(**{**other.__dict__, "sink": None})])
    assert found.owner is None
