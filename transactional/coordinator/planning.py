"""Planning, P4 to P9: settle or abort the transactions of earlier runs before a task starts."""

from __future__ import annotations

import logging

from transactional import entries, faults, hooks
from transactional.barrier import sources_digest
from transactional.checkpoint import ClosingReason, Mode, TaskPlan
from transactional.coordinator.session import Session
from transactional.errors import AmbiguousOutcomeError, QueryStoppedError, RewindRequiredError
from transactional.ledger import RunRecord
from transactional.ownership import may_keep, may_record, may_restore, may_stop, may_void
from transactional.recovery import check_account, check_schedule, judge_prepared, unrecorded_repartitions
from transactional.recovery.versions import lost_version

log = logging.getLogger(__name__)

MOST_LOOKED_AT = 1000
"""If there are at most this many prepared parts, every planning inspects them all. Kafka needs 13 ms for 200 parts."""


class Planning:
    """Settles, keeps or aborts the transactions of earlier runs, then plans the tasks of the micro-batch."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._journal = session.journal
        self._sink = session.sink
        self._view = session.view

    def recover(self, run: RunRecord, claimed: bool) -> None:
        """P4 to P8: settle decided checkpoints, keep or void prepared micro-batches, abort the rest, and restore the hooks.

        `claimed` is true if the run is new.
        """
        topics = [value for key, value in run.identity.items() if key == "topicId" or key.endswith(".topicId")]
        view, replaces = self._view, self._sink.replacesRows
        check_schedule(view.lines, topics, run.lifetime, replaces, query=view.queryId, previous=view.previous)
        try:
            self.settle_all(run.token)
        except RewindRequiredError as behind:
            if self._view.gaps:
                raise lost_version(behind) from None
            raise
        # P6: keep the prepared micro-batches whose transactions are alive, and void the others.
        self.keep_or_void(run.token, claimed)
        self._record_repartitions(run.token)
        # P7: sweep the transactions that no unsettled entry names.
        self._session.sweep(run.token)
        faults.reach("recovery.swept")
        self._stop_if_asked(run.token)
        if run.restored is None and self._session.settings.hooks:
            # P8: give the hooks the states of the newest decided checkpoint.
            self._restore_hooks(run.token)

    def plan_tasks(self, run: RunRecord) -> TaskPlan:
        """P9: summarize old journal entries in a snapshot if needed, and return the plan for the tasks of the micro-batch."""
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
            likely=ledger.likely(),
        )

    def settle_all(self, token: int) -> None:
        """P4 and P5: check that the journal has every earlier micro-batch, then settle every decided checkpoint."""
        # P4: check that every micro-batch before this one is accounted for.
        check_account(self._journal.ledger, self._view)
        for checkpoint in self._journal.ledger.unsettled():
            # P5: commit every decided checkpoint, even if the process that decided it died.
            self._session.settlement.settle(checkpoint.id, token)

    def keep_or_void(self, token: int, claimed: bool) -> None:
        """P6: keep a prepared micro-batch if all its transactions are alive; otherwise journal `void`, so that P7 aborts them.

        If there are more than `MOST_LOOKED_AT` parts and the run is not new, inspect only the handles of micro-batches that
        Spark has not committed. All handles are inspected again before the decision.
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
                may_keep(token, record.batch, record.entry)(self._journal.load())  # raises if it has since been decided
                raise
            void = entries.Void(prepared=record.batch, run=token)
            self._journal.append(void, may_void(token, record.batch, record.entry))

    def _record_repartitions(self, token: int) -> None:
        """Journal the micro-batches that a repartition of Spark's state added. No sink wrote them, so they need no commit."""
        for batch in unrecorded_repartitions(self._journal.ledger, self._view):
            ledger = self._journal.ledger
            covered = [record.batch for record in ledger.undecided()]
            newest = ledger.checkpoints[max(ledger.checkpoints)] if ledger.checkpoints else None
            sources, began = sources_digest(self._view.previous or ()), self._session.milliseconds()
            fact = entries.Prepared(
                run=token,
                batch=batch,
                sources=sources,
                began=began,
                reason=ClosingReason.REPARTITION.name,
                hooks=dict(newest.hooks) if newest else {},
                left=dict(ledger.left_after(batch - 1)) or None,
            )
            judge = may_record(token, batch, False, covered, False)
            if covered:  # the next decision covers this micro-batch, and those before it
                self._journal.append(fact, judge)
            else:
                self._journal.append(fact.decided(covers=[]), judge)

    def _stop_if_asked(self, token: int) -> None:
        """P7: if a stop was requested and nothing is open, journal `stopped` and raise `QueryStoppedError`.

        If something is open, do nothing: this micro-batch then closes the final checkpoint.
        """
        ledger = self._journal.ledger
        if not ledger.stopping or ledger.undecided() or ledger.unsettled():
            return
        self._journal.append(entries.Stopped(run=token), may_stop(token))
        raise QueryStoppedError("STOP_REQUESTED", run=token, batch=self._view.batch - 1)

    def _restore_hooks(self, token: int) -> None:
        """P8: give each hook the state that it saved with the newest decided checkpoint, once per run."""
        checkpoints = self._journal.ledger.checkpoints
        newest = max(checkpoints, default=None)
        states = checkpoints[newest].hooks if newest is not None else {}
        judge = may_restore(token, newest)
        judge(self._journal.load())  # an outdated process must not reset the external systems
        for orphan in hooks.restore(self._session.settings.hooks, newest, states):
            log.warning(
                "checkpoint %s holds the state of the hook %s, but checkpointHooks does not name this hook: later checkpoints "
                "will not contain its state",
                newest,
                orphan,
            )
        faults.reach("hooks.restored")
        self._journal.append(entries.Restored(run=token, checkpoint=newest), judge)
