"""C3 to C9: journal a micro-batch as prepared, or decide its checkpoint and commit it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transactional import entries, faults, hooks
from transactional.barrier import (
    BarrierKind,
    SourceLine,
    closes_checkpoint,
    cut_of,
    is_between_cuts,
    new_barriers,
    sources_digest,
)
from transactional.capabilities import WritesTopics
from transactional.checkpoint import (
    Acknowledgement,
    AcknowledgeResult,
    CheckpointFailureReason,
    ClosingReason,
    Part,
    PendingCheckpoint,
)
from transactional.clock import Deadline
from transactional.coordinator.session import Session
from transactional.errors import (
    FencedError,
    HookError,
    JournalError,
    JournalStoreError,
    ProtocolError,
    RetriableError,
    StoreError,
)
from transactional.history import Handle
from transactional.ledger import BatchRecord
from transactional.ownership import Judge, may_keep, may_record, newest_run, superseded
from transactional.recovery import QueryView, check_schedule, ends_left
from transactional.recovery.versions import check_topics, other_topics
from transactional.secrets import hiding
from transactional.sink import HandleState, publishes_marks, routes_of

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
"""The pause before a failed decision is tried again, in seconds. It doubles with every attempt, up to 5 s."""


@dataclass(frozen=True)
class _Asked:
    """A micro-batch that all tasks have acknowledged, with the facts that are needed to decide its checkpoint."""

    pending: PendingCheckpoint
    # The prepared, undecided micro-batches. If `recorded` is true, the last one is this micro-batch.
    covered: Sequence[BatchRecord]
    judge: Judge  # Raises if the ledger forbids the micro-batch's `prepared` or `decided` entry.
    recorded: bool  # True if the journal already has the `prepared` entry of the micro-batch: this is a replay.


class Decision:
    """Journals the micro-batches of one coordinator as prepared, or decides and commits their checkpoints."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._journal = session.journal
        self._sink = session.sink
        self._settings = session.settings
        self._settlement = session.settlement
        self._view = session.view
        self._clock = session.clock

    def decide(
        self, messages: Sequence[Acknowledgement], batch: int, token: int, found: BatchRecord | None, origin: str
    ) -> None:
        """Journal the micro-batch as prepared, or decide its checkpoint and commit it.

        `found` is the micro-batch's record if an earlier attempt has already journaled it as prepared, otherwise None.
        For `origin`, see `CheckpointCoordinator.commit`.
        """
        pending = self._acknowledged(messages, batch, token, found)
        began = self._session.milliseconds()
        covered = self._journal.ledger.undecided()
        covers = [record.batch for record in covered]
        judge = may_record(token, batch, found is not None, covers, self._view.gaps)
        asked = _Asked(pending, covered, judge, recorded=found is not None)
        # C5: check that the handles are alive.
        reason = self._look(asked)
        faults.reach("commit.looked")
        barriers = new_barriers(self._view.lines, self._view.previous)
        fact = entries.Prepared(
            run=token,
            batch=batch,
            sources=self._view.sources,
            began=began,
            log=self._view.text if found is None else "",  # otherwise its `prepared` entry has it
            writers=len(messages),
            origin=origin,
            parts=[part.to_json() for part in pending.parts],
            barrier=max((barrier.timestamp for barrier in barriers), default=None),
            reason=reason.name if reason else "",
            left=self._left(batch) if found is None else None,
        )
        if reason is not None:
            checkpoint = self._write(fact, reason, asked)
            if checkpoint is not None:
                pending.finish()
                self._commit_decided(checkpoint, token)
        elif found is None:
            # C7: write "prepared". From here on a replay writes nothing. A later checkpoint decides.
            self._journal.append(fact, judge)
            faults.reach("prepared.written")

    @staticmethod
    def _acknowledged(
        messages: Sequence[Acknowledgement], batch: int, token: int, found: BatchRecord | None
    ) -> PendingCheckpoint:
        """C3, C4: check that the journal has not changed since the tasks were planned, and that each task acknowledged once."""
        drained = {message.drained for message in messages}
        if len(drained) > 1:
            raise ProtocolError(
                "PROTOCOL_VIOLATED",
                reason=f"only some tasks of micro-batch {batch} report that they discarded their rows",
            )
        if drained == {found is None}:
            change = f"micro-batch {batch} was {'prepared' if found else 'voided'} after its tasks were planned"
            raise FencedError("CONCURRENT_COMMIT", reason=change, batch=batch)
        pending = PendingCheckpoint(token, batch)
        for message in messages:
            if pending.acknowledge(message) is not AcknowledgeResult.SUCCESS:
                twice = f"micro-batch {batch} was acknowledged twice for partition {message.partition}"
                raise ProtocolError("PROTOCOL_VIOLATED", reason=twice)
        return pending

    def _write(self, fact: entries.Prepared, reason: ClosingReason, asked: _Asked) -> int | None:
        """C6, C7: journal the decision, or decline the checkpoint. Return the checkpoint's id, or None if it was declined.

        After a decline, the micro-batch waits for the next checkpoint. If the journal's store creates the entry of a failed try
        later, this entry is the decision, even while the checkpoint is being declined.
        """
        nonce = self._journal.nonce()
        try:
            try:
                return self._try(fact, asked, nonce)
            except (HookError, JournalStoreError) as problem:
                self._decline(problem, reason, fact, asked)
                return None
        except FencedError:  # perhaps because the entry of a failed try has been created after all
            late = self._journal.late(nonce)
            if late is None or late.number not in self._journal.ledger.checkpoints:  # or a newer run voided it
                raise
            return late.number

    def _try(self, fact: entries.Prepared, asked: _Asked, nonce: str) -> int:
        """C6, C7: trigger the hooks and journal the decision; retry for up to ``commitTimeoutMs``. Return the checkpoint's id.

        After ``commitTimeoutMs``, raise the error of the last try.
        """
        covers = [record.batch for record in asked.covered]
        context = hooks.HookContext(
            self._view.queryId, [*covers, *([] if asked.recorded else [fact.batch])], fact.began
        )
        deadline = Deadline(self._settings.commit_seconds, self._clock)
        pause, tried = RETRY_SECONDS, False
        while True:
            try:
                if tried:
                    self._look(asked)
                with hiding(self._settings.secrets):
                    # C6: ask the hooks for the states that belong to the checkpoint.
                    states = hooks.trigger(self._settings.hooks, context)
                faults.reach("hooks.triggered")
                # C7: write "decided". From here on the checkpoint is committed, even if every process dies.
                decided = fact.decided(covers=covers, hooks=states, **self._barriers(self._view.lines))
                return self._journal.append(decided, asked.judge, nonce).number
            except (HookError, JournalStoreError) as problem:
                if deadline.passed():
                    raise
                log.warning(
                    "micro-batch %d: the checkpoint could not be decided (%s); trying again", fact.batch, problem
                )
            self._clock.sleep(min(pause, deadline.left()))
            pause, tried = min(2 * pause, 5.0), True

    def decide_prepared(self, covered: Sequence[BatchRecord], token: int) -> None:
        """E2: decide and commit a checkpoint of all prepared micro-batches, without a new micro-batch."""
        last = covered[-1]
        handles = [(record.batch, part.handles[-1]) for record in covered for part in record.parts if part.handles]
        passed = [number for number, _ in handles if number <= self._view.committed]
        covers = [record.batch for record in covered]
        judge = may_record(token, last.batch, True, covers, self._view.gaps)
        # C5: check that the handles are alive.
        self._settlement.look(last.batch, [handle for _, handle in handles], judge, passed)
        began = self._session.milliseconds()
        # C6: ask the hooks for the states that belong to the checkpoint.
        states = hooks.trigger(self._settings.hooks, hooks.HookContext(self._view.queryId, covers, began))
        reason, writers = ClosingReason.STOP.name, last.writers
        fact = entries.Decided(
            run=token,
            batch=last.batch,
            sources=last.sources,
            began=began,
            writers=writers,
            reason=reason,
            hooks=states,
            covers=covers,
            **self._barriers(self._view.lines if last.batch >= self._view.batch else self._view.previous or ()),
        )
        # C7: write "decided". From here on the checkpoint is committed, even if every process dies.
        entry = self._journal.append(fact, judge)
        # C8, C9: commit, and write "settled".
        self._commit_decided(entry.number, token)

    def _barriers(self, lines: Sequence[SourceLine]) -> dict[str, Any]:
        """Return two optional fields of the decision.

        They are ``cut``, if the query follows other queries, and ``marked``, if its sink publishes marks.
        """
        cut = cut_of(lines)
        found = {} if cut is None else {"cut": cut}
        return {**found, "marked": True} if publishes_marks(self._sink) else found

    def _left(self, batch: int) -> dict[str, Any] | None:
        """Return the offsets at which the query's removed sources stopped; None if there is nothing to record.

        For the form of the offsets, see `transactional.recovery.evolution.Left`.
        """
        left = self._journal.ledger.left_after(batch - 1)
        return ends_left(self._view.lines, self._view.previous, left) or None

    def _commit_decided(self, identifier: int, token: int) -> None:
        faults.reach("decision.written")
        checkpoint = self._journal.ledger.checkpoints[identifier]
        if checkpoint.settled:
            return
        open_parts = [part for part in self._journal.ledger.parts_of(checkpoint) if part.open]
        # C8: commit the handles.
        if not self._settlement.commit(checkpoint, open_parts, recovering=False):
            ledger = self._journal.load()
            if newest_run(ledger).token != token:  # the newer run commits or repairs these parts
                raise superseded(token, ledger)
            raise RetriableError("LOST_AFTER_DECISION", checkpoint=checkpoint.id, detail="")
        # C9: when every row can be read, write "settled".
        self._settlement.finish(checkpoint, token)
        faults.reach("settled.written")

    def _look(self, asked: _Asked) -> ClosingReason | None:
        """C5: check that the handles are alive. Return the reason why the micro-batch closes a checkpoint, or None.

        If there is no reason, inspect only the micro-batch's own handles and those of the oldest prepared micro-batch. If one
        of these handles has at most half of its lifetime left, close a checkpoint after all (`ClosingReason.AGE`), and inspect
        the handles of all prepared micro-batches.
        """
        batch, covered = asked.pending.batch, asked.covered
        reason = self._closing_reason(len({*(record.batch for record in covered), batch}))
        self._check_targets(asked.pending.parts)
        earlier = [(r.batch, part.handles[-1]) for r in covered for part in r.parts if part.handles]
        own = [part.handle for part in asked.pending.parts if part.handle is not None]
        if reason is not None:
            self._look_at(batch, earlier, own, asked.judge)
            return reason
        oldest = [(number, handle) for number, handle in earlier if number == earlier[0][0]]
        states = self._look_at(batch, oldest, own, asked.judge)
        lifetime = newest_run(self._journal.ledger).lifetime
        left = min((state.seconds_left for state in states if state.seconds_left is not None), default=None)
        if lifetime is None or left is None or left > lifetime / 2:
            return None
        self._look_at(batch, earlier, own, asked.judge)
        return ClosingReason.AGE

    def _look_at(
        self, batch: int, earlier: Sequence[tuple[int, Handle]], own: Sequence[Handle], judge: Judge
    ) -> list[HandleState]:
        passed = [number for number, _ in earlier if number <= self._view.committed]
        return self._settlement.look(batch, [*(handle for _, handle in earlier), *own], judge, passed)

    def _closing_reason(self, batches: int) -> ClosingReason | None:
        """Return the reason why the query's logs or the journal require a checkpoint after this micro-batch, or None.

        `batches` is the number of micro-batches that the checkpoint would have.
        """
        view = self._view
        if view.gaps:
            return ClosingReason.WRITE
        if self._journal.ledger.stopping:
            return ClosingReason.STOP
        barriers, between = new_barriers(view.lines, view.previous), is_between_cuts(view.lines)
        if not between and any(barrier.kind is BarrierKind.FINAL for barrier in barriers):
            return ClosingReason.FINAL
        if barriers and not between:
            return ClosingReason.BARRIER
        if closes_checkpoint(view.lines, view.previous):
            return _reason_of_sources(view)
        if view.oldest and view.batch - batches <= view.oldest + 1:
            return ClosingReason.RETAINED
        if between:
            return None
        if batches >= self._settings.max_batches:
            return ClosingReason.ENOUGH
        return ClosingReason.REQUEST if self._journal.ledger.request is not None else None

    def _check_targets(self, parts: Sequence[Part]) -> None:
        targets: set[str] = set()
        for route in routes_of(self._sink):
            handles = [part.handle for part in parts if part.handle is not None and part.route == route]
            own = self._sink.targets(handles) if isinstance(self._sink, WritesTopics) else ()
            targets.update(own)
            ledger = self._journal.ledger
            if self._view.gaps:
                check_topics(ledger, own, route)
            elif known := ledger.known_at_store(routes_of(self._sink)).get(route):
                changes = other_topics(ledger, own, route)
                if changes:
                    store = f"{self._sink.name()} {route}".strip()
                    raise StoreError("STORE_REPLACED", store=store, known=known, changes=changes)
        if targets:
            view = self._view
            check_schedule(view.lines, targets, None, query=view.queryId, previous=view.previous)

    def _decline(
        self, problem: HookError | JournalError, reason: ClosingReason, fact: entries.Prepared, asked: _Asked
    ) -> None:
        """C7: decline a checkpoint that can't be decided, so that its micro-batch waits for the next checkpoint.

        Raise `problem` instead if too many checkpoints in a row were declined, or if a later checkpoint may never come.
        """
        declined = len(self._journal.ledger.declined) + 1
        if declined > self._settings.tolerable or reason in (
            ClosingReason.FINAL,
            ClosingReason.FIRST,
            ClosingReason.STOP,
            ClosingReason.OTHER_SOURCE,
            ClosingReason.WRITE,
        ):
            raise problem
        if not asked.recorded:
            self._journal.append(fact, asked.judge)
            faults.reach("declined.prepared")
        failure = (
            CheckpointFailureReason.HOOK_FAILED
            if isinstance(problem, HookError)
            else CheckpointFailureReason.JOURNAL_REFUSED
        )
        found = entries.Declined(run=fact.run, batch=fact.batch, reason=failure.name, detail=str(problem)[:500])
        self._journal.append(found, may_keep(fact.run, fact.batch, self._journal.ledger.batches[fact.batch].entry))
        log.warning(
            "micro-batch %d waits for the next checkpoint, because its own checkpoint was declined (%d in a row): %s",
            fact.batch,
            declined,
            problem,
        )


def _reason_of_sources(view: QueryView) -> ClosingReason:
    if view.batch == 0 and all(line.offset is not None for line in view.lines):
        return ClosingReason.FIRST
    same = view.previous is not None and view.sources == sources_digest(view.previous)
    return ClosingReason.NO_DATA if same else ClosingReason.OTHER_SOURCE
