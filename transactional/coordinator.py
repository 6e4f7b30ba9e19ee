"""The checkpoint coordinator: what happened goes in, the journal decides, sinks are told.

A plain object without threads, built anew in every process that needs it. The durable steps, in order:

planning   P1 read Spark's logs (the caller)   P2 load the journal   P3 take the run; or ask the store for what the
           journal does not know, and claim; guard the prefix
           P4 account for every batch          P5 settle decisions   P6 keep or void prepared batches
           P7 sweep lingering transactions; `stopped`, and no further, where the run was asked to stop and nothing is open
           P8 give the hooks their states      P9 fold, hand out the mode
commit     C1 load, the run must be ours       C2 decided already: repair, settle, return
           C3 prepared already: all drained    C4 all written by this run     C5 the look at the handles
           C6 ask the hooks                    C7 `decided` (or `prepared`; or `prepared` and `declined`)
           C8 commit the handles, in order     C9 all visible: `settled`      C10 sweep
abort      A1 load, the run must be ours, N neither decided nor prepared      A2 `aborted`
           A3 abort the messages' handles      A4 sweep
ending     E1 P2 to P7 under a run of its own  E2 C5 to C9 over what is prepared
           E3 `stopped`                        E4 sweep

Going back (R1 to R7) is `transactional.rewind`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transactional import faults, hooks
from transactional.barrier import BarrierKind, closes_checkpoint, new_barriers, sources_digest
from transactional.checkpoint import (
    Acknowledgement,
    AcknowledgeResult,
    CheckpointFailureReason,
    ClosingReason,
    Mode,
    PendingCheckpoint,
    TaskPlan,
)
from transactional.clock import Clock, Deadline, SystemClock
from transactional.errors import (
    AmbiguousOutcomeError,
    FencedError,
    HookError,
    JournalError,
    LocationError,
    ProtocolError,
    QueryStoppedError,
    RetriableError,
    RewindRequiredError,
)
from transactional.history import history_of
from transactional.journal import Journal
from transactional.ledger import BatchRecord, Ledger, RunRecord
from transactional.metadata import EntryKind
from transactional.ownership import (
    may_abort,
    may_keep,
    may_record,
    may_stop,
    may_void,
    moved_on,
    must_own,
    newest_run,
    rewinding,
    superseded,
    unfinished,
)
from transactional.recovery import (
    Claim,
    SparkView,
    check_account,
    check_place,
    check_prefix,
    check_restored,
    check_schedule,
    check_sources,
    judge_prepared,
    replaced_since_planned,
    unrecorded_repartitions,
    whose_run,
)
from transactional.secrets import hiding
from transactional.settlement import Settlement
from transactional.sink import Epoch, TwoPhaseCommitSink
from transactional.versions import (
    check_origin,
    check_overtaken,
    check_target,
    check_topics,
    check_written,
    lost_version,
    older_location,
)

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
    process, setup : Mapping[str, Any]
        As `RunRecord` keeps them.
    retained : int
        Settled checkpoints that the journal keeps.
    max_batches : int
        A checkpoint closes after so many micro-batches.
    commit_seconds : float
        A declined decision is tried again for so long.
    tolerable : int
        So many checkpoints in a row may be declined, then commit raises.
    hooks : Sequence[CheckpointHook]
    allow_non_restored : bool
        Leave behind what the savepoint that was restored holds and this query does not take: states of hooks, positions.
    secrets : Collection[str]
        Values of options that what a hook raises may quote, and the journal must not.
    """

    driver: str
    sink: str
    digest: str
    prefix: str
    process: Mapping[str, Any] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)
    retained: int = 100
    max_batches: int = 50
    commit_seconds: float = 120.0
    tolerable: int = 0
    hooks: Sequence[hooks.CheckpointHook] = ()
    allow_non_restored: bool = False
    secrets: Collection[str] = field(default=(), repr=False)


