"""Judges: the conditions on the ledger under which an entry binds. A create is judged again at every number that it tries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transactional.entries import RestoreBegun
from transactional.errors import FencedError, LocationError, ProtocolError, SupersededError
from transactional.ledger import Ledger, Moved, RunRecord

__all__ = [
    "Judge",
    "may_abort",
    "may_keep",
    "may_record",
    "may_settle",
    "may_stop",
    "may_void",
    "moved_on",
    "must_be_at",
    "must_have_started_last",
    "must_own",
    "newest_run",
    "rewinding",
    "superseded",
    "unfinished",
]

Judge = Callable[[Ledger], None]
"""Raises if the ledger forbids the entry."""


def newest_run(ledger: Ledger) -> RunRecord:
    """Return the run that owns the location."""
    if ledger.newest_run is None:
        raise ProtocolError("PROTOCOL_VIOLATED", reason="the journal has no run, so nothing was ever planned here")
    return ledger.newest_run


def superseded(token: int, ledger: Ledger) -> SupersededError:
    """Make the error of a run that is not the newest; 0 for a run that has no token yet."""
    newest = newest_run(ledger)
    newer = f"run {newest.token} (driver {newest.driver}, {newest.ended or 'live'})"
    return SupersededError("RUN_SUPERSEDED", run=token or "not numbered yet", newer=newer)


def _concurrent(reason: str, **parameters: int) -> FencedError:
    """Make the error of a process that finds the journal changed by another process of its run."""
    return FencedError("CONCURRENT_COMMIT", reason=reason, **parameters)


def rewinding(ledger: Ledger) -> FencedError:
    """Make the error of a query that runs, or starts, while it is rewound."""
    return FencedError("REWIND_NOT_DONE", rewind=ledger.rewinding.token if ledger.rewinding else 0)


def moved_on(moved: Moved) -> FencedError:
    """Make the error of a process that goes on at a location that its query was moved away from."""
    return FencedError(
        "LOCATION_MOVED_ON",
        location=moved.location,
        entry=moved.entry,
        savepoint=moved.savepoint,
        checkpoint=moved.checkpoint,
    )


def unfinished(begun: RestoreBegun) -> LocationError:
    """Make the error of a process that runs, or starts, at a location whose restore is unfinished."""
    return LocationError(
        "RESTORE_UNFINISHED",
        savepoint=begun.savepoint,
        checkpoint=begun.checkpoint,
        origin=begun.origin,
        claim=begun.claim,
        location=begun.location,
    )


def must_be_at(position: int) -> Judge:
    """Require that the journal has not grown since an operator read it."""

    def judge(ledger: Ledger) -> None:
        if ledger.position != position:
            raise LocationError("LOCATION_BUSY", reason="another process has added to its journal", position=position)

    return judge


def must_have_started_last(ledger: Ledger, driver: str, started: int | None) -> None:
    """P3: require that no other driver has claimed a run, and no rewind was done, since Spark has started this query.

    What Spark holds of ``offsets/N`` in memory is stale then: a rewind may have deleted the file, and the other driver may
    have written its own, with other ranges.
    """
    if started is None:
        return
    newest = ledger.newest_run
    if newest is not None and newest.token > started and newest.driver != driver:
        raise superseded(0, ledger)
    if ledger.rewound > started:
        newer = f"a rewind that was done after this query was started (journal entry {ledger.rewound})"
        raise SupersededError("RUN_SUPERSEDED", run="not numbered yet", newer=newer)


def must_own(token: int) -> Judge:
    """Require that the run is the newest and not ended; while the query is rewound, only the rewind owns the location."""

    def judge(ledger: Ledger) -> None:
        if ledger.moved is not None:
            raise moved_on(ledger.moved)
        if ledger.rewinding is not None:
            if ledger.rewinding.token != token:
                raise rewinding(ledger)
            return
        newest = newest_run(ledger)
        if newest.token != token:
            raise superseded(token, ledger)
        if newest.ended:
            raise FencedError("RUN_ENDED", run=token, ended=newest.ended)

    return judge


def may_abort(token: int, batch: int) -> Judge:
    """Require that the run is the newest, and the micro-batch neither prepared nor decided."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        if batch in ledger.batches:
            raise _concurrent(f"micro-batch {batch} is in the journal already", batch=batch)

    return judge


def may_record(token: int, batch: int, prepared: bool, covers: Sequence[int], gaps: bool) -> Judge:
    """C7: require that the run is the newest, all before the micro-batch is accounted for, and nothing waits to be settled.

    A planning or a commit of a former start of the query, in the same driver and so of the same run, may go on meanwhile:
    it can void what this micro-batch follows, or decide what it was to follow.
    """
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        taken = (batch in ledger.batches) is not prepared or covers != [record.batch for record in ledger.undecided()]
        follows = ledger.accounted == (batch if prepared else batch - 1) or (gaps and ledger.accounted < batch)
        if taken or not follows or ledger.unsettled():
            prepared_now = [record.batch for record in ledger.undecided()]
            raise _concurrent(
                f"micro-batch {batch} can't be recorded: the journal ends at micro-batch {ledger.accounted}, and its prepared "
                f"micro-batches are {prepared_now} instead of {list(covers)}",
                batch=batch,
            )

    return judge


def may_settle(token: int, checkpoint: int, parts: Sequence[Mapping[str, Any]] = (), must_be: str = "") -> Judge:
    """Require that the run is the newest, the checkpoint unsettled, and each named handle still the last of its part.

    Two commit processes of one run can meet here: a query that is stopped in the middle of a commit and started again in
    its session. Without the last condition both would repair one part.
    """
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        found = ledger.checkpoints.get(checkpoint)
        taken = found is None or found.settled
        for part in () if taken else parts:
            record = ledger.part_of(part)
            taken |= len(record.handles) - 1 != part["handle"] or not getattr(record, must_be)
        if taken:
            reason = f"checkpoint {checkpoint} was settled, repaired or voided meanwhile"
            raise _concurrent(reason, checkpoint=checkpoint)

    return judge


def may_stop(token: int) -> Judge:
    """Require that the run is the newest, and that nothing in the journal is open but lost parts of a decision."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        undecided = ledger.undecided()
        unsettled = [found for found in ledger.unsettled() if any(part.open for part in ledger.parts_of(found))]
        if undecided or unsettled:
            raise _concurrent(
                f"run {token} can't end, as micro-batches {[record.batch for record in undecided]} are prepared and undecided, "
                f"and checkpoints {[checkpoint.id for checkpoint in unsettled]} decided and not settled",
                run=token,
            )

    return judge


def may_keep(token: int, batch: int, entry: int) -> Judge:
    """Require that the run is the newest, and the micro-batch still prepared by this very entry, and not decided."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        found = ledger.batches.get(batch)
        if found is None or found.entry != entry or found.checkpoint is not None:
            raise _concurrent(f"micro-batch {batch} was voided or decided meanwhile", batch=batch)

    return judge


def may_void(token: int, batch: int, entry: int) -> Judge:
    """Require what `may_keep` requires, and that the micro-batch is the last."""
    keep = may_keep(token, batch, entry)

    def judge(ledger: Ledger) -> None:
        keep(ledger)
        if ledger.accounted != batch:
            raise _concurrent(f"micro-batch {batch} is not the last any more", batch=batch)

    return judge
