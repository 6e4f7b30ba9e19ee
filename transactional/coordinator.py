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

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transactional import faults
from transactional.barrier import closes_checkpoint
from transactional.checkpoint import (
    Acknowledgement,
    AcknowledgeResult,
    Mode,
    PendingCheckpoint,
    TaskPlan,
)
from transactional.errors import (
    FencedError,
    LocationError,
    ProtocolError,
    RetriableError,
)
from transactional.journal import Journal
from transactional.ledger import BatchRecord, Ledger, RunRecord
from transactional.metadata import EntryKind
from transactional.ownership import may_abort, may_record, may_settle, may_void, must_own, newest_run, superseded
from transactional.recovery import (
    Claim,
    SparkView,
    check_account,
    check_place,
    check_prefix,
    check_sources,
    judge_prepared,
    other_sources,
    whose_run,
)
from transactional.settlement import Settlement
from transactional.sink import Epoch, TwoPhaseCommitSink
from transactional.versions import check_origin, check_overtaken, check_rows

__all__ = ["CheckpointCoordinator", "RunSettings"]

log = logging.getLogger(__name__)


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
    under : Callable[[str], TwoPhaseCommitSink], optional
        Makes the same sink under another prefix, to sweep what a run under a former prefix has left.
    """

    def __init__(
        self,
        journal: Journal,
        sink: TwoPhaseCommitSink[Any, Any],
        settings: RunSettings,
        view: SparkView,
        wants: Callable[[Ledger], bool] = lambda ledger: False,
        under: Callable[[str], TwoPhaseCommitSink[Any, Any]] | None = None,
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._settings = settings
        self._view = view
        self._wants = wants
        self._under = under
        self._settlement = Settlement(journal, sink, view.queryId, settings.prefix, view.batch)

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
        check_prefix(ledger, self._settings.prefix)
        run = self._take_run()  # P3
        check_account(self._journal.ledger, self._view)  # P4
        batch = self._view.batch
        for checkpoint in self._journal.ledger.unsettled():
            self._settlement.settle(checkpoint.id, run.token)  # P5
        for record in self._journal.ledger.undecided():
            self._keep_or_void(record, run.token)  # P6
        self._sweep(run.token)  # P7
        faults.reach("recovery.swept")
        self._journal.fold()  # P8
        ledger = self._journal.ledger
        found = ledger.batches.get(batch)
        repairs = {part.partition: part.expected() for part in found.parts if part.lost} if found else {}
        mode = Mode.REPAIR if repairs else Mode.DRAIN if batch <= ledger.accounted else Mode.WRITE
        writers = found.writers if found else None
        return TaskPlan(
            run.token,
            batch,
            mode,
            self._view.queryId,
            ledger.identity(self._view.queryId),
            self._settings.prefix,
            self._view.sources,
            writers,
            repairs,
        )

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
            self._journal.append(EntryKind.MARK, {"run": run.token, "mark": dict(mark)}, must_own(run.token))
        return self._journal.ledger.runs[run.token]

    def _fence_own(self, run: RunRecord) -> None:
        newest = newest_run(self._journal.ledger)

        def judge(ledger: Ledger) -> None:
            if ledger.runs[run.token].ended:
                raise superseded(run.token, ledger)

        self._journal.append(EntryKind.FENCED, {"run": run.token, "by": newest.token}, judge)
        raise superseded(run.token, self._journal.ledger)

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
                raise superseded(0, ledger)

        entry = self._journal.append(EntryKind.RUN, body, judge)
        faults.reach("recovery.claimed")
        self._sweep_former(entry.number)
        return self._journal.ledger.runs[entry.number]

    def _sweep_former(self, token: int) -> None:
        """A new run's part of P7: sweep the prefixes that the query had, unless another query has taken one since."""
        ledger, settings = self._journal.ledger, self._settings
        former = {run.prefix: run for _, run in sorted(ledger.runs.items()) if run.sink == settings.sink}
        for prefix, run in former.items():
            if prefix == settings.prefix or run.mark is None or self._under is None:
                continue
            sink = self._under(prefix)
            try:
                if run.mark:
                    sink.guardRun(run.mark)
                sink.sweep(ledger.known_handles(), self._over(token))
            except FencedError as taken:
                log.info("transactions under the former prefix %s are not swept: %s", prefix, taken)
            finally:
                sink.close()

    def _keep_or_void(self, record: BatchRecord, token: int) -> None:
        """P6: handles of a prepared batch all alive, or the batch is void and its others aborted, in that order."""
        handles = [part.handles[-1] for part in record.parts if part.handles]
        if judge_prepared(record, list(self._sink.inspect(handles)), self._view):
            return
        body = {"prepared": record.batch, "run": token}
        self._journal.append(EntryKind.VOID, body, may_void(token, record.batch, record.entry))
        self._sink.discard(handles)

    def _sweep(self, token: int, ended: bool = False) -> None:
        """Abort what no unsettled entry names; what is over is said for stores whose aborts are not atomic."""
        self._sink.sweep(self._journal.ledger.known_handles(), self._over(token, ended))

    def _over(self, token: int, ended: bool = False) -> Epoch:
        """What nobody can decide any more."""
        ledger = self._journal.ledger
        query = ledger.identity(self._view.queryId)
        return Epoch(query, token + 1, 0) if ended else Epoch(query, token, ledger.settled + 1)

    # -- commit -----------------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[Acknowledgement | None], batch: int, origin: str = "") -> None:
        """Decide the micro-batch, then commit it. *Called on the driver, once per micro-batch, in the commit process.*

        Parameters
        ----------
        messages : Sequence[Acknowledgement or None]
        batch : int
        origin : str
            Of a batch write: the streaming query in whose ``foreachBatch`` it runs.

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
        must_own(token)(ledger)
        acknowledged = [m for m in messages if m is not None]
        if len(acknowledged) < len(messages):
            raise ProtocolError("MISSING_ACKNOWLEDGEMENT", f"micro-batch {batch}: a writer task has not acknowledged")
        check_sources(ledger, self._view)
        if any(message.sources != self._view.sources for message in acknowledged):
            raise other_sources(batch, "the one that its tasks were planned by")
        check_origin(ledger, origin)
        found = ledger.batches.get(batch)
        if found is None and batch <= ledger.accounted:  # a version whose record was forgotten long ago
            check_overtaken(ledger, acknowledged, batch)
            log.info("txnVersion %d was written before; nothing is written", batch)
        elif found is not None and found.checkpoint is not None:  # C2
            checkpoint = ledger.checkpoints[found.checkpoint]
            if self._view.gaps:
                check_rows(checkpoint, acknowledged, batch)
            if not checkpoint.settled:
                self._settlement.repair(checkpoint, found, acknowledged, token)
                self._settlement.settle(checkpoint.id, token)
                after = self._journal.ledger.checkpoints.get(checkpoint.id)
                if after is None or not after.settled:
                    raise RetriableError(
                        "REPAIR_LOST", f"a repair of checkpoint {checkpoint.id} was lost again: the next run repeats it"
                    )
        else:
            self._decide(acknowledged, batch, token, found, origin)
        self._sweep(token)  # C9

    def _decide(
        self, messages: Sequence[Acknowledgement], batch: int, token: int, found: BatchRecord | None, origin: str
    ) -> None:
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
        self._settlement.look(batch, [*earlier, *handles])  # C5
        faults.reach("commit.looked")
        closes = closes_checkpoint(self._view.lines, self._view.previous) or self._wants(ledger)
        body = {
            "run": token,
            "batch": batch,
            "sources": self._view.sources,
            "writers": len(messages),
            "origin": origin,
            "parts": [part.to_json() for part in pending.parts],
        }
        covers = [record.batch for record in ledger.undecided()]
        judge = may_record(token, batch, found is not None, covers, self._view.gaps)
        if not closes:
            if found is None:
                self._journal.append(EntryKind.PREPARED, body, judge)  # C6
            return
        entry = self._journal.append(EntryKind.DECIDED, {**body, "covers": covers}, judge)  # C6
        pending.finish()
        faults.reach("decision.written")
        checkpoint = self._journal.ledger.checkpoints[entry.number]
        if checkpoint.settled:
            return
        open_parts = [part for part in self._journal.ledger.parts_of(checkpoint) if part.open]
        if not self._settlement.commit(checkpoint, open_parts, recovering=False):  # C7
            raise RetriableError(
                "LOST_AFTER_DECISION",
                f"transactions of checkpoint {checkpoint.id} were lost after its decision: the next run repairs them",
                checkpoint=checkpoint.id,
            )
        self._journal.append(
            EntryKind.SETTLED,
            {"checkpoint": checkpoint.id, "run": token},
            may_settle(token, checkpoint.id),
        )  # C8
        faults.reach("settled.written")

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
            self._journal.append(EntryKind.ABORTED, {"run": token, "batch": batch}, may_abort(token, batch))  # A2
        except FencedError as fenced:
            log.info("abort of micro-batch %d does nothing: %s", batch, fenced)
            return
        faults.reach("abort.journalled")
        self._sink.discard([m.part.handle for m in messages if m is not None and m.part.handle is not None])  # A3
        self._sweep(token, ended=True)  # A4

    def _token(self, messages: Sequence[Acknowledgement | None], batch: int) -> int:
        """The run that the messages belong to; a mixture is refused."""
        tokens = {m.token for m in messages if m is not None}
        if len(tokens) > 1:
            raise ProtocolError("MIXED_RUNS", f"micro-batch {batch}: acknowledgements of the runs {sorted(tokens)}")
        if tokens:
            return tokens.pop()
        newest = newest_run(self._journal.ledger)
        if newest.driver != self._settings.driver:
            raise superseded(0, self._journal.ledger)
        return newest.token
