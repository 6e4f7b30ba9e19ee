"""Planning, P4 to P9: recover what earlier runs left, before a task starts."""

from __future__ import annotations

import logging

from transactional import entries, faults, hooks
from transactional.barrier import sources_digest
from transactional.checkpoint import ClosingReason, Mode, TaskPlan
from transactional.coordinator.session import Session
from transactional.digest import ENCODING_VERSION
from transactional.errors import AmbiguousOutcomeError, QueryStoppedError, RewindRequiredError
from transactional.ledger import RunRecord
from transactional.ownership import may_keep, may_record, may_stop, may_void, must_own
from transactional.recovery import check_account, check_schedule, judge_prepared, unrecorded_repartitions
from transactional.recovery.versions import lost_version

__all__ = ["Planning"]

log = logging.getLogger(__name__)

MOST_LOOKED_AT = 1000
"""Prepared parts that every planning asks the store about; a coordinator of a broker describes 200 in 13 ms."""


class Planning:
    """Recovers what earlier runs of a query have left.

    Parameters
    ----------
    session : Session
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._journal = session.journal
        self._sink = session.sink
        self._view = session.view

    def recover(self, run: RunRecord, claimed: bool) -> None:
        """Bring everything up to the current micro-batch into a known state, P4 to P8."""
        topics = [value for key, value in run.identity.items() if key == "topicId" or key.endswith(".topicId")]
        check_schedule(self._view.lines, topics, run.lifetime, self._sink.replacesRows)
        try:
            self.settle_all(run.token)
        except RewindRequiredError as behind:
            if self._view.gaps:
                raise lost_version(behind) from None
            raise
        # P6: what is prepared stays if it is alive, and is void if not.
        self.keep_or_void(run.token, claimed)
        self._record_repartitions(run.token)
        # P7: sweep what no entry that is unsettled names.
        self._session.sweep(run.token)
        faults.reach("recovery.swept")
        self._stop_if_asked(run.token)
        if run.restored is None and self._session.settings.hooks:
            # P8: the hooks get back the states of the newest decision.
            self._restore_hooks(run.token)

    def plan_tasks(self, run: RunRecord) -> TaskPlan:
        """P9: fold the journal, and return the plan for the tasks of the micro-batch."""
        self._journal.fold()
        ledger, view = self._journal.ledger, self._view
        found = ledger.batches.get(view.batch)
        repairs = {part.key: part.expected() for part in found.parts if part.lost} if found else {}
        return TaskPlan(
            token=run.token,
            batch=view.batch,
            mode=Mode.REPAIR if repairs else Mode.DRAIN if view.batch <= ledger.accounted else Mode.WRITE,
            queryId=view.queryId,
            identity=ledger.identity(view.queryId),
            prefix=self._session.settings.prefix,
            sources=view.sources,
            writers=found.writers if found else None,
            repairs=repairs,
            encoding=found.encoding if found else ENCODING_VERSION,
            likely=ledger.likely(),
        )

    def settle_all(self, token: int) -> None:
        """P4 and P5: account for every micro-batch, then settle every decided checkpoint."""
        # P4: every micro-batch before this one is accounted for.
        check_account(self._journal.ledger, self._view)
        for checkpoint in self._journal.ledger.unsettled():
            # P5: what is decided is committed, whatever has died.
            self._session.settlement.settle(checkpoint.id, token)

    def keep_or_void(self, token: int, claimed: bool) -> None:
        """P6: keep a prepared batch if all its handles are alive; else journal that it is void, then abort the others.

        If the handles are very many, a run that goes on inspects only those of batches that the query has not committed; all
        of them are inspected again before the decision.
        """
        records = self._journal.ledger.undecided()
        if not claimed and sum(len(record.parts) for record in records) > MOST_LOOKED_AT:
            records = [record for record in records if record.batch > self._view.committed]
        handles = {r.batch: [part.handles[-1] for part in r.parts if part.handles] for r in records}
        states = iter(self._sink.inspect([handle for record in records for handle in handles[record.batch]]))
        for record in records:
            try:
                if judge_prepared(record, [next(states) for _ in handles[record.batch]], self._view):
                    continue
            except (AmbiguousOutcomeError, RewindRequiredError):
                may_keep(token, record.batch, record.entry)(self._journal.load())  # else it was decided meanwhile
                raise
            void = entries.Void(prepared=record.batch, run=token)
            self._journal.append(void, may_void(token, record.batch, record.entry))

    def _record_repartitions(self, token: int) -> None:
        """Account for the micro-batches that a repartition has added: no sink ran, so there is nothing to commit."""
        for batch in unrecorded_repartitions(self._journal.ledger, self._view):
            ledger = self._journal.ledger
            covered = [record.batch for record in ledger.undecided()]
            newest = ledger.checkpoints[max(ledger.checkpoints)] if ledger.checkpoints else None
            sources, began = sources_digest(self._view.previous or ()), self._session.milliseconds()
            states = dict(newest.hooks) if newest else {}
            reason = ClosingReason.REPARTITION.name
            fact = entries.Prepared(run=token, batch=batch, sources=sources, began=began, reason=reason, hooks=states)
            judge = may_record(token, batch, False, covered, False)
            if covered:  # what is prepared before it is the next decision's, and so is it
                self._journal.append(fact, judge)
            else:
                self._journal.append(fact.decided(covers=[]), judge)

    def _stop_if_asked(self, token: int) -> None:
        """End P7 of a run that was asked to stop; with something prepared, this micro-batch closes its final checkpoint."""
        ledger = self._journal.ledger
        if not ledger.stopping or ledger.undecided() or ledger.unsettled():
            return
        self._journal.append(entries.Stopped(run=token), may_stop(token))
        raise QueryStoppedError("STOP_REQUESTED", run=token, batch=self._view.batch - 1)

    def _restore_hooks(self, token: int) -> None:
        """P8: the states of the newest decision go back to the hooks, once in every run."""
        checkpoints = self._journal.ledger.checkpoints
        newest = max(checkpoints, default=None)
        states = checkpoints[newest].hooks if newest is not None else {}
        for orphan in hooks.restore(self._session.settings.hooks, newest, states):
            log.warning(
                "checkpoint %s holds a state of the hook %s, which checkpointHooks does not name", newest, orphan
            )
        faults.reach("hooks.restored")
        self._journal.append(entries.Restored(run=token, checkpoint=newest), must_own(token))
