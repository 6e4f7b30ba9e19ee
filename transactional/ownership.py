"""Judges: what must be true of the ledger for an entry to bind. Every create is judged anew at every number it tries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transactional.errors import FencedError, LocationError, ProtocolError
from transactional.ledger import Ledger, RunRecord

__all__ = [
    "Judge",
    "may_abort",
    "may_keep",
    "may_record",
    "may_settle",
    "may_stop",
    "may_void",
    "moved_on",
    "must_own",
    "newest_run",
    "rewinding",
    "superseded",
    "unfinished",
]

Judge = Callable[[Ledger], None]
"""Raises where the ledger forbids the entry."""


def newest_run(ledger: Ledger) -> RunRecord:
    """The run that owns the location.

    Raises
    ------
    ProtocolError
        Nobody ever planned here.
    """
    if ledger.newest_run is None:
        raise ProtocolError("NO_RUN", "the journal holds no run: planning never ran here")
    return ledger.newest_run


def superseded(token: int, ledger: Ledger) -> FencedError:
    """The error of a run that is not the newest; 0 for a run that has no token yet."""
    newest = newest_run(ledger)
    return FencedError(
        "RUN_SUPERSEDED",
        f"run {token or 'of this driver'} is superseded by run {newest.token} (driver {newest.driver}, "
        f"{newest.ended or 'live'}): this query stops and touches nothing. Start it again only if the other is gone",
        run=token,
        newer=newest.token,
    )


def rewinding(ledger: Ledger) -> FencedError:
    """Return the error of a query that runs, or starts, while it is rewound."""
    token = ledger.rewinding.token if ledger.rewinding else 0
    return FencedError(
        "REWIND_NOT_DONE",
        f"a rewind of this query was begun (journal entry {token}) and is not done, and Spark may have read its logs in "
        "between: this query stops and touches nothing. `barrier rewind LOCATION --resume` finishes it; then start it again",
        rewind=token,
    )


def moved_on(ledger: Ledger) -> FencedError:
    """Return the error of whatever still runs, or starts, where a query was moved away."""
    moved = ledger.moved
    assert moved is not None
    return FencedError(
        "LOCATION_MOVED_ON",
        f"the query was moved to {moved.location} (`barrier restore --claim`, journal entry {moved.entry}): nothing goes on at "
        f"this location, and nothing was touched. Start it there. If that location refuses it as unfinished, first run "
        f"`barrier restore SAVEPOINT {moved.location} --claim` again, with the savepoint {moved.savepoint} (of checkpoint "
        f"{moved.checkpoint}; `barrier savepoint list` shows it). For a second query with this state, restore a savepoint with "
        "--no-claim",
        location=moved.location,
        entry=moved.entry,
    )


def unfinished(ledger: Ledger) -> LocationError:
    """Return the error of whatever runs, or starts, at a location that a restore has begun and not opened."""
    restoring = ledger.restoring
    assert restoring is not None
    return LocationError(
        "RESTORE_UNFINISHED",
        f"the restore of the savepoint {restoring.savepoint} (checkpoint {restoring.checkpoint} of {restoring.origin}) to this "
        f"location is unfinished: run the same command again (`barrier restore SAVEPOINT {restoring.location} "
        f"{'--claim' if restoring.claim else '--no-claim'}`). Nothing was touched",
        location=restoring.location,
        savepoint=restoring.savepoint,
    )


def must_own(token: int) -> Judge:
    """The run is the newest and not ended; while the query is rewound, only the rewind owns the location."""

    def judge(ledger: Ledger) -> None:
        if ledger.moved is not None:
            raise moved_on(ledger)
        if ledger.rewinding is not None:
            if ledger.rewinding.token != token:
                raise rewinding(ledger)
            return
        newest = newest_run(ledger)
        if newest.token != token:
            raise superseded(token, ledger)
        if newest.ended:
            raise FencedError("RUN_ENDED", f"run {token} has ended ({newest.ended}): start the query again", run=token)

    return judge


def may_abort(token: int, batch: int) -> Judge:
    """The run is the newest, and the micro-batch neither prepared nor decided."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        if batch in ledger.batches:
            raise FencedError("BATCH_TAKEN", f"micro-batch {batch} is in the journal already", batch=batch)

    return judge


def may_record(token: int, batch: int, prepared: bool, covers: Sequence[int], gaps: bool) -> Judge:
    """C7: the run is the newest, everything before the micro-batch is accounted for, and nothing waits to be settled.

    A planning or a commit of a former start of the query, in the same driver and so of the same run, may go on meanwhile:
    it can void what this micro-batch follows, or decide what it was to follow.

    Parameters
    ----------
    prepared : bool
        Whether the journal holds the micro-batch as prepared.
    covers : Sequence[int]
        Prepared micro-batches, as the commit has found them.
    gaps : bool
        Whether numbers may be left out.
    """
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        taken = (batch in ledger.batches) is not prepared or covers != [record.batch for record in ledger.undecided()]
        follows = ledger.accounted == (batch if prepared else batch - 1) or (gaps and ledger.accounted < batch)
        if taken or not follows or ledger.unsettled():
            raise FencedError(
                "BATCH_TAKEN",
                f"micro-batch {batch} can't be recorded: the journal accounts for micro-batches up to {ledger.accounted}, "
                f"of which {[record.batch for record in ledger.undecided()]} are prepared; it was {list(covers)}. Another "
                "process of this run was at work: start the query again",
                batch=batch,
            )

    return judge


def may_settle(token: int, checkpoint: int, parts: Sequence[Mapping[str, Any]] = (), must_be: str = "") -> Judge:
    """The run is the newest, the checkpoint unsettled, and each named handle the last of its part still.

    Two commit processes of one run can meet here: a query that is stopped in the middle of a commit and started again in
    its session. Without the last condition both would repair one part.
    """
    own = must_own(token)

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


def may_stop(token: int) -> Judge:
    """The run is the newest, and no transaction that the journal knows is open: what is left of a decision is lost parts."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        undecided = ledger.undecided()
        unsettled = [found for found in ledger.unsettled() if any(part.open for part in ledger.parts_of(found))]
        if undecided or unsettled:
            raise FencedError(
                "NOT_COMMITTED",
                f"run {token} does not end here: micro-batches {[record.batch for record in undecided]} are prepared and not "
                f"decided, checkpoints {[checkpoint.id for checkpoint in unsettled]} are decided and not settled",
                run=token,
            )

    return judge


def may_keep(token: int, batch: int, entry: int) -> Judge:
    """The run is the newest, and the micro-batch is prepared by that very entry still, and not decided."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        found = ledger.batches.get(batch)
        if found is None or found.entry != entry or found.checkpoint is not None:
            raise FencedError("BATCH_TAKEN", f"micro-batch {batch} was voided or decided by somebody else", batch=batch)

    return judge


def may_void(token: int, batch: int, entry: int) -> Judge:
    """As `may_keep`, and the micro-batch is the last."""
    keep = may_keep(token, batch, entry)

    def judge(ledger: Ledger) -> None:
        keep(ledger)
        if ledger.accounted != batch:
            raise FencedError("BATCH_TAKEN", f"micro-batch {batch} is not the last any more", batch=batch)

    return judge