MOST_LOOKED_AT = 1000
"""Prepared parts that every planning asks the store about; a Kafka coordinator describes 200 in 13 ms."""

RETRY_SECONDS = 0.1
"""Between two tries at a decision that was declined; doubles up to 5 s."""


class CheckpointCoordinator:
    """Drives one sink through the protocol on one journal.

    Parameters
    ----------
    journal : Journal
    sink : TwoPhaseCommitSink
    settings : RunSettings
    view : SparkView
        Spark's logs as they are now.
    under : Callable[[str], TwoPhaseCommitSink], optional
        Makes the same sink under another prefix, to sweep what a run under a former prefix has left.
    clock : Clock, optional
    """

    def __init__(
        self,
        journal: Journal,
        sink: TwoPhaseCommitSink[Any, Any],
        settings: RunSettings,
        view: SparkView,
        under: Callable[[str], TwoPhaseCommitSink[Any, Any]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._settings = settings
        self._view = view
        self._under = under
        self._clock = clock or SystemClock()
        self._identity: dict[str, str] | None = None
        self._settlement = Settlement(journal, sink, view.queryId, settings.prefix, view.batch)

    # -- planning ---------------------------------------------------------------------------------------------------

    def plan(self) -> TaskPlan:
        """Recover what earlier runs left and say what the tasks of the micro-batch do.

        *Called on the driver, once per planning, in the planning process only.*

        Raises
        ------
        LocationError, FencedError, AmbiguousOutcomeError, RewindRequiredError, StoreError
            Before any task starts.
        QueryStoppedError
            ``STOP_REQUESTED``: this run was asked to stop, and nothing is left open.
        """
        ledger = self._journal.load()  # P2
        if ledger.restoring is not None:
            raise unfinished(ledger)
        check_place(ledger, self._view)
        if ledger.moved is not None:
            raise moved_on(ledger)
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        check_prefix(ledger, self._settings.prefix)
        if not self._settings.allow_non_restored:
            check_restored(ledger, self._view, [hook.identifier() for hook in self._settings.hooks])
        if self._view.gaps:
            check_target(ledger, self._identify())
        run, claimed = self._take_run()  # P3
        topic = run.identity.get("topicId")
        check_schedule(self._view, [topic] if topic else [], run.lifetime)
        check_account(self._journal.ledger, self._view)  # P4
        batch = self._view.batch
        try:
            for checkpoint in self._journal.ledger.unsettled():
                self._settlement.settle(checkpoint.id, run.token)  # P5
        except RewindRequiredError as behind:
            if self._view.gaps:
                raise lost_version(behind) from None
            raise
        self._keep_or_void(run.token, claimed)  # P6
        self._record_repartitions(run.token)
        self._sweep(run.token)  # P7
        faults.reach("recovery.swept")
        self._stop_if_asked(run.token)
        if run.restored is None and self._settings.hooks:
            self._restore_hooks(run.token)  # P8
        self._journal.fold()  # P9
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

    def _stop_if_asked(self, token: int) -> None:
        """P7's end, where the run was asked to stop; with something prepared, this micro-batch closes its final checkpoint."""
        ledger = self._journal.ledger
        if not ledger.stopping or ledger.undecided() or ledger.unsettled():
            return
        self._journal.append(EntryKind.STOPPED, {"run": token}, may_stop(token))
        raise QueryStoppedError(
            "STOP_REQUESTED",
            f"the query was asked to stop, and run {token} has ended: this is no failure. Everything up to micro-batch "
            f"{self._view.batch - 1} is committed, and no transaction is open; start the query again to go on",
            run=token,
        )

    def _take_run(self) -> tuple[RunRecord, bool]:
        """The run, and whether it is a new one."""
        claim, run = whose_run(self._journal.ledger, self._settings.driver, self._settings.digest)
        if claim is Claim.FENCED and run is not None:
            self._fence_own(run)
        if claim is not Claim.TAKE or run is None:
            run = self._claim()
        self._guard(run)
        return self._journal.ledger.runs[run.token], claim is not Claim.TAKE

    def _guard(self, run: RunRecord) -> None:
        """Take the prefix at the store, or see that it is ours still; journal the mark.

        Also if the run was ended or superseded meanwhile: the next one has to know who took the prefix last.
        """
        mark = dict(self._sink.guardRun(run.mark))
        if mark != run.mark:
            self._journal.append(EntryKind.MARK, {"run": run.token, "mark": mark}, lambda ledger: None)
        must_own(run.token)(self._journal.ledger)

    def _record_repartitions(self, token: int) -> None:
        """Account for the micro-batches that Spark's repartition has added: no sink ran, so nothing is to be committed."""
        for batch in unrecorded_repartitions(self._journal.ledger, self._view):
            ledger = self._journal.ledger
            covered = [record.batch for record in ledger.undecided()]
            newest = ledger.checkpoints[max(ledger.checkpoints)] if ledger.checkpoints else None
            body = {
                "run": token,
                "batch": batch,
                "sources": sources_digest(self._view.previous or ()),
                "writers": 0,
                "origin": "",
                "parts": [],
                "barrier": None,
                "began": self._milliseconds(),
                "reason": ClosingReason.REPARTITION.name,
                "hooks": dict(newest.hooks) if newest else {},
            }
            judge = may_record(token, batch, False, covered, False)
            if covered:  # what is prepared before it is the next decision's, and so is it
                self._journal.append(EntryKind.PREPARED, body, judge)
            else:
                self._journal.append(EntryKind.DECIDED, {**body, "covers": []}, judge)

    def _fence_own(self, run: RunRecord) -> None:
        newest = newest_run(self._journal.ledger)

        def judge(ledger: Ledger) -> None:
            if ledger.runs[run.token].ended:
                raise superseded(run.token, ledger)

        self._journal.append(EntryKind.FENCED, {"run": run.token, "by": newest.token}, judge)
        raise superseded(run.token, self._journal.ledger)

    def _claim(self, follows: int | None = None) -> RunRecord:
        """A new run takes its journal number first; it recovers and sweeps only then. `follows`: after this run only."""
        settings, view = self._settings, self._view
        identity = self._identify()
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
        seen = self._check_history(identity)
        body = {
            "driver": settings.driver,
            "settings": settings.digest,
            "sink": settings.sink,
            "location": view.location,
            "prefix": settings.prefix,
            "identity": identity,
            "queryId": view.queryId,
            "lifetime": self._sink.lifetime(),
            "process": dict(settings.process),
            "setup": dict(settings.setup),
            "retained": settings.retained,
            "seen": seen,
        }

        def judge(ledger: Ledger) -> None:
            check_place(ledger, view)
            check_account(ledger, view)
            if follows is not None and newest_run(ledger).token != follows:
                raise superseded(follows, ledger)
            if ledger.position != position and whose_run(ledger, settings.driver, settings.digest)[0] is Claim.FENCED:
                raise superseded(0, ledger)

        entry = self._journal.append(EntryKind.RUN, body, judge)
        faults.reach("recovery.claimed")
        self._sweep_former(entry.number)
        return self._journal.ledger.runs[entry.number]

    def _identify(self) -> dict[str, str]:
        """Which store it is; asked once per planning."""
        if self._identity is None:
            self._identity = dict(self._sink.identify())
        return self._identity

    def _check_history(self, identity: Mapping[str, str]) -> dict[str, Any]:
        """P3, before a claim: the store holds nothing of the query that the journal does not know; returns what it holds.

        Another driver of the location may be at work meanwhile: whatever it does at the store it has journalled before.
        """
        settings = self._settings
        while True:
            ledger = self._journal.ledger
            position, query = ledger.position, ledger.identity(self._view.queryId)
            try:
                return dict(
                    self._sink.checkHistory(history_of(ledger, query, settings.sink, settings.prefix, identity))
                )
            except LocationError as refused:
                if self._journal.load().position != position:
                    continue
                if self._view.gaps and refused.condition == "LOCATION_PUT_BACK":
                    raise older_location(refused) from None
                raise

    def _sweep_former(self, token: int) -> None:
        """A new run's part of P7: sweep the prefixes that the query had, unless another query has taken one since."""
        ledger, settings = self._journal.ledger, self._settings
        former = {run.prefix: run for _, run in sorted(ledger.runs.items()) if run.sink == settings.sink}
        for prefix, run in former.items():
            if prefix == settings.prefix or prefix in ledger.originals or run.mark is None or self._under is None:
                continue  # what an original has prepared is its own to commit
            sink = self._under(prefix)
            try:
                if run.mark:
                    sink.guardRun(run.mark)
                sink.sweep(ledger.known_handles(), self._over(token))
            except FencedError as taken:
                log.info("transactions under the former prefix %s are not swept: %s", prefix, taken)
            finally:
                sink.close()

    def _keep_or_void(self, token: int, claimed: bool) -> None:
        """P6: handles of a prepared batch all alive, or the batch is void and its others aborted, in that order.

        Where they are very many, a run that goes on looks at those that Spark is at; at all again before the decision.
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
            except AmbiguousOutcomeError:
                may_keep(token, record.batch, record.entry)(self._journal.load())  # else it was decided meanwhile
                raise
            body = {"prepared": record.batch, "run": token}
            self._journal.append(EntryKind.VOID, body, may_void(token, record.batch, record.entry))
            self._sink.discard(handles[record.batch])

    def _restore_hooks(self, token: int) -> None:
        """P8: the states of the newest decision go back to the hooks, once in every run."""
        checkpoints = self._journal.ledger.checkpoints
        newest = max(checkpoints, default=None)
        states = checkpoints[newest].hooks if newest is not None else {}
        for orphan in hooks.restore(self._settings.hooks, newest, states):
            log.warning("checkpoint %s holds a state of %s, which checkpointHooks does not name", newest, orphan)
        faults.reach("hooks.restored")
        self._journal.append(EntryKind.RESTORED, {"run": token, "checkpoint": newest}, must_own(token))

    def _sweep(self, token: int, ended: bool = False) -> None:
        """Abort what no unsettled entry names; what is over is said for stores whose aborts are not atomic."""
        self._sink.sweep(self._journal.ledger.known_handles(), self._over(token, ended))

    def _over(self, token: int, ended: bool = False) -> Epoch:
        """What nobody can decide any more."""
        ledger = self._journal.ledger
        query = ledger.identity(self._view.queryId)
        return Epoch(query, token + 1, 0) if ended else Epoch(query, token, ledger.settled + 1)

    # -- commit -----------------------------------------------------------------------------------------------------

    def commit(
        self, messages: Sequence[Acknowledgement | None], batch: int, origin: str = "", compare: bool = True
    ) -> None:
        """Decide the micro-batch, then commit it. *Called on the driver, once per micro-batch, in the commit process.*

        Parameters
        ----------
        messages : Sequence[Acknowledgement or None]
        batch : int
        origin : str
            Of a batch write: the streaming query in whose ``foreachBatch`` it runs.
        compare : bool
            Of a batch write: whether rows under a version that was written have to be those that were written.

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
            raise replaced_since_planned(batch)
        check_origin(ledger, origin)
        found = ledger.batches.get(batch)
        if found is None and batch <= ledger.accounted:  # a version whose record was forgotten long ago
            check_overtaken(ledger, acknowledged, batch)
            log.info("txnVersion %d was written before; nothing is written", batch)
        elif found is not None and found.checkpoint is not None:  # C2
            if self._view.gaps:
                self._check_written(found, acknowledged, token, compare)
            checkpoint = ledger.checkpoints.get(found.checkpoint)  # None: settled, and trimmed
            if checkpoint is not None and not checkpoint.settled:
                self._settlement.repair(checkpoint, found, acknowledged, token)
                self._settlement.settle(checkpoint.id, token)
                after = self._journal.ledger
                settled = checkpoint.id in after.checkpoints and after.checkpoints[checkpoint.id].settled
                replayed = after.replay is not None and batch < max(checkpoint.batches) and batch in after.batches
                if not settled and not (replayed and not any(part.lost for part in after.batches[batch].parts)):
                    raise RetriableError(
                        "REPAIR_LOST", f"a repair of checkpoint {checkpoint.id} was lost again: the next run repeats it"
                    )
        else:
            self._decide(acknowledged, batch, token, found, origin)
        self._sweep(token)  # C10

    def _check_written(
        self, found: BatchRecord, messages: Sequence[Acknowledgement], token: int, compare: bool
    ) -> None:
        try:
            check_written(found, messages, found.batch, compare)
        except FencedError:
            self._sweep(token)  # the abort that follows leaves a version alone that the journal has
            raise

    def _decide(
        self, messages: Sequence[Acknowledgement], batch: int, token: int, found: BatchRecord | None, origin: str
    ) -> None:
        drained = {message.drained for message in messages}
        if len(drained) > 1:
            raise ProtocolError(
                "MIXED_ACKNOWLEDGEMENTS", f"micro-batch {batch}: only some of its tasks report that they drained it"
            )
        if drained == {found is None}:  # C3, C4
            raise FencedError(
                "BATCH_TAKEN",
                f"micro-batch {batch} was {'prepared' if found else 'voided'} since its tasks were planned. Another process "
                "of this run was at work: start the query again",
                batch=batch,
            )
        pending = PendingCheckpoint(token, batch)
        for message in messages:
            if pending.acknowledge(message) is not AcknowledgeResult.SUCCESS:
                raise ProtocolError("DUPLICATE_PARTITION", f"micro-batch {batch}: partition {message.partition} twice")
        began = self._milliseconds()
        covered = self._journal.ledger.undecided()
        reason = self._look(batch, pending, covered)  # C5
        faults.reach("commit.looked")
        barriers = new_barriers(self._view.lines, self._view.previous)
        body = {
            "run": token,
            "batch": batch,
            "sources": self._view.sources,
            "log": self._view.text if found is None else "",  # else its `prepared` has it
            "writers": len(messages),
            "origin": origin,
            "parts": [part.to_json() for part in pending.parts],
            "barrier": max((barrier.timestamp for barrier in barriers), default=None),
            "began": began,
            "reason": reason.name if reason else "",
            "hooks": {},
        }
        covers = [record.batch for record in covered]
        judge = may_record(token, batch, found is not None, covers, self._view.gaps)
        if reason is None:
            if found is None:
                self._journal.append(EntryKind.PREPARED, body, judge)  # C7
                faults.reach("prepared.written")
            return
        context = hooks.HookContext(self._view.queryId, [*covers, *([] if found else [batch])], began)
        deadline = Deadline(self._settings.commit_seconds, self._clock)
        pause = RETRY_SECONDS
        while True:
            try:
                with hiding(self._settings.secrets):
                    states = hooks.trigger(self._settings.hooks, context)  # C6
                faults.reach("hooks.triggered")
                entry = self._journal.append(
                    EntryKind.DECIDED, {**body, "covers": covers, "hooks": states}, judge
                )  # C7
                break
            except (HookError, JournalError) as problem:
                if isinstance(problem, JournalError) and problem.condition != "JOURNAL_STORE_FAILED":
                    raise
                if deadline.passed():
                    self._decline(problem, reason, body, judge, found is None)
                    return
                log.warning("micro-batch %d: the checkpoint is declined for now, and tried again: %s", batch, problem)
            self._clock.sleep(min(pause, deadline.left()))
            pause = min(2 * pause, 5.0)
            self._look(batch, pending, covered)
        pending.finish()
        self._commit_decided(entry.number, token)

    def _commit_decided(self, identifier: int, token: int) -> None:
        faults.reach("decision.written")
        checkpoint = self._journal.ledger.checkpoints[identifier]
        if checkpoint.settled:
            return
        open_parts = [part for part in self._journal.ledger.parts_of(checkpoint) if part.open]
        if not self._settlement.commit(checkpoint, open_parts, recovering=False):  # C8
            raise RetriableError(
                "LOST_AFTER_DECISION",
                f"transactions of checkpoint {checkpoint.id} were lost after its decision: the next run repairs them",
                checkpoint=checkpoint.id,
            )
        self._settlement.finish(checkpoint, token)  # C9
        faults.reach("settled.written")

    def _look(self, batch: int, pending: PendingCheckpoint, covered: Sequence[BatchRecord]) -> ClosingReason | None:
        """C5: the handles that a decision would rest on are alive; returns why the micro-batch closes a checkpoint.

        Where it does not, only its own are looked at, and the oldest: how long that has to live is a reason to close.
        """
        reason = self._reason(len(covered) + (batch not in {record.batch for record in covered}))
        own = [part.handle for part in pending.parts if part.handle is not None]
        self._check_targets(own)
        earlier = [(r.batch, part.handles[-1]) for r in covered for part in r.parts if part.handles]
        passed = [number for number, _ in earlier if number <= self._view.committed]
        handles = [handle for _, handle in earlier] + own
        if reason is not None:
            self._settlement.look(batch, handles, passed)
            return reason
        oldest = [number for number, _ in earlier if number == earlier[0][0]]
        states = self._settlement.look(batch, handles[: len(oldest)] + own, passed[: len(oldest)])
        lifetime = newest_run(self._journal.ledger).lifetime
        left = min((state.seconds_left for state in states if state.seconds_left is not None), default=None)
        if lifetime is None or left is None or left > lifetime / 2:
            return None
        self._settlement.look(batch, handles, passed)
        return ClosingReason.AGE

    def _reason(self, batches: int) -> ClosingReason | None:
        """Why the micro-batch closes a checkpoint of so many, as far as Spark's logs and the journal say."""
        view = self._view
        if view.gaps:
            return ClosingReason.WRITE
        if self._journal.ledger.stopping:
            return ClosingReason.STOP
        barriers = new_barriers(view.lines, view.previous)
        if any(barrier.kind is BarrierKind.FINAL for barrier in barriers):
            return ClosingReason.FINAL
        if barriers:
            return ClosingReason.BARRIER
        if closes_checkpoint(view.lines, view.previous):
            same = view.previous is not None and view.sources == sources_digest(view.previous)
            return ClosingReason.NO_DATA if same else ClosingReason.OTHER_SOURCE
        if batches >= self._settings.max_batches:
            return ClosingReason.ENOUGH
        if view.oldest and view.batch - batches <= view.oldest + 1:
            return ClosingReason.RETAINED
        return ClosingReason.REQUEST if self._journal.ledger.request is not None else None

    def _check_targets(self, handles: Sequence[Mapping[str, Any]]) -> None:
        targets = self._sink.targets(handles)
        if self._view.gaps:
            check_topics(self._journal.ledger, targets)
        if targets:
            check_schedule(self._view, targets, None)

    def _decline(
        self,
        problem: HookError | JournalError,
        reason: ClosingReason,
        body: Mapping[str, Any],
        judge: Callable[[Ledger], None],
        unrecorded: bool,
    ) -> None:
        """C7 of a checkpoint that can't be decided: its micro-batch waits for the next one, where one is sure to come."""
        declined = len(self._journal.ledger.declined) + 1
        if declined > self._settings.tolerable or reason in (
            ClosingReason.FINAL,
            ClosingReason.STOP,
            ClosingReason.OTHER_SOURCE,
            ClosingReason.WRITE,
        ):
            raise problem
        if unrecorded:
            self._journal.append(EntryKind.PREPARED, body, judge)
            faults.reach("declined.prepared")
        failure = (
            CheckpointFailureReason.HOOK_FAILED
            if isinstance(problem, HookError)
            else CheckpointFailureReason.JOURNAL_REFUSED
        )
        body = {"run": body["run"], "batch": body["batch"], "reason": failure.name, "detail": str(problem)[:500]}
        self._journal.append(EntryKind.DECLINED, body, must_own(body["run"]))
        log.warning("micro-batch %d waits for the next checkpoint, %d in a row: %s", body["batch"], declined, problem)

    def _milliseconds(self) -> int:
        return int(self._clock.now() * 1000)

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
        except JournalError as problem:  # Spark would tell of it instead of what went wrong first
            if problem.condition != "JOURNAL_STORE_FAILED":
                raise
            log.warning("micro-batch %d is not aborted now, the next start sweeps it: %s", batch, problem)
            return
        faults.reach("abort.journalled")
        self._sink.discard([m.part.handle for m in messages if m is not None and m.part.handle is not None])  # A3
        self._sweep(token, ended=True)  # A4

    # -- ending -----------------------------------------------------------------------------------------------------

    def close(self, follows: int) -> int:
        """Commit what a query that does not run any more has prepared, and leave nothing open: its final checkpoint.

        *Called outside of Spark, when the query has stopped or its driver is gone.* The coordinator's `driver` is nobody
        else's, so that the claim fences what may still be at work for the query, and its view is
        `connector.location.offset_log.stopped_view`. Lost parts of a decision stay for the next start to write.

        Parameters
        ----------
        follows : int
            The run that is ended: a newer one is left alone.

        Returns
        -------
        int
            The run that it claimed, and ended.

        Raises
        ------
        RewindRequiredError, AmbiguousOutcomeError, LocationError, FencedError, RetriableError, StoreError, HookError
            As planning and commit do; what is prepared is left as it was.
        """
        ledger = self._journal.load()
        check_place(ledger, self._view)
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        check_prefix(ledger, self._settings.prefix)
        run = self._claim(follows)  # E1
        self._guard(run)
        check_account(self._journal.ledger, self._view)
        for checkpoint in self._journal.ledger.unsettled():
            self._settlement.settle(checkpoint.id, run.token)
        self._keep_or_void(run.token, True)
        self._sweep(run.token)
        faults.reach("recovery.swept")
        covered = self._journal.ledger.undecided()
        if covered:
            self._decide_prepared(covered, run.token)  # E2
        self._journal.append(EntryKind.STOPPED, {"run": run.token}, may_stop(run.token))  # E3
        self._sweep(run.token, ended=True)  # E4
        return run.token

    def _decide_prepared(self, covered: Sequence[BatchRecord], token: int) -> None:
        """E2: a checkpoint over what is prepared, closed by no micro-batch of its own."""
        last = covered[-1]
        handles = [(record.batch, part.handles[-1]) for record in covered for part in record.parts if part.handles]
        passed = [number for number, _ in handles if number <= self._view.committed]
        self._settlement.look(last.batch, [handle for _, handle in handles], passed)  # C5
        covers = [record.batch for record in covered]
        began = self._milliseconds()
        states = hooks.trigger(self._settings.hooks, hooks.HookContext(self._view.queryId, covers, began))  # C6
        body = {
            "run": token,
            "batch": last.batch,
            "sources": last.sources,
            "writers": last.writers,
            "origin": "",
            "parts": [],
            "barrier": None,
            "began": began,
            "reason": ClosingReason.STOP.name,
            "hooks": states,
            "covers": covers,
        }
        judge = may_record(token, last.batch, True, covers, self._view.gaps)
        entry = self._journal.append(EntryKind.DECIDED, body, judge)  # C7
        self._commit_decided(entry.number, token)  # C8, C9

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
