"""Settlement: finish each checkpoint that was decided, until it is settled, or is void and written again.

`Settlement` does the steps P5, C2, C5, C8 and C9 of `transactional.coordinator`, without threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from transactional import entries, faults
from transactional.capabilities import KeepsEvidence, MarksCheckpoints, ReportsOutput, Routes, ShowsLater
from transactional.checkpoint import Acknowledgement, CheckpointMark, DecidedCheckpoint, Part
from transactional.errors import (
    AmbiguousOutcomeError,
    RetriableError,
    RewindRequiredError,
    TransactionLostError,
)
from transactional.history import must_hold, must_know
from transactional.journal import Journal
from transactional.ledger import BatchRecord, CheckpointRecord, PartRecord
from transactional.ownership import Judge, may_finish, may_settle, may_void_checkpoint
from transactional.recovery import (
    Judgement,
    check_rows,
    committed_behind,
    gaps,
    judge_checkpoint,
    mismatch,
    out_of_order,
)
from transactional.sink import HandleState, Outcome, TwoPhaseCommitSink, commit_calls, routes_of

log = logging.getLogger(__name__)

ROUNDS = 4
"""The maximum number of times that the store is asked. It is asked again only if its previous answer is outdated."""


class Settlement:
    """Settles decided checkpoints of one query in one process."""

    def __init__(
        self, journal: Journal, sink: TwoPhaseCommitSink[Any, Any], queryId: str, prefix: str, batch: int
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._query_id = queryId
        # See `TransactionContext`.
        self._prefix = prefix
        # The micro-batch that Spark runs now or next. -1 in a rewind, which can run any micro-batch again.
        self._batch = batch

    def settle(self, identifier: int, token: int) -> None:
        """P5: commit the handles of a decided checkpoint, and journal the result: `settled`, `verdict` or `void`.

        If a replay has to repair lost parts, the checkpoint stays unsettled. Each lost handle is aborted before the verdict is
        journaled. Otherwise a frozen process could commit the transaction after its rows are written again, because the store
        may still have it open. If an abort finds that the transaction is committed after all, the store is asked again.

        Readers must see the rows of each key in order. So all later micro-batches of the same route are aborted as well, and
        written again after the lost part.

        Raises
        ------
        RetriableError
            ``LOST_AFTER_DECISION``: in every attempt, the store's answer was outdated.
        AmbiguousOutcomeError
            ``OUTCOME_UNKNOWN``: an operator has to decide.
        RewindRequiredError
            ``PREPARED_LOST``: rows have to be written again, but Spark has moved past their micro-batch.
        """
        for _ in range(ROUNDS):
            if self._settle_once(identifier, token):
                return
        raise RetriableError(
            "LOST_AFTER_DECISION",
            checkpoint=identifier,
            detail=f" in each of {ROUNDS} attempts to settle the checkpoint",
        )

    def _settle_once(self, identifier: int, token: int) -> bool:
        """Ask the store once for the states of the checkpoint's open transactions, and act on the answer.

        Return False if the answer was outdated. The caller then asks again.
        """
        judge = may_settle(token, identifier)
        ledger = self._journal.ledger
        judge(ledger)
        checkpoint = ledger.checkpoints[identifier]
        open_parts = [part for part in ledger.parts_of(checkpoint) if part.open]
        states = list(zip(open_parts, self._sink.inspect([p.handles[-1] for p in open_parts]), strict=True))
        try:
            judgement = judge_checkpoint(ledger, checkpoint, states, self._batch)
        except (AmbiguousOutcomeError, RewindRequiredError):
            judge(self._journal.load())  # raises another error if the checkpoint was settled in the meantime
            raise
        faults.reach("recovery.settling")
        living = [part for part, state in states if state.outcome is Outcome.PREPARED]
        if judgement is Judgement.COMMIT:
            if not self.commit(checkpoint, living, recovering=True):
                return False
            self._note(checkpoint)
            self.finish(checkpoint, token)
            return True
        first = gaps(ledger, checkpoint, states)
        # Abort everything, or only what follows a lost micro-batch of the same route.
        void = judgement is Judgement.VOID
        kept = [] if void else [part for part in living if part.batch <= first.get(part.route, part.batch)]
        verdicts = self._give_up(states, kept)
        if verdicts is None:
            return False
        if void:
            unchanged = may_void_checkpoint(token, identifier, ledger.parts_of(checkpoint))
            self._journal.append(entries.Void(checkpoint=identifier, run=token, evidence=verdicts), unchanged)
            log.warning("checkpoint %d is void: its transactions were lost, so its rows are written again", identifier)
            return True
        if verdicts:
            after = committed_behind(ledger, checkpoint, states)
            if after:
                log.warning("checkpoint %d: %s", identifier, out_of_order(min(first.values()), after))
            self._record(identifier, token, verdicts, after)
            faults.reach("repair.verdict")
        if not self.commit(checkpoint, kept, recovering=True):
            return False
        # The lost parts wait for their replay. By then, the store may have forgotten the commits that were made just now.
        now = HandleState(Outcome.COMMITTED, evidence="committed by this run")
        if kept:
            self._record(identifier, token, [_verdict(part, now) for part in kept])
        return True

    def _give_up(
        self, states: Sequence[tuple[PartRecord, HandleState]], kept: Sequence[PartRecord]
    ) -> list[dict[str, Any]] | None:
        """Abort all lost transactions, and the prepared ones that are not in `kept`.

        Return a verdict on each part that is not in `kept`. A successful abort proves that the transaction was not committed.
        Return None if an abort finds that a transaction was committed. The caller then has to check all states again.
        """
        keep = {id(part) for part in kept}
        judged = [(part, state) for part, state in states if id(part) not in keep]
        for outcome in (Outcome.LOST, Outcome.PREPARED):
            handles = [part.handles[-1] for part, state in judged if state.outcome is outcome]
            if handles and self._sink.abort(handles):
                return None
        return [_verdict(part, state) for part, state in judged]

    def _record(
        self, identifier: int, token: int, verdicts: Sequence[dict[str, Any]], after: Sequence[int] = ()
    ) -> None:
        found = entries.Verdict(checkpoint=identifier, run=token, parts=verdicts, out_of_order=after or None)
        self._journal.append(found, may_settle(token, identifier, verdicts, "open"))

    def commit(self, checkpoint: CheckpointRecord, parts: Sequence[PartRecord], recovering: bool) -> bool:
        """C8: commit the handles of these parts. Return False if some parts are lost (the caller then checks all parts).

        The micro-batches are committed one after the other: the handles of the next one are sent when all handles of the
        previous one are committed. Within a micro-batch, tasks have different keys, so the order does not matter. If
        `recovering` is true, first compare the store with the journal; otherwise C5 has just done that.
        """
        decided = self._decided(checkpoint)
        if parts and recovering:
            self.must_hold()
        try:
            for handles, call in commit_calls(self._sink, [(part.batch, part.handles[-1]) for part in parts], decided):
                self._sink.commit(handles, call)
        except TransactionLostError as lost:
            log.warning(
                "checkpoint %d: %d transactions were lost and can't be committed", checkpoint.id, len(lost.handles)
            )
            return False
        faults.reach("commit.done")
        return True

    def _note(self, checkpoint: CheckpointRecord) -> None:
        """If the store has a checkpoint's rows but not its id, call the sink's `commit` again, so that it stores the id.

        The id is missing if a process died after the rows were stored, but before the id was stored. All handles are
        already committed, so the call changes nothing else.
        """
        query, decided = self._journal.ledger.identity(self._query_id), self._decided(checkpoint)
        parts = [part for part in self._journal.ledger.parts_of(checkpoint) if part.handles and not part.accepted]
        for route in sorted({part.route for part in parts}):
            held = self._sink.newestCheckpoint(query, route)
            if held is not None and held < checkpoint.id:
                self._sink.commit([part.handles[-1] for part in parts if part.route == route], decided)

    def must_hold(self) -> None:
        """Check that the store has all checkpoints that the journal has settled there, and none that the journal does not know.

        Call this before each commit, because after the commit a missing checkpoint can no longer be detected.

        Raises
        ------
        PutBackError
            ``LOCATION_PUT_BACK``: the store has a checkpoint that the journal does not know.
        StoreError
            ``STORE_WENT_BACK``: the store lacks a checkpoint that the journal has settled.
        """
        ledger = self._journal.ledger
        query = ledger.identity(self._query_id)
        for route, newest in ledger.known_at_store(routes_of(self._sink)).items():
            held = self._sink.newestCheckpoint(query, route)
            store = f"{self._sink.name()} {route}".strip()
            # If this driver was paused, its successor may have decided the checkpoint. So load the journal before raising.
            if held is not None and held > ledger.known:
                must_know(store, held, self._journal.load().known)
            if held is not None:
                must_hold(store, held, newest)

    def finish(self, checkpoint: CheckpointRecord, token: int) -> None:
        """C9: wait until all rows of a committed checkpoint are visible, publish its mark, and journal `settled`.

        Before the mark is published, the open transactions of failed task attempts are aborted, because such a transaction
        could hide rows of the checkpoint. The end offsets in the mark are after all rows of the checkpoint.
        """
        ledger = self._journal.ledger
        parts = [part for part in ledger.parts_of(checkpoint) if part.handles]
        judge = may_finish(token, checkpoint.id, parts)
        judge(ledger)
        decided = self._decided(checkpoint)
        committed = [part.handles[-1] for part in parts if not part.accepted]
        repaired: Sequence[Mapping[str, Any]] = ()
        if committed and isinstance(self._sink, ShowsLater):
            repaired = [dict(each) for each in self._sink.ensureVisible(committed, decided)]
        if checkpoint.marked and isinstance(self._sink, MarksCheckpoints) and self._sink.publishesMarks:
            # An open transaction of a retried task's first attempt would hide rows of the checkpoint, so sweep it first.
            self._sink.sweep(ledger.known_handles(), ledger.cutoff(self._query_id, token))
            self._sink.publishMark(self._mark(checkpoint), committed, lambda: judge(self._journal.load()))
        faults.reach("mark.published")
        output: Mapping[str, Any] = {}
        if isinstance(self._sink, ReportsOutput):
            output = dict(self._sink.output([part.handles[-1] for part in parts], decided))
        stamps = self._stamps(parts)
        if repaired:
            log.warning(
                "checkpoint %d is committed, but readers could see its rows only after a repair: %s",
                checkpoint.id,
                repaired,
            )
        fact = entries.Settled(checkpoint=checkpoint.id, run=token, output=output, repaired=repaired or (), **stamps)
        self._journal.append(fact, judge)
        settled = self._journal.ledger.checkpoints.get(checkpoint.id, checkpoint)
        log.info(
            "checkpoint %d: %d rows up to micro-batch %d are visible, %d ms after its decision",
            *(settled.id, settled.rows, max(settled.batches), (settled.settled_at or settled.time) - settled.time),
        )

    def _stamps(self, parts: Sequence[PartRecord]) -> dict[str, Any]:
        sink, stamps = self._sink, dict[str, int]()
        if isinstance(sink, KeepsEvidence):
            for route in sorted({part.route for part in parts}):
                own = [handle for part in parts if part.route == route for handle in part.handles]
                stamps[route] = sink.stamp(own)
        return {"stamps": stamps} if isinstance(sink, Routes) else {"stamp": stamps.get("", 0)}

    def _mark(self, checkpoint: CheckpointRecord) -> CheckpointMark:
        ledger = self._journal.ledger
        query, run = ledger.identity(self._query_id), ledger.newest_run
        marked = (each.id for each in ledger.checkpoints.values() if each.settled and each.marked)
        after = max((number for number in marked if number < checkpoint.id), default=0)
        # Without a cut, the query follows no other query, so its own barrier is the only one.
        cut = checkpoint.cut or {"lineage": {}, "exact": True}
        return CheckpointMark(
            query=query,
            checkpoint=checkpoint.id,
            after=after,
            lineage={**cut["lineage"], query: checkpoint.id},
            exact=cut["exact"],
            rows=checkpoint.rows,
            timestamp=checkpoint.time,
            restarted=run is not None and ledger.newest_at(run) > after,
        )

    def _decided(self, checkpoint: CheckpointRecord) -> DecidedCheckpoint:
        ledger = self._journal.ledger
        identity, run = ledger.identity(self._query_id), ledger.newest_run
        after = {
            route: ledger.newest_at(run, route) if run is not None else 0 for route in {"", *routes_of(self._sink)}
        }
        batches = tuple(checkpoint.batches)
        return DecidedCheckpoint(checkpoint.id, batches, checkpoint.time, identity, self._prefix, after.pop(""), after)

    def look(
        self, batch: int, handles: Sequence[Mapping[str, Any]], judge: Judge, behind: Sequence[int] = ()
    ) -> list[HandleState]:
        """C5: check that the store matches the journal, and that every handle is prepared and not about to expire.

        `behind` lists the micro-batches that Spark has committed: the first ``len(behind)`` handles belong to them, in the
        same order. Before this method raises one of these errors, it loads the journal and calls `judge` with the ledger.

        Raises
        ------
        RewindRequiredError
            ``PREPARED_LOST``: a handle of a micro-batch in `behind` is not prepared, or has too little time left.
        RetriableError
            ``HANDLE_NOT_ALIVE``: another handle is not prepared, or has too little time left.
        """
        if handles:
            self.must_hold()
        states = list(self._sink.inspect(list(handles))) if handles else []
        for position, (handle, state) in enumerate(zip(handles, states, strict=True)):
            if state.ready:
                continue
            judge(self._journal.load())
            text = json.dumps(handle, sort_keys=True, default=str)
            if position < len(behind):
                earlier = behind[position]
                reason = (
                    f"no checkpoint was decided at micro-batch {batch}. In micro-batch {earlier}, {why_not(state)}. "
                    "No row of these micro-batches was committed"
                )
                raise RewindRequiredError("PREPARED_LOST", batches=[earlier], reason=reason, handle=text)
            raise RetriableError(
                "HANDLE_NOT_ALIVE",
                batch=batch,
                reason=why_not(state),
                handle=text,
                seconds_left=state.seconds_left,
                margin=state.margin,
            )
        return states

    def repair(
        self, checkpoint: CheckpointRecord, record: BatchRecord, messages: Sequence[Acknowledgement], token: int
    ) -> None:
        """C2: if a replay has written lost parts again, journal their new handles before the first of them is committed."""
        self._check_drained(checkpoint, record, messages)
        lost = [part for part in record.parts if part.lost]
        if not lost:
            return
        if len(messages) != record.writers and not all(part.free for part in lost):
            raise mismatch(record.batch, "writer tasks", record.writers, len(messages))
        written = {part.key: part for m in messages if not m.drained for part in m.parts}
        handles = [_repaired(record.batch, part, written.get(part.key)) for part in lost]
        replaced = [{**part.named, "handle": len(part.handles) - 1} for part in lost]
        judge = may_settle(token, checkpoint.id, replaced, "lost")
        self.look(record.batch, [handle for handle in handles if handle is not None], judge)
        parts = [
            {**part.named, "replaces": len(part.handles) - 1, "handle": handle}
            for part, handle in zip(lost, handles, strict=True)
        ]
        self._journal.append(entries.Repair(checkpoint=checkpoint.id, run=token, parts=parts), judge)
        faults.reach("repair.handles")

    def _check_drained(
        self, checkpoint: CheckpointRecord, record: BatchRecord, messages: Sequence[Acknowledgement]
    ) -> None:
        """Check that the rows that a replay discards are the rows that were committed. Otherwise new rows would be lost.

        If an operator has accepted a difference in any part, nothing is checked in the whole checkpoint. A replay with fewer
        rows than were committed is no error, because the source may have deleted old rows (retention).
        """
        parts = {part.key: part for part in record.parts}
        free = any(part.free for part in self._journal.ledger.parts_of(checkpoint))
        if free or len(messages) != record.writers:  # with a different number of tasks, each task has other rows
            return
        for read in (each for message in messages for each in message.parts):
            part = parts.get(read.key)
            if part is None or part.lost or not read.digest or read.rows < part.rows:
                continue
            check_rows(record.batch, f"the committed {part}", part, read)


def _repaired(batch: int, part: PartRecord, written: Part | None) -> Mapping[str, Any] | None:
    """Check that a replay has written the same rows as a lost part. Return the new handle, which replaces the lost one."""
    if written is None or (written.handle is None and not part.free):
        raise mismatch(batch, f"rows of {part}", part.rows, 0)
    if not part.free:
        check_rows(batch, str(part), part, written)
    return written.handle


def _verdict(part: PartRecord, state: HandleState) -> dict[str, Any]:
    alive = state.outcome is Outcome.PREPARED  # it was prepared until this process aborted it
    return {
        **part.named,
        "handle": len(part.handles) - 1,
        "verdict": Outcome.LOST.value if alive else state.outcome.value,
        "evidence": "aborted, because a part of this or an earlier micro-batch was lost" if alive else state.evidence,
    }


def why_not(state: HandleState) -> str:
    """Return why no checkpoint with this transaction may be decided, as text for an error message."""
    evidence = f" ({state.evidence})" if state.evidence else ""
    if state.outcome is not Outcome.PREPARED:
        return (
            f"the state of a prepared transaction is now {state.outcome.value}. Its timeout may be too short for the slowest "
            f"task, or another program or a late request from an earlier attempt may have ended it{evidence}"
        )
    left = state.seconds_left or 0.0
    clocks = " (this machine's clock is ahead of the store's)" if left < 0 else ""
    return (
        f"a prepared transaction has {left:.0f} s left{clocks}, but {state.margin:.0f} s must remain: raise its "
        f"timeout{evidence}"
    )
