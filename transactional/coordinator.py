"""The checkpoint coordinator: what happened goes in, the journal decides, sinks are told.

A plain object without threads, built anew in every process that needs it. The durable steps, in order:

planning   P1 read Spark's logs (the caller)   P2 load the journal   P3 take or claim the run, guard the prefix
           P4 account for every batch          P5 settle decisions   P6 keep or void prepared batches
           P7 sweep lingering transactions     P8 fold, hand out the mode
commit     C1 load, the run must be ours       C2 decided already: repair, settle, return
           C3 prepared already: all drained    C4 all written by this run     C5 the look at every handle
           C6 `decided` (or `prepared`)        C7 commit the handles          C8 `settled`      C9 sweep
abort      A1 load, the run must be ours, N neither decided nor prepared      A2 `aborted`
           A3 abort the messages' handles      A4 sweep
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transactional import faults
from transactional.barrier import closes_checkpoint
from transactional.checkpoint import (
    Acknowledgement,
    AcknowledgeResult,
    CompletedCheckpoint,
    Mode,
    PendingCheckpoint,
    TaskPlan,
)
from transactional.errors import (
    FencedError,
    LocationError,
    ProtocolError,
    ReplayMismatchError,
    RetriableError,
    TransactionLostError,
)
from transactional.journal import Journal
from transactional.ledger import BatchRecord, CheckpointRecord, Ledger, PartRecord, RunRecord
from transactional.metadata import EntryKind
from transactional.recovery import (
    WAY_OUT_RESOLVE,
    Claim,
    Judgement,
    SparkView,
    check_account,
    check_place,
    judge_checkpoint,
    judge_prepared,
    whose_run,
)
from transactional.sink import Outcome, TwoPhaseCommitSink

__all__ = ["CheckpointCoordinator", "RunSettings"]

log = logging.getLogger(__name__)

SETTLE_ROUNDS = 4  # inspect-and-commit rounds; each further one needs a transaction lost between look and commit

Handle = dict[str, Any]


@dataclass(frozen=True)
class RunSettings:
    """What makes two plannings of one driver the same run.

    Parameters
    ----------
    driver : str
        Equal in all processes of one driver, different between drivers.
    sink : str
        The format's name.
    digest : str
        Of the user's options and schema.
    prefix : str
    """

    driver: str
    sink: str
    digest: str
    prefix: str


class CheckpointCoordinator:
    """Drives one sink through the protocol on one journal.

    Parameters
    ----------
    journal : Journal
    sink : TwoPhaseCommitSink
    settings : RunSettings
    view : SparkView
        Spark's logs as they are now.
    wants : Callable[[Ledger], bool], optional
        The coordinator's own reasons to close a checkpoint at this micro-batch.
    """

    def __init__(
        self,
        journal: Journal,
        sink: TwoPhaseCommitSink[Any, Any],
        settings: RunSettings,
        view: SparkView,
        wants: Callable[[Ledger], bool] = lambda ledger: False,
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._settings = settings
        self._view = view
        self._wants = wants

    # -- planning ---------------------------------------------------------------------------------------------------

    def plan(self) -> TaskPlan:
        """Recover what earlier runs left and say what the tasks of the micro-batch do.

        *Called on the driver, once per planning, in the planning process only.*

        Raises
        ------
        LocationError, FencedError, AmbiguousOutcomeError, RewindRequiredError, StoreError
            Before any task starts.
        """
        ledger = self._journal.load()  # P2
        check_place(ledger, self._view)
        run = self._take_run()  # P3
        check_account(self._journal.ledger, self._view)  # P4
        batch = self._view.batch
        for checkpoint in self._journal.ledger.unsettled():
            self._settle(checkpoint.id, run.token, recovering=True)  # P5
        for record in self._journal.ledger.undecided():
            self._keep_or_void(record, run.token)  # P6
        self._sink.abortLingering(self._journal.ledger.known_handles())  # P7
        faults.reach("recovery.swept")
        self._journal.fold()  # P8
        ledger = self._journal.ledger
        found = ledger.batches.get(batch)
        repairs = {part.partition: part.expected() for part in found.parts if part.lost} if found else {}
        mode = Mode.REPAIR if repairs else Mode.DRAIN if found else Mode.WRITE
        return TaskPlan(run.token, batch, mode, self._view.queryId, self._settings.prefix, repairs)

    def _take_run(self) -> RunRecord:
        claim, run = whose_run(self._journal.ledger, self._settings.driver, self._settings.digest)
        if claim is Claim.FENCED and run is not None:
            self._fence_own(run)
        if claim is Claim.TAKE and run is not None:
            mark = self._sink.guardRun(run.mark)
        else:
            run = self._claim()
            mark = self._sink.guardRun(None)
        if dict(mark) != run.mark:
            self._journal.append(EntryKind.MARK, {"run": run.token, "mark": dict(mark)}, self._must_own(run.token))
        return self._journal.ledger.runs[run.token]

    def _fence_own(self, run: RunRecord) -> None:
        newest = self._newest(self._journal.ledger)

        def judge(ledger: Ledger) -> None:
            if ledger.runs[run.token].ended:
                raise self._superseded(run.token, ledger)

        self._journal.append(EntryKind.FENCED, {"run": run.token, "by": newest.token}, judge)
        raise self._superseded(run.token, self._journal.ledger)

    def _claim(self) -> RunRecord:
        """A new run takes its journal number first; it recovers and sweeps only then."""
        settings, view = self._settings, self._view
        identity = dict(self._sink.identify())
        former = self._journal.ledger.newest_run
        if former and (self._journal.ledger.unsettled() or self._journal.ledger.undecided()):
            for what, before, now in (
                ("sink", former.sink, settings.sink),
                ("cluster", former.identity.get("cluster"), identity.get("cluster")),
            ):
                if before != now:
                    raise LocationError(
                        "UNSETTLED_ELSEWHERE",
                        f"the {what} changed from {before} to {now} while transactions of run {former.token} are not "
                        "settled: start the query once with its former settings, then change them",
                        what=what,
                        before=before,
                        now=now,
                    )
        position = self._journal.ledger.position
        body = {
            "driver": settings.driver,
            "settings": settings.digest,
            "sink": settings.sink,
            "location": view.location,
            "prefix": settings.prefix,
            "identity": identity,
            "queryId": view.queryId,
        }

        def judge(ledger: Ledger) -> None:
            check_place(ledger, view)
            check_account(ledger, view)
            if ledger.position != position and whose_run(ledger, settings.driver, settings.digest)[0] is Claim.FENCED:
                raise self._superseded(0, ledger)

        entry = self._journal.append(EntryKind.RUN, body, judge)
        faults.reach("recovery.claimed")
        return self._journal.ledger.runs[entry.number]

    def _keep_or_void(self, record: BatchRecord, token: int) -> None:
        """P6: handles of a prepared batch all alive, or the batch is void and its others aborted, in that order."""
        handles = [part.handles[-1] for part in record.parts if part.handles]
        if judge_prepared(record, list(self._sink.inspect(handles)), self._view):
            return
        own = self._must_own(token)

        def judge(ledger: Ledger) -> None:
            own(ledger)
            found = ledger.batches.get(record.batch)
            if found is None or found.entry != record.entry or found.checkpoint is not None:
                raise FencedError(
                    "BATCH_TAKEN",
                    f"micro-batch {record.batch} was voided or decided by somebody else",
                    batch=record.batch,
                )

        self._journal.append(EntryKind.VOID, {"prepared": record.batch, "run": token}, judge)
        self._sink.recoverAndAbort(handles)

    # -- settling a decision ----------------------------------------------------------------------------------------

    def _settle(self, identifier: int, token: int, recovering: bool) -> None:
        """Commit a decided checkpoint's handles, whatever became of them; journal `settled`, or `verdict`, or `void`.

        Leaves the checkpoint unsettled with lost parts where these have to be repaired by its replay.
        """
        judge = self._must_settle(token, identifier)
        for _ in range(SETTLE_ROUNDS):
            ledger = self._journal.ledger
            judge(ledger)
            checkpoint = ledger.checkpoints[identifier]
            open_parts = [part for part in ledger.parts_of(checkpoint) if part.open]
            states = list(zip(open_parts, self._sink.inspect([p.handles[-1] for p in open_parts]), strict=True))
            judgement = judge_checkpoint(ledger, checkpoint, states, self._view.batch)
            faults.reach("recovery.settling")
            living = [part for part, state in states if state.outcome is Outcome.PREPARED]
            if judgement is Judgement.COMMIT:
                if self._commit(checkpoint, living, recovering):
                    self._journal.append(EntryKind.SETTLED, {"checkpoint": identifier, "run": token}, judge)
                    return
                continue
            verdicts = [
                self._verdict(part, state.outcome, state.evidence) for part, state in states if part not in living
            ]
            if judgement is Judgement.VOID:
                found = self._sink.recoverAndAbort([part.handles[-1] for part in living])
                if not found:
                    body = {"checkpoint": identifier, "run": token, "evidence": verdicts}
                    self._journal.append(EntryKind.VOID, body, judge)
                    log.warning(
                        "checkpoint %d is void: its transactions were lost, its rows are written anew", identifier
                    )
                    return
                for part in living:
                    outcome = Outcome.COMMITTED if part.handles[-1] in found else Outcome.LOST
                    verdicts.append(self._verdict(part, outcome, "answer to its abort"))
                living = []
            if verdicts:
                body = {"checkpoint": identifier, "run": token, "parts": verdicts}
                self._journal.append(EntryKind.VERDICT, body, self._must_settle(token, identifier, verdicts, "open"))
                faults.reach("repair.verdict")
            if self._commit(checkpoint, living, recovering):
                return  # the lost parts wait for their replay
        raise RetriableError(
            "NOT_SETTLED",
            f"checkpoint {identifier} is decided, but its transactions keep being lost",
            checkpoint=identifier,
        )

    @staticmethod
    def _verdict(part: PartRecord, outcome: Outcome, evidence: str) -> dict[str, Any]:
        return {
            "batch": part.batch,
            "partition": part.partition,
            "handle": len(part.handles) - 1,
            "verdict": outcome.value,
            "evidence": evidence,
        }

    def _commit(self, checkpoint: CheckpointRecord, parts: Sequence[PartRecord], recovering: bool) -> bool:
        """Commit the parts' handles; False where some were found lost, so that they have to be judged."""
        completed = self._completed(checkpoint)
        handles = [part.handles[-1] for part in parts]
        try:
            if recovering:
                self._sink.recoverAndCommit(handles, completed)
            else:
                self._sink.commit(handles, completed)
        except TransactionLostError as lost:
            log.warning("checkpoint %d: %d transactions were lost after its decision", checkpoint.id, len(lost.handles))
            return False
        faults.reach("commit.done")
        return True

    def _completed(self, checkpoint: CheckpointRecord) -> CompletedCheckpoint:
        return CompletedCheckpoint(
            checkpoint.id, tuple(checkpoint.batches), checkpoint.time, self._view.queryId, self._settings.prefix
        )

    # -- commit -----------------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[Acknowledgement | None], batch: int) -> None:
        """Decide the micro-batch, then commit it. *Called on the driver, once per micro-batch, in the commit process.*

        Raises
        ------
        FencedError
            A newer run owns the location: nothing was committed or aborted.
        RetriableError
            Nothing is decided: a prepared transaction is gone, or too old.
        TwoPhaseCommitError
            Otherwise as its condition says.
        """
        faults.reach("commit.called")
        ledger = self._journal.load()  # C1
        token = self._token(messages, batch)
        self._must_own(token)(ledger)
        acknowledged = [m for m in messages if m is not None]
        if len(acknowledged) < len(messages):
            raise ProtocolError("MISSING_ACKNOWLEDGEMENT", f"micro-batch {batch}: a writer task has not acknowledged")
        found = ledger.batches.get(batch)
        if found is not None and found.checkpoint is not None:  # C2
            checkpoint = ledger.checkpoints[found.checkpoint]
            if not checkpoint.settled:
                self._repair(checkpoint, found, acknowledged, token)
                self._settle(checkpoint.id, token, recovering=True)
                after = self._journal.ledger.checkpoints.get(checkpoint.id)
                if after is None or not after.settled:
                    raise RetriableError(
                        "REPAIR_LOST", f"a repair of checkpoint {checkpoint.id} was lost again: the next run repeats it"
                    )
        else:
            self._decide(acknowledged, batch, token, found)
        self._sink.abortLingering(self._journal.ledger.known_handles())  # C9

    def _decide(self, messages: Sequence[Acknowledgement], batch: int, token: int, found: BatchRecord | None) -> None:
        pending = PendingCheckpoint(token, batch)
        for message in messages:
            if message.drained is not (found is not None):  # C3, C4
                raise ProtocolError(
                    "MIXED_ACKNOWLEDGEMENTS",
                    f"micro-batch {batch}: partition {message.partition} reports drained={message.drained}, "
                    f"but the micro-batch is {'prepared' if found else 'not prepared'} in the journal",
                )
            if pending.acknowledge(message) is not AcknowledgeResult.SUCCESS:
                raise ProtocolError("DUPLICATE_PARTITION", f"micro-batch {batch}: partition {message.partition} twice")
        ledger = self._journal.ledger
        handles = [p.handle for p in pending.parts if p.handle is not None]
        earlier = [part.handles[-1] for record in ledger.undecided() for part in record.parts if part.handles]
        self._look(batch, [*earlier, *handles])  # C5
        faults.reach("commit.looked")
        closes = closes_checkpoint(self._view.lines, self._view.previous) or self._wants(ledger)
        body = {
            "run": token,
            "batch": batch,
            "sources": self._view.sources,
            "writers": len(messages),
            "parts": [part.to_json() for part in pending.parts],
        }
        if not closes:
            if found is None:
                self._journal.append(EntryKind.PREPARED, body, self._must_own(token, batch, undecided=True))  # C6
            return
        covers = [record.batch for record in ledger.undecided()]
        entry = self._journal.append(
            EntryKind.DECIDED,
            {**body, "covers": covers},
            self._must_own(token, batch, undecided=found is None, covers=covers),
        )
        pending.finish()
        faults.reach("decision.written")
        checkpoint = self._journal.ledger.checkpoints[entry.number]
        if checkpoint.settled:
            return
        open_parts = [part for part in self._journal.ledger.parts_of(checkpoint) if part.open]
        if not self._commit(checkpoint, open_parts, recovering=False):  # C7
            raise RetriableError(
                "LOST_AFTER_DECISION",
                f"transactions of checkpoint {checkpoint.id} were lost after its decision: the next run repairs them",
                checkpoint=checkpoint.id,
            )
        self._journal.append(
            EntryKind.SETTLED,
            {"checkpoint": checkpoint.id, "run": token},
            self._must_settle(token, checkpoint.id),
        )  # C8
        faults.reach("settled.written")

    def _look(self, batch: int, handles: Sequence[Mapping[str, Any]]) -> None:
        """C5: every handle is alive, ours, and has time left. One question to the store for all."""
        for handle, state in zip(handles, self._sink.inspect(list(handles)) if handles else [], strict=True):
            if not state.ready:
                raise RetriableError(
                    "HANDLE_NOT_ALIVE",
                    f"micro-batch {batch} is not decided: a prepared transaction is {state.outcome.value} with "
                    f"{state.seconds_left} s left of which {state.margin} s must remain ({state.evidence}). The next "
                    "run writes the micro-batch again",
                    handle=json.dumps(handle, sort_keys=True, default=str),
                    seconds_left=state.seconds_left,
                    margin=state.margin,
                )

    def _repair(
        self, checkpoint: CheckpointRecord, record: BatchRecord, messages: Sequence[Acknowledgement], token: int
    ) -> None:
        """C2 of a replay that wrote lost parts again: its handles bind before the first of them is committed."""
        lost = {part.partition: part for part in record.parts if part.lost}
        if not lost:
            return
        written = {m.partition: m.part for m in messages if not m.drained}
        if len(messages) != record.writers and not all(part.free for part in lost.values()):
            raise mismatch(record.batch, "writer tasks", record.writers, len(messages))
        for partition, part in lost.items():
            repaired = written.get(partition)
            if repaired is None or (repaired.handle is None and not part.free):
                raise mismatch(record.batch, f"rows of partition {partition}", part.rows, 0)
            if not part.free and (repaired.rows, repaired.bytes, repaired.digest) != (
                part.rows,
                part.bytes,
                part.digest,
            ):
                raise mismatch(
                    record.batch, f"partition {partition}", (part.rows, part.digest), (repaired.rows, repaired.digest)
                )
        self._look(record.batch, [h for p in lost if (h := written[p].handle) is not None])
        parts = [
            {"batch": record.batch, "partition": p, "replaces": len(lost[p].handles) - 1, "handle": written[p].handle}
            for p in lost
        ]
        replaced = [{**part, "handle": part["replaces"]} for part in parts]
        self._journal.append(
            EntryKind.REPAIR,
            {"checkpoint": checkpoint.id, "run": token, "parts": parts},
            self._must_settle(token, checkpoint.id, replaced, "lost"),
        )
        faults.reach("repair.handles")

    # -- abort ------------------------------------------------------------------------------------------------------

    def abort(self, messages: Sequence[Acknowledgement | None], batch: int) -> None:
        """Give a micro-batch up, unless the journal has it. *Called on the driver, in the commit process.*"""
        ledger = self._journal.load()  # A1
        tokens = {m.token for m in messages if m is not None}
        newest = ledger.newest_run
        if newest is None or newest.ended or tokens - {newest.token}:
            return
        if not tokens and newest.driver != self._settings.driver:
            return
        token = newest.token
        try:
            self._journal.append(
                EntryKind.ABORTED, {"run": token, "batch": batch}, self._must_own(token, batch, undecided=True)
            )  # A2
        except FencedError as fenced:
            log.info("abort of micro-batch %d does nothing: %s", batch, fenced)
            return
        faults.reach("abort.journalled")
        self._sink.abort([m.part.handle for m in messages if m is not None and m.part.handle is not None])  # A3
        self._sink.abortLingering(self._journal.ledger.known_handles())  # A4

    # -- judges -----------------------------------------------------------------------------------------------------

    def _token(self, messages: Sequence[Acknowledgement | None], batch: int) -> int:
        """The run that the messages belong to; a mixture is refused."""
        tokens = {m.token for m in messages if m is not None}
        if len(tokens) > 1:
            raise ProtocolError("MIXED_RUNS", f"micro-batch {batch}: acknowledgements of the runs {sorted(tokens)}")
        if tokens:
            return tokens.pop()
        newest = self._newest(self._journal.ledger)
        if newest.driver != self._settings.driver:
            raise self._superseded(0, self._journal.ledger)
        return newest.token

    @staticmethod
    def _newest(ledger: Ledger) -> RunRecord:
        if ledger.newest_run is None:
            raise ProtocolError("NO_RUN", "the journal holds no run: planning never ran here")
        return ledger.newest_run

    def _superseded(self, token: int, ledger: Ledger) -> FencedError:
        newest = self._newest(ledger)
        return FencedError(
            "RUN_SUPERSEDED",
            f"run {token or 'of this driver'} is superseded by run {newest.token} (driver {newest.driver}, "
            f"{newest.ended or 'live'}): this query stops and touches nothing. Start it again only if the other is gone",
            run=token,
            newer=newest.token,
        )

    def _must_own(
        self, token: int, batch: int | None = None, undecided: bool = False, covers: Sequence[int] | None = None
    ) -> Callable[[Ledger], None]:
        """A judge: the run is the newest and not ended, and the batch (if asked) neither prepared nor decided."""

        def judge(ledger: Ledger) -> None:
            newest = self._newest(ledger)
            if newest.token != token:
                raise self._superseded(token, ledger)
            if newest.ended:
                raise FencedError(
                    "RUN_ENDED", f"run {token} has ended ({newest.ended}): start the query again", run=token
                )
            if undecided and batch in ledger.batches:
                raise FencedError("BATCH_TAKEN", f"micro-batch {batch} is in the journal already", batch=batch)
            if covers is not None and covers != [record.batch for record in ledger.undecided()]:
                raise FencedError(
                    "BATCH_TAKEN", f"prepared micro-batches changed before {batch} was decided", batch=batch
                )

        return judge

    def _must_settle(
        self, token: int, checkpoint: int, parts: Sequence[Mapping[str, Any]] = (), must_be: str = ""
    ) -> Callable[[Ledger], None]:
        """A judge: the run is the newest, the checkpoint unsettled, and each named handle the last of its part still.

        Two commit processes of one run can meet here: a query that is stopped in the middle of a commit and started
        again in its session. Without the last condition both would repair one part.
        """
        own = self._must_own(token)

        def judge(ledger: Ledger) -> None:
            own(ledger)
            found = ledger.checkpoints.get(checkpoint)
            taken = found is None or found.settled
            for part in () if taken else parts:
                record = ledger.part(part["batch"], part["partition"])
                taken |= len(record.handles) - 1 != part["handle"] or not getattr(record, must_be)
            if taken:
                raise FencedError(
                    "CHECKPOINT_TAKEN",
                    f"checkpoint {checkpoint} was settled, repaired or voided by somebody else",
                    checkpoint=checkpoint,
                )

        return judge


def mismatch(batch: int, what: str, recorded: object, found: object) -> ReplayMismatchError:
    """The replay is not the recorded one: nothing of it is committed."""
    return ReplayMismatchError(
        "REPLAY_DIFFERS",
        f"the repair of micro-batch {batch} differs from what was recorded: {what} was {recorded}, is {found}. Give the "
        "query the parallelism that it had (cores, spark.sql.shuffle.partitions), set "
        f"spark.sql.adaptive.enabled=false, and start it again; as a last resort, {WAY_OUT_RESOLVE}",
        batch=batch,
        what=what,
        recorded=repr(recorded),
        found=repr(found),
    )
