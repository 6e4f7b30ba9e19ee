"""What becomes of an open transaction, by the brokers' answer and the journals."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from connector.cli import main
from connector.kafka.client.admin import Description
from connector.kafka.client.partition_admin import OpenTransaction
from connector.kafka.client.topics import Partition, TopicInfo
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.location.location import CheckpointLocation
from connector.transactions import on_brokers
from connector.transactions.assessment import Verdict, assess
from connector.transactions.ending import check_abort
from connector.transactions.in_journals import Claim, Owner, owners_of
from connector.transactions.on_brokers import OpenOnBrokers
from tests.connector.cli_place import CliPlace
from transactional.errors import LocationError, ProtocolError

PLACE = Partition("orders", 2)
OURS, STRANGER = "etl.3.17", "billing-7"
PREPARED = Claim(4, 3, 10, None, None)
DECIDED = Claim(4, 3, 10, 12, None)
LOST = Claim(4, 3, 10, 12, "lost")


def transaction(name: str = OURS, state: str = "Ongoing") -> OpenOnBrokers:
    return OpenOnBrokers(name, 9, 5, state, 1_000, 60_000, (PLACE,), {PLACE: OpenTransaction(5, 70, 0)})


def owner(
    alive: bool | None, claim: Claim | None = None, ended: str | None = None, prefix: str = "etl", **more: Any
) -> Owner:
    claims = {} if claim is None else {(OURS, 9, 5): claim}
    found = Owner(
        location="/c/etl",
        prefixes=frozenset({prefix}),
        cluster="c",
        is_batch=False,
        is_open=claim is not None,
        run=1,
        ended=ended,
        process={"host": "a", "pid": 77},
        alive=alive,
        sink=cast("KafkaSink", object()),
        claims=claims,
        written=frozenset(),
    )
    return replace(found, **more)


STOP = "barrier stop /c/etl"


@pytest.mark.parametrize(
    ("claim", "alive", "ended", "verdict", "command"),
    [
        (DECIDED, True, None, Verdict.DECIDED, ""),
        (DECIDED, False, None, Verdict.DECIDED, STOP),
        (DECIDED, None, None, Verdict.DECIDED, f"{STOP} --query-stopped"),
        (DECIDED, True, "aborted", Verdict.DECIDED, ""),
        (DECIDED, False, "aborted", Verdict.DECIDED, STOP),
        (PREPARED, True, None, Verdict.PREPARED, ""),
        (PREPARED, None, None, Verdict.PREPARED, f"{STOP} --query-stopped"),
        (PREPARED, False, None, Verdict.WAITING, STOP),
        (PREPARED, False, "aborted", Verdict.WAITING, STOP),
        (LOST, False, None, Verdict.LOST, STOP),
        (None, True, None, Verdict.WRITING, ""),
        (None, False, None, Verdict.LINGERING, STOP),
        (None, True, "aborted", Verdict.LINGERING, ""),
        (None, None, "aborted", Verdict.LINGERING, f"{STOP} --query-stopped"),
    ],
)
def test_a_querys_transaction(
    claim: Claim | None, alive: bool | None, ended: str | None, verdict: Verdict, command: str
) -> None:
    found = assess(transaction(), [owner(alive, claim, ended)])
    assert (found.verdict, found.command, found.claim) == (verdict, command, claim)
    assert "/c/etl" in found.reason
    with pytest.raises(ProtocolError, match="ABORT_REFUSED") as refused:
        check_abort(found)
    assert found.advice in str(refused.value)
    assert str(refused.value).endswith(f"`{command}`" if command else found.advice)


def test_what_a_task_left_behind_after_a_stop_may_be_aborted() -> None:
    """`barrier stop` has nothing to do there, and a retired query has no next start."""
    found = assess(transaction(), [owner(False, ended="stopped")], "host:9092")
    assert found.verdict is Verdict.LINGERING
    assert found.command == f"barrier transactions abort --bootstrap-server host:9092 {OURS} /c/etl"
    check_abort(found)
    left = assess(transaction(), [owner(False, ended="stopped", is_open=True)])
    assert left.command == STOP
    with pytest.raises(ProtocolError, match="ABORT_REFUSED"):
        check_abort(left)


def test_batch_writes_are_ended_by_the_write_itself() -> None:
    found = assess(transaction(), [owner(False, DECIDED, is_batch=True)])
    assert (found.verdict, found.command) == (Verdict.DECIDED, "")
    assert "Repeat the df.write" in found.advice


@pytest.mark.parametrize("other", ["et", "etl.3", "x.etl", "etl.3.17"])
def test_a_prefix_is_compared_whole(other: str) -> None:
    assert assess(transaction(), [owner(False, prefix=other)]).verdict is Verdict.STRANGER
    assert assess(transaction(other), [owner(False, prefix="other")]).verdict is Verdict.STRANGER


def test_an_id_that_is_a_prefix_is_a_strangers() -> None:
    assert assess(transaction("etl"), [owner(False)]).verdict is Verdict.STRANGER


def test_a_claim_is_of_one_epoch() -> None:
    """The next transaction of the same id is not the one that the journal has decided."""
    found = assess(replace(transaction(), producer_epoch=6), [owner(False, DECIDED)])
    assert (found.verdict, found.claim) == (Verdict.LINGERING, None)


@pytest.mark.parametrize(
    ("shown", "verdict", "may"),
    [
        (transaction(STRANGER), Verdict.STRANGER, True),
        (transaction(OURS), Verdict.STRANGER, False),
        (transaction(STRANGER, "PrepareAbort"), Verdict.ENDING, False),
        (transaction(STRANGER, "PrepareCommit"), Verdict.ENDING, False),
        (transaction(STRANGER, "CompleteCommit"), Verdict.HANGING, False),
        (transaction(STRANGER, "CompleteAbort"), Verdict.HANGING, False),
        (transaction(STRANGER, "Empty"), Verdict.HANGING, False),
        (transaction(OURS, "CompleteCommit"), Verdict.HANGING, False),
        (transaction("", ""), Verdict.UNKNOWN, False),
    ],
)
def test_what_no_journal_names(shown: OpenOnBrokers, verdict: Verdict, may: bool) -> None:
    found = assess(shown, [], "host:9092")
    assert (found.verdict, bool(found.command)) == (verdict, may), "no command is named that would be refused"
    assert "kafka-transactions" not in f"{found.reason} {found.advice} {found.command}"
    if may:
        check_abort(found)
        assert found.command == f"barrier transactions abort --bootstrap-server host:9092 {shown.name}"
    else:
        with pytest.raises(ProtocolError, match="ABORT_REFUSED"):
            check_abort(found)


def test_a_producer_whose_id_this_user_may_not_see_is_still_the_journals() -> None:
    found = assess(transaction("", ""), [owner(False, DECIDED)])
    assert (found.claim, found.command) == (DECIDED, STOP)
    assert "decided in checkpoint 12" in found.reason


def test_a_hanging_transaction_of_a_query_is_ended_by_the_query() -> None:
    found = assess(transaction(state="CompleteCommit"), [owner(False, DECIDED)])
    assert (found.verdict, found.command) == (Verdict.HANGING, STOP)
    assert "orders-2 from offset 70" in found.reason
    done = assess(transaction(state="CompleteAbort"), [owner(False, ended="stopped")])
    assert (done.command, done.advice[:15]) == ("", "Start the query")


def test_an_owner_with_another_sink_owns_no_transaction() -> None:
    assert assess(transaction(), [owner(True, sink=None)]).owner is None


def test_a_command_can_be_pasted() -> None:
    evil = assess(transaction("x; touch here #"), [], "host:9092")
    assert shlex.split(evil.command)[-1] == "x; touch here #"
    assert shlex.split(assess(transaction("-rf"), [], "h:1").command)[-2:] == ["--", "-rf"]
    spaced = assess(transaction(), [replace(owner(False), location="/c/my query")])
    assert shlex.split(spaced.command) == ["barrier", "stop", "/c/my query"]
    assert str(transaction("a\x1b[2Jb")) == "a?[2Jb (producer 9, epoch 5)"


# -- what the brokers show ------------------------------------------------------------------------------------------------


class Brokers:
    """A cluster with one partition: what each question is answered with, one after the other; the last answer stays."""

    def __init__(self, described: list[dict[str, Description]], opened: list[dict[int, OpenTransaction]]) -> None:
        self.described, self.opened = described, opened

    def transactional_ids(self, states: Sequence[str]) -> list[str]:
        return [name for name, each in self.described[0].items() if each.state in states]

    def owners(self, producer_ids: Collection[int]) -> dict[int, str]:
        return {e.producer_id: name for name, e in self.described[0].items() if e.producer_id in producer_ids}

    def describe(self, names: Sequence[str]) -> dict[str, Description]:
        if not names:
            return {}
        now = self.described.pop(0) if len(self.described) > 1 else self.described[0]
        return {name: each for name, each in now.items() if name in names}

    def topics(self, names: Sequence[str], awaited: Sequence[Partition]) -> dict[str, TopicInfo]:
        return {"orders": TopicInfo("id", {2: 1, 3: -1}, None)}

    def ends(self, topic: str) -> dict[Partition, tuple[int, int]]:
        return {PLACE: (70, 90)}

    def open_transactions(self, places: Sequence[Partition]) -> dict[Partition, dict[int, OpenTransaction]]:
        now = self.opened.pop(0) if len(self.opened) > 1 else self.opened[0]
        return dict.fromkeys(places, now)


def seen(brokers: Brokers) -> list[tuple[str, int, str]]:
    with mock.patch.object(on_brokers, "PartitionAdmin", lambda admin: admin):
        view = on_brokers.look(cast("Any", brokers), ["orders"])
    assert view.silent == (Partition("orders", 3),), "one without a leader is named"
    holders = [each for held in view.held for each in held.holders]
    assert all(each in view.transactions for each in holders)
    return [(each.name, each.producer_epoch, each.state) for each in view.transactions]


def described(state: str, epoch: int, started: int = 1_000) -> dict[str, Description]:
    return {STRANGER: Description(state, 9, epoch, 60_000, started, (PLACE,))}


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort", "PrepareEpochFence"])
def test_one_that_is_ending_is_known_by_the_epoch_that_its_partition_has(state: str) -> None:
    """The coordinator shows the next epoch already; it must not count as another transaction."""
    brokers = Brokers([described(state, 6)], [{9: OpenTransaction(5, 70, 0)}])
    assert seen(brokers) == [(STRANGER, 5, state)]


def test_one_that_hangs() -> None:
    brokers = Brokers([described("CompleteCommit", 6)], [{9: OpenTransaction(5, 70, 0)}])
    assert seen(brokers) == [(STRANGER, 5, "CompleteCommit")]


def test_of_one_that_hangs_behind_a_later_one_nothing_is_known() -> None:
    brokers = Brokers([described("CompleteCommit", 9)], [{9: OpenTransaction(5, 70, 0)}])
    assert seen(brokers) == [(STRANGER, 5, "")]


def test_a_producer_at_work_does_not_hang() -> None:
    """It commits and begins again at one epoch, between the questions."""
    at_work = [described("CompleteCommit", 5, 1_000), described("CompleteCommit", 5, 2_000)]
    assert seen(Brokers(at_work, [{9: OpenTransaction(5, 70, 0)}, {9: OpenTransaction(5, 80, 0)}])) == []


def test_one_that_began_after_the_first_question_is_open() -> None:
    brokers = Brokers([described("Empty", 4), described("Ongoing", 5)], [{9: OpenTransaction(5, 70, 0)}])
    assert seen(brokers) == [(STRANGER, 5, "Ongoing")]


def test_a_producer_that_this_user_may_not_see() -> None:
    assert seen(Brokers([{}], [{9: OpenTransaction(5, 70, 0)}])) == [("", 5, "")]


# -- what the journals say ------------------------------------------------------------------------------------------------


def test_a_copy_owns_nothing_that_its_original_writes(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run(prefix="original")
    place.decided(0)
    assert main(["restore", "--as-is", str(place), "--no-claim", "--yes"]) == 0
    location = CheckpointLocation(str(place))
    with pytest.raises(LocationError, match="ADOPTED_NOT_STARTED"):
        owners_of(location, place.ledger(), {})
    place.run(prefix="copy")
    (owner,) = owners_of(location, place.ledger(), {})
    assert owner.prefixes == {"copy"}


def test_a_folder_that_was_copied_by_hand_owns_nothing(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run()
    place.decided(0)
    location = CheckpointLocation(shutil.copytree(str(place), str(tmp_path / "copy")))
    with pytest.raises(LocationError, match="LOCATION_MOVED"):
        owners_of(location, location.journal().load(), {})
