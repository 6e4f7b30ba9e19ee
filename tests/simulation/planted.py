"""Bugs of the protocol that the simulation has to find: each replaces one thing of the product, or of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from connector.delta import commits, delta_log, handles
from connector.delta import sink as delta_sink
from connector.delta.staging import Notes
from connector.kafka.client.connection import KafkaConnection
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.client.partition_log import Ending
from connector.kafka.client.topics import Partition, TopicInfo
from connector.kafka.sink import end_txn, fates, kafka_sink, transactional_ids
from connector.kafka.sink.end_txn import Answer, TransactionEnder
from connector.kafka.sink.fates import Fate
from connector.kafka.sink.second_look import SecondLook
from connector.savepoints import restore, take
from connector.sql.control_tables import ControlTables
from connector.sql.staged_sink import StagedSqlSink
from tests.simulation import database
from tests.simulation.product import IN_DELTA, IN_KAFKA, IN_MEMORY, IN_SQL, SimulatedSqlSink
from tests.simulation.stores import SimulatedFiles
from tests.simulation.world import Setup
from transactional import settlement
from transactional.checkpoint import Mode, TaskPlan
from transactional.coordinator import CheckpointCoordinator, claim
from transactional.coordinator.claim import Claimant
from transactional.coordinator.decision import Decision
from transactional.coordinator.planning import Planning
from transactional.coordinator.session import Session
from transactional.entries import Settled
from transactional.journal import Journal
from transactional.ownership import newest_run
from transactional.recovery import Claim
from transactional.rewind import Rewinder
from transactional.settlement import Settlement
from transactional.sink import Outcome
from transactional.testing import RecordingSink

__all__ = ["PLANTED", "UNSEEN", "planted"]

Change = tuple[Any, str, Callable[[Any], Any]]
"""What is changed, an attribute of it, and what that becomes."""


def nothing(_: Any) -> Callable[..., None]:
    """Make something that does nothing."""
    return lambda *_, **__: None


def _believes_silence(_: Any) -> Any:
    def held_back(self: PartitionAdmin, topic: str) -> list[Partition]:
        return [partition for partition, (stable, high) in self.ends(topic).items() if stable != high]

    return held_back


def _commits_first(decide: Any) -> Any:
    def changed(self: Any, messages: Any, *args: Any) -> None:
        handles = [handle for m in messages for handle in m.handles]
        if handles:
            self._sink.commit(handles, None)
        decide(self, messages, *args)

    return changed


def _aborts_first(abort: Any) -> Any:
    def changed(self: Any, messages: Any, batch: int) -> None:
        self._sink.abort([handle for m in messages if m is not None for handle in m.handles])
        abort(self, messages, batch)

    return changed


def _aborts_in_silence(_: Any) -> Any:
    def changed(self: Any, messages: Any, batch: int) -> None:
        if batch not in self._journal.load().batches:
            self._sink.abort([handle for m in messages if m is not None for handle in m.handles])

    return changed


def _writes_again(plan_tasks: Any) -> Any:
    def changed(self: Any, run: Any) -> TaskPlan:
        plan: TaskPlan = plan_tasks(self, run)
        undecided = {record.batch for record in self._journal.ledger.undecided()}
        return replace(plan, mode=Mode.WRITE) if plan.batch in undecided else plan

    return changed


def _proves_nothing(settle: Any) -> Any:
    def changed(self: Any, *args: Any) -> None:
        with mock.patch.object(type(self._sink), "abort", return_value=[]):
            settle(self, *args)

    return changed


def _settled_first(commit: Any) -> Any:
    def changed(self: Any, checkpoint: Any, parts: Any, recovering: bool) -> bool:
        run = newest_run(self._journal.ledger).token
        if parts:
            self._journal.append(Settled(checkpoint=checkpoint.id, run=run, output={}, stamp=0), lambda _: None)
        return bool(commit(self, checkpoint, parts, recovering))

    return changed


def _trusts_taken(create: Any) -> Any:
    def changed(self: Any, entry: Any, data: bytes) -> Any:
        try:
            return data if self._store.create(f"{entry.number}.json", data) else None
        except OSError:
            return create(self, entry, data)

    return changed


def _gives_lost_answers_up(_: Any) -> Any:
    def changed(self: Any, entry: Any, data: bytes) -> bytes | None:
        try:
            return data if self._store.create(f"{entry.number}.json", data) else None
        except OSError as error:
            raise self._failed(f"{entry.number}.json", error) from error

    return changed


def _folds_all(_: Any) -> Any:
    def changed(self: Any, every: int = 8) -> None:
        from transactional.journal.journal import snapshot_file

        if self.ledger.position - (self._snapshots[-1] if self._snapshots else 0) >= every:
            name, data = snapshot_file(self.ledger, self._clock, self._nonce())
            self._store.create(name, data)
            self._snapshots = self._list()[1]
            for number in self._list()[0]:
                if number <= self._snapshots[-1]:
                    self._store.delete(f"{number}.json")

    return changed


def _sweeps_all(sweep: Any) -> Any:
    return lambda self, known, before: sweep(self, (), before)


def _replaces(create: Any) -> Any:
    def changed(self: SimulatedFiles, name: str, data: bytes) -> bool:
        if not name.startswith("barrier/log/"):
            return bool(create(self, name, data))
        self.put(name, data)
        return True

    return changed


def _takes_without_mark(real: Any) -> Any:
    def changed(ledger: Any, driver: str, settings: str) -> Any:
        newest = ledger.newest_run
        unmarked = newest is not None and newest.mark is None and newest.driver == driver and not newest.ended
        return (Claim.TAKE, newest) if unmarked else real(ledger, driver, settings)

    return changed


def _prepared_is_ready(inspect: Any) -> Any:
    def changed(self: Any, handles: Any) -> Any:
        return [replace(state, outcome=Outcome.PREPARED, seconds_left=None) for state in inspect(self, handles)]

    return changed


def _no_gaps(_: Any) -> Any:
    return lambda *_: {}


def _newest_first(commit: Any) -> Any:
    return lambda self, checkpoint, parts, recovering: commit(self, checkpoint, parts[::-1], recovering)


def _unclaimed(take: Any) -> Any:
    def changed(self: Any) -> Any:
        run = self._journal.ledger.newest_run
        return (run, False) if run is not None and not run.ended else take(self)

    return changed


def _believes_the_first(ask_several: Any) -> Any:
    def changed(self: Any, request: Any) -> Any:
        answers = ask_several(self, request)
        return answers and answers[:1] * len(answers)

    return changed


def _aborts_blindly(_: Any) -> Any:
    def changed(self: Any, transactions: Any, deadline: Any) -> list[Any]:
        self._end_all(transactions, False, deadline)
        return []

    return changed


def _forgets_commits(states: Any) -> Any:
    def changed(*args: Any, **options: Any) -> Any:
        return {
            nonce: "prepared" if state == "committed" else state for nonce, state in states(*args, **options).items()
        }

    return changed


def _ends_commits_only(end: Any) -> Any:
    return lambda self, cursor, nonces, state: end(self, cursor, nonces, state) if state == "committed" else None


def _sweeps_everything(sweep: Any) -> Any:
    return lambda self, is_over: sweep(self, lambda row: row.state == "prepared")


def _believes_in_commits(commit: Any) -> Any:
    def changed(self: Any) -> None:
        with suppress(database.DatabaseError):
            commit(self)

    return changed


def _writes_anonymously(write: Any) -> Any:
    def changed(table: Any, actions: Any, app: str, version: int, mark: Any) -> None:
        write(table, actions, f"{app}{len(table.get_add_actions())}", version, mark)

    return changed


def _knows_no_abort(read: Any) -> Any:
    def changed(*args: Any) -> Any:
        past = read(*args)
        past.aborted = set()
        return past

    return changed


PLANTED_IN_MEMORY: Mapping[str, Change] = {
    "rows are committed before the decision": (Decision, "decide", _commits_first),
    "an abort does not check the journal first": (CheckpointCoordinator, "abort", _aborts_first),
    "an abort is not journaled": (CheckpointCoordinator, "abort", _aborts_in_silence),
    "a commit does not check which run wrote its rows": (
        CheckpointCoordinator,
        "_token",
        lambda _: lambda self, *__: newest_run(self._journal.ledger).token,
    ),
    "a journal entry replaces the entry with the same number": (SimulatedFiles, "create", _replaces),
    "the journal's files are not listed after an entry is created": (Journal, "_check_not_folded", nothing),
    "a transaction counts as lost without proof": (Settlement, "settle", _proves_nothing),
    "a sweep aborts transactions that the journal knows": (RecordingSink, "sweep", _sweeps_all),
    "a prepared micro-batch is written again": (Planning, "plan_tasks", _writes_again),
    "a decision does not check its transactions": (Settlement, "look", lambda _: lambda *_: []),
    "a checkpoint is settled before its commit": (Settlement, "commit", _settled_first),
    "the answer that an entry's number is taken is not checked": (Journal, "_create", _trusts_taken),
    "a create request without an answer counts as failed": (Journal, "_create", _gives_lost_answers_up),
    "a snapshot deletes all entries that it covers": (Journal, "fold", _folds_all),
    "micro-batches after a lost micro-batch are committed": (settlement, "gaps", _no_gaps),
    "micro-batches are committed newest first": (Settlement, "commit", _newest_first),
    "a new driver claims no run": (Claimant, "take", _unclaimed),
    "transactions are never swept": (Session, "sweep", nothing),
    "planning settles no checkpoint": (Planning, "settle_all", nothing),
    "prepared micro-batches are always kept": (Planning, "keep_or_void", nothing),
    "a rewind does not abort prepared transactions": (Rewinder, "_abort_prepared", nothing),
    "every transaction counts as prepared": (RecordingSink, "inspect", _prepared_is_ready),
    "a claim does not check whether the origin's query has continued": (
        restore,
        "may_move",
        lambda _: lambda *__: lambda ledger: None,
    ),
    "the journal of a claimed query begins again at number 0": (restore, "begins_at", lambda _: lambda *__: 0),
    "a savepoint contains entries that are newer than its checkpoint": (
        take,
        "cut",
        lambda _: lambda ledger, __: ledger.copy(),
    ),
}

_ONE_LOOK: Change = (SecondLook, "confirms", lambda _: lambda *_: True)

PLANTED_IN_KAFKA: Mapping[str, Sequence[Change]] = {
    "a transaction counts as unknown if one check finds no marker": (
        _ONE_LOOK,
        (fates, "_BY_ENDING", lambda known: {**known, Ending.NOT_YET: Fate.UNKNOWN}),
    ),
    "one broker's answer determines the leader": (
        _ONE_LOOK,
        (KafkaConnection, "ask_several", _believes_the_first),
        (TopicInfo, "epoch", lambda _: lambda *_: -1),
    ),
    "a transactional id is reused while its transaction is prepared": (
        (transactional_ids, "BUSY", lambda _: frozenset()),
    ),
    "the error INVALID_TXN_STATE counts as success": ((end_txn, "ANSWERS", lambda known: {**known, 48: Answer.ENDED}),),
    "a broken connection counts as success": (
        (
            end_txn,
            "answer_for",
            lambda real: lambda answer: Answer.ENDED if isinstance(answer, Exception) else real(answer),
        ),
    ),
    "an abort ignores that a transaction is committed": ((TransactionEnder, "abort", _aborts_blindly),),
    "hanging transactions are not ended": ((kafka_sink, "end_hanging", lambda _: lambda *_: 0),),
    "a partition whose leader does not answer counts as free of open transactions": (
        (PartitionAdmin, "held_back", _believes_silence),
    ),
    "a run does not initialize its transactional id": ((kafka_sink.KafkaSink, "guardRun", lambda _: lambda *_: {}),),
    "two planning processes guard the prefix for one run": ((claim, "whose_run", _takes_without_mark),),
    "a query's own late request counts as another query's request": (
        (kafka_sink, "_is_marked", lambda real: lambda run, mark, _: real(run, mark, 0)),
    ),
}

PLANTED_IN_SQL: Mapping[str, Sequence[Change]] = {
    "a database commit takes no locks": ((SimulatedSqlSink, "locking", lambda _: ""),),
    "a committed transaction is committed again": ((ControlTables, "states", _forgets_commits),),
    "staged rows are not counted before the commit": ((StagedSqlSink, "_gone", lambda _: lambda *_: []),),
    "staged rows are counted only once": ((StagedSqlSink, "_must_be_staged", nothing),),
    "an abort does not change the transaction's state": ((ControlTables, "end", _ends_commits_only),),
    "a sweep aborts transactions that may still be decided": ((StagedSqlSink, "_sweep", _sweeps_everything),),
    "a COMMIT whose answer is lost counts as successful": ((database.Session, "commit", _believes_in_commits),),
}

PLANTED_IN_DELTA: Mapping[str, Sequence[Change]] = {
    "a Delta commit does not use a fixed app transaction": ((commits, "_write", _writes_anonymously),),
    "data files of excluded transactions are added": ((delta_sink, "read_past", _knows_no_abort),),
    "an abort does not exclude its transactions": ((delta_sink, "exclude", lambda _: lambda *_: None),),
    "data files that the table already has are added again": ((handles, "added", lambda _: lambda *_: []),),
    "checkpoint numbers that an accepted table contains are used again": (
        (claim.Claimant, "_held", lambda _: lambda *_: 0),
    ),
    "data files are deleted without checking the Delta log": ((delta_log, "_take", lambda _: lambda *_: None),),
    "a task writes no note about its transaction's files": ((Notes, "put", nothing),),
}

UNSEEN = frozenset(
    {
        "an abort does not check the journal first",  # what it gives up is written again by a repair
        "an abort is not journaled",
        "the journal's files are not listed after an entry is created",
        "a transaction counts as lost without proof",
        "a decision does not check its transactions",
        "the answer that an entry's number is taken is not checked",
        "a snapshot deletes all entries that it covers",
        "micro-batches after a lost micro-batch are committed",
        "a new driver claims no run",
        "a rewind does not abort prepared transactions",
        "a prepared micro-batch is written again",  # one run in a thousand shows it
        # Several looks stand behind each of these: no single one is missed.
        "one broker's answer determines the leader",
        "the error INVALID_TXN_STATE counts as success",
        "a broken connection counts as success",
        "an abort ignores that a transaction is committed",
        "hanging transactions are not ended",
        "a query's own late request counts as another query's request",
        # Shown by hundreds of runs.
        "staged rows are counted only once",
        "a partition whose leader does not answer counts as free of open transactions",
        "a database commit takes no locks",
        "a run does not initialize its transactional id",
        "two planning processes guard the prefix for one run",
        # A commit that was judged before an abort, and comes after it.
        "data files of excluded transactions are added",
        "an abort does not exclude its transactions",
    }
)
"""Those that these searches do not show, as they need several troubles at once. Those in `tests.transactional` find most."""


PLANTED: Mapping[str, tuple[Sequence[Setup], Sequence[Change]]] = {
    **{bug: (IN_MEMORY, [change]) for bug, change in PLANTED_IN_MEMORY.items()},
    **{bug: (IN_KAFKA, changes) for bug, changes in PLANTED_IN_KAFKA.items()},
    **{bug: (IN_SQL, changes) for bug, changes in PLANTED_IN_SQL.items()},
    **{bug: (IN_DELTA, changes) for bug, changes in PLANTED_IN_DELTA.items()},
}
"""By name: in whose runs it may show, and what is changed."""


@contextmanager
def planted(bug: str) -> Iterator[Sequence[Setup]]:
    """Plant one of them; yields the setups in whose runs it may show."""
    setups, changed = PLANTED[bug]
    with ExitStack() as changes:
        for owner, attribute, change in changed:
            changes.enter_context(mock.patch.object(owner, attribute, change(getattr(owner, attribute))))
        yield setups
