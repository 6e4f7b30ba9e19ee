"""`CheckpointCoordinator`: planning, commit, abort and end of a query's micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from transactional import entries, faults
from transactional.checkpoint import Acknowledgement, TaskPlan
from transactional.clock import Clock, SystemClock
from transactional.coordinator.claim import Claimant
from transactional.coordinator.decision import Decision
from transactional.coordinator.planning import Planning
from transactional.coordinator.session import RunSettings, Session
from transactional.errors import FencedError, JournalStoreError, ProtocolError, RetriableError
from transactional.journal import Journal
from transactional.ledger import BatchRecord, CheckpointRecord
from transactional.ownership import (
    may_abort,
    may_stop,
    moved_on,
    must_own,
    newest_run,
    rewinding,
    superseded,
    unfinished,
)
from transactional.recovery import (
    QueryView,
    check_beginnings,
    check_encodings,
    check_location,
    check_prefix,
    check_restored,
    check_running,
    check_sources,
    replaced_since_planned,
)
from transactional.recovery.versions import check_origin, check_overtaken, check_target, check_written
from transactional.sink import TwoPhaseCommitSink

log = logging.getLogger(__name__)


class CheckpointCoordinator:
    """Plans, commits, aborts and ends the micro-batches of one query, with one sink and one journal.

    Parameters
    ----------
    journal : Journal
    sink : TwoPhaseCommitSink
    settings : RunSettings
    view : QueryView
        The query's logs, as the caller just read them.
    under : Callable[[str], TwoPhaseCommitSink], optional
        Builds the same sink with an old prefix, to abort the transactions that earlier runs left under that prefix.
    clock : Clock, optional
    """

    def __init__(
        self,
        journal: Journal,
        sink: TwoPhaseCommitSink[Any, Any],
        settings: RunSettings,
        view: QueryView,
        under: Callable[[str], TwoPhaseCommitSink[Any, Any]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._settings = settings
        self._view = view
        self._session = Session(journal, sink, settings, view, clock or SystemClock())
        self._claimant = Claimant(self._session, under)
        self._planning = Planning(self._session)
        self._decision = Decision(self._session)

    def plan(self) -> TaskPlan:
        """Settle or abort the transactions of earlier runs, and return the plan for the tasks of the micro-batch.

        *Called on the driver, at each planning, in the planning process only.*
        """
        # P2: load the journal.
        ledger = self._journal.load()
        if ledger.restoring is not None:
            raise unfinished(ledger.restoring)
        check_location(ledger, self._view)
        if ledger.moved is not None:
            raise moved_on(ledger.moved)
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        check_prefix(ledger, self._settings.prefix)
        if not self._settings.allow_non_restored:
            check_restored(ledger, self._view, [hook.identifier() for hook in self._settings.hooks])
        view = self._view
        is_open = bool(ledger.undecided()) or ledger.reached >= view.batch
        check_running(view.lines, view.previous, view.running, view.batch, is_open=is_open)
        check_beginnings(view.lines, view.previous, ledger.left_after(view.batch - 1))
        if self._view.gaps:
            check_target(ledger, self._session.identify())
        # P3: continue the newest run if it is ours, or claim a new one. From here on no other driver decides anything.
        run, claimed = self._claimant.take()
        if self._view.gaps and not claimed:  # a recorded version is not written again, so the store must hold it
            self._session.settlement.must_hold()
        # P4 to P8: account for every micro-batch, settle decided checkpoints, keep or void prepared micro-batches, sweep.
        self._planning.recover(run, claimed)
        # P9: give the tasks the run and the mode.
        return self._planning.plan_tasks(run)

    def commit(self, messages: Sequence[Acknowledgement | None], batch: int, origin: str = "") -> None:
        """Journal the micro-batch as prepared, or decide its checkpoint and commit it.

        *Called on the driver, once per micro-batch, in the commit process.*

        For a batch write, `origin` is the id of the streaming query whose batch ids serve as versions (empty if there
        is none).
        """
        faults.reach("commit.called")
        # C1: load the journal. The run must be the newest.
        ledger = self._journal.load()
        token = self._token(messages, batch)
        must_own(token)(ledger)
        acknowledged = [m for m in messages if m is not None]
        if len(acknowledged) < len(messages):
            raise ProtocolError(
                "PROTOCOL_VIOLATED", reason=f"a writer task of micro-batch {batch} sent no commit message"
            )
        check_sources(ledger, self._view)
        if any(message.sources != self._view.sources for message in acknowledged):
            raise replaced_since_planned(batch)
        check_encodings(acknowledged, batch)
        check_origin(ledger, origin)
        found = ledger.batches.get(batch)
        if found is None and batch <= ledger.accounted:  # an old version whose record is no longer kept
            check_overtaken(ledger, acknowledged, batch)
            log.info("txnVersion %d was already written, so nothing is written now", batch)
        elif found is not None and found.checkpoint is not None:
            # C2: the micro-batch is already decided. Only lost parts may still have to be repaired.
            if self._view.gaps:
                self._check_written(found, acknowledged, token)
            checkpoint = ledger.checkpoints.get(found.checkpoint)  # None: settled, and no longer kept
            if checkpoint is not None and not checkpoint.settled:
                self._repair(checkpoint, found, acknowledged, token)
        else:
            self._decision.decide(acknowledged, batch, token, found, origin)
        # C10: sweep the transactions of task attempts that a retry or speculation replaced.
        self._session.sweep(token)

    def _repair(
        self, checkpoint: CheckpointRecord, found: BatchRecord, messages: Sequence[Acknowledgement], token: int
    ) -> None:
        """C2: journal the repair of a decided checkpoint's lost parts, then settle the checkpoint.

        If the checkpoint is still not settled, raise, unless later micro-batches of the checkpoint have to run again.
        """
        settlement = self._session.settlement
        settlement.repair(checkpoint, found, messages, token)
        settlement.settle(checkpoint.id, token)
        after = self._journal.ledger
        settled = checkpoint.id in after.checkpoints and after.checkpoints[checkpoint.id].settled
        replayed = after.replay is not None and found.batch < max(checkpoint.batches) and found.batch in after.batches
        if not settled and not (replayed and not any(part.lost for part in after.batches[found.batch].parts)):
            raise RetriableError(
                "LOST_AFTER_DECISION",
                checkpoint=checkpoint.id,
                detail=", and so were the transactions that replaced them",
            )

    def _check_written(self, found: BatchRecord, messages: Sequence[Acknowledgement], token: int) -> None:
        try:
            check_written(found, messages, found.batch, self._view.compare)
        except FencedError:
            self._session.sweep(token)  # the `abort` that follows does nothing, because the journal has the version
            raise

    def abort(self, messages: Sequence[Acknowledgement | None], batch: int) -> None:
        """Abort a micro-batch and end its run. *Called on the driver, in the commit process.*

        Do nothing if the micro-batch is already prepared or decided, or if its run has ended or is not the newest.
        """
        # A1: load the journal. A micro-batch that the journal has is not aborted.
        ledger = self._journal.load()
        tokens = {m.token for m in messages if m is not None}
        newest = ledger.newest_run
        if newest is None or newest.ended or tokens - {newest.token}:
            return
        if not tokens and newest.driver != self._settings.driver:
            return
        token = newest.token
        try:
            # A2: write "aborted". From here on the run has ended.
            self._journal.append(entries.Aborted(run=token, batch=batch), may_abort(token, batch))
        except FencedError as fenced:
            log.info("this process does not abort micro-batch %d: %s", batch, fenced)
            return
        except JournalStoreError as problem:  # if raised, it would hide the first error
            log.warning("micro-batch %d could not be aborted now; the next start aborts it: %s", batch, problem)
            return
        faults.reach("abort.journalled")
        # A3: sweep the transactions of the micro-batch.
        self._session.sweep(token, ended=True)

    def close(self, follows: int, at: int | None = None) -> int:
        """Commit the prepared micro-batches of a stopped query, and leave no transaction open. Return the new run's token.

        *Called when the query has stopped or its driver is dead.* The settings must have a new `driver` id, so that the new
        run fences processes that may still be running for the query. The view must have been read after the query stopped. If
        parts of a decided checkpoint are lost, the next start writes them again. Raise if `follows` is not the newest run.
        `at` is the journal's position before the view was read: raise ``LOCATION_BUSY`` if it has grown since, because the
        query may have run on, and the view does not show that.
        """
        ledger = self._journal.load()
        check_location(ledger, self._view)
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        check_prefix(ledger, self._settings.prefix)
        # E1: claim a run, so that the old driver can no longer decide anything.
        run = self._claimant.claim(follows, at)
        self._planning.settle_all(run.token)
        self._planning.keep_or_void(run.token, True)
        self._session.sweep(run.token)
        faults.reach("recovery.swept")
        covered = self._journal.ledger.undecided()
        if covered:
            # E2: decide the prepared micro-batches, and settle their checkpoint.
            self._decision.decide_prepared(covered, run.token)
        # E3: write "stopped". From here on the run has ended, and has no open transaction.
        self._journal.append(entries.Stopped(run=run.token), may_stop(run.token))
        # E4: sweep.
        self._session.sweep(run.token, ended=True)
        return run.token

    def _token(self, messages: Sequence[Acknowledgement | None], batch: int) -> int:
        """Return the token of the run that the messages belong to; raise if they belong to several runs.

        If there are no messages, return the newest run's token, if that run belongs to this driver.
        """
        tokens = {m.token for m in messages if m is not None}
        if len(tokens) > 1:
            reason = f"the tasks of micro-batch {batch} belong to different runs: {sorted(tokens)}"
            raise ProtocolError("PROTOCOL_VIOLATED", reason=reason)
        if tokens:
            return tokens.pop()
        newest = newest_run(self._journal.ledger)
        if newest.driver != self._settings.driver:
            raise superseded(0, self._journal.ledger)
        return newest.token
