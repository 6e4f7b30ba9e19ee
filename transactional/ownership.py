"""Judges: functions that raise if the ledger forbids an entry, and the errors that they raise.

If another process takes the entry's number first, the journal applies that process's entry and calls the judge again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transactional.checkpoint import PartKey
from transactional.entries import RestoreBegun
from transactional.errors import FencedError, LocationError, ProtocolError, SupersededError
from transactional.ledger import Ledger, Moved, PartRecord, RunRecord

Judge = Callable[[Ledger], None]
"""A function that raises an error if the ledger forbids an entry."""


def newest_run(ledger: Ledger) -> RunRecord:
    """Return the newest run, which owns the location. Raise ProtocolError if the journal has no run."""
    if ledger.newest_run is None:
        raise ProtocolError("PROTOCOL_VIOLATED", reason="the journal has no run, so nothing was ever planned here")
    return ledger.newest_run


def superseded(token: int, ledger: Ledger) -> SupersededError:
    """Return the error for a run that is not the newest. `token` is 0 if the run has no token yet."""
    newest = newest_run(ledger)
    newer = f"run {newest.token} (driver {newest.driver}, {newest.ended or 'live'})"
    return SupersededError("RUN_SUPERSEDED", run=token or "not numbered yet", newer=newer)


def _concurrent(reason: str, **parameters: int) -> FencedError:
    """Return the error for a process that finds that another process of the same run has changed the journal."""
    return FencedError("CONCURRENT_COMMIT", reason=reason, **parameters)


def rewinding(ledger: Ledger) -> FencedError:
    """Return the error for a query that runs or starts during a rewind."""
    return FencedError("REWIND_NOT_DONE", rewind=ledger.rewinding.token if ledger.rewinding else 0)


def moved_on(moved: Moved) -> FencedError:
    """Return the error for a process that uses a location after the query was moved to another location."""
    return FencedError(
        "LOCATION_MOVED_ON",
        location=moved.location,
        entry=moved.entry,
        savepoint=moved.savepoint,
        checkpoint=moved.checkpoint,
    )


def unfinished(begun: RestoreBegun) -> LocationError:
    """Return the error for a process that runs or starts at a location whose restore is unfinished."""
    return LocationError(
        "RESTORE_UNFINISHED",
        savepoint=begun.savepoint,
        checkpoint=begun.checkpoint,
        origin=begun.origin,
        claim=begun.claim,
        location=begun.location,
    )


def must_be_at(position: int) -> Judge:
    """Return a check that the journal has not grown since an operator's command read it at `position`."""

    def judge(ledger: Ledger) -> None:
        if ledger.position != position:
            raise LocationError("LOCATION_BUSY", reason="another process has written to its journal", position=position)

    return judge


def must_have_started_last(ledger: Ledger, driver: str, started: int | None) -> None:
    """Raise if another driver has claimed a run, or a rewind was done, since Spark started this query (step P3).

    In that case, the offsets that Spark holds in memory may be outdated: the rewind may have deleted ``offsets/N``, or the
    other driver may have written it again with other offsets.
    """
    if started is None:
        return
    newest = ledger.newest_run
    if newest is not None and newest.token > started and newest.driver != driver:
        raise superseded(0, ledger)
    if ledger.rewound > started:
        newer = f"a rewind that finished after this query had started (journal entry {ledger.rewound})"
        raise SupersededError("RUN_SUPERSEDED", run="not numbered yet", newer=newer)


def must_own(token: int) -> Judge:
    """Return a check that the run with this token is the newest and has not ended.

    During a rewind, `token` must be the rewind's token, because only the rewind owns the location.
    """

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
            raise FencedError("RUN_ENDED", run=token, ended=f"journal entry `{newest.ended}`")

    return judge


def may_abort(token: int, batch: int) -> Judge:
    """Return a check that the run is the newest, and that the micro-batch is neither prepared nor decided."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        if batch in ledger.batches:
            raise _concurrent(f"micro-batch {batch} is already in the journal", batch=batch)

    return judge


def may_record(token: int, batch: int, prepared: bool, covers: Sequence[int], gaps: bool) -> Judge:
    """C7: return a check that the micro-batch may be recorded as prepared or decided.

    The run must be the newest, the journal must have all earlier micro-batches, and all decided checkpoints must be settled.
    The undecided micro-batches must still be those in `covers`. Another process may have changed them: if the query was
    restarted in the same driver, a planning or a commit of the previous start may still be running under the same run.

    Parameters
    ----------
    token : int
        The run's token.
    batch : int
        The number of the micro-batch.
    prepared : bool
        True if the micro-batch must already be in the journal as prepared; False if it must not be in the journal.
    covers : Sequence[int]
        The prepared, undecided micro-batches that the process has seen.
    gaps : bool
        True for batch writes, whose numbers may have gaps.
    """
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        taken = (batch in ledger.batches) is not prepared or covers != [record.batch for record in ledger.undecided()]
        follows = ledger.accounted == (batch if prepared else batch - 1) or (gaps and ledger.accounted < batch)
        overtakes = gaps and bool(ledger.voided) and batch not in ledger.voided  # the lost version has to come first
        if taken or not follows or overtakes or ledger.unsettled():
            prepared_now = [record.batch for record in ledger.undecided()]
            raise _concurrent(
                f"micro-batch {batch} can't be recorded: the journal ends at micro-batch {ledger.accounted}, and the prepared "
                f"micro-batches are {prepared_now}. When this process read the journal, they were {list(covers)}",
                batch=batch,
            )

    return judge


def may_settle(token: int, checkpoint: int, parts: Sequence[Mapping[str, Any]] = (), must_be: str = "") -> Judge:
    """Return a check that the run is the newest, the checkpoint is unsettled, and no part in `parts` has a newer handle.

    If a query is stopped in the middle of a commit and started again in the same session, two commit processes of one run
    can exist. If the handles were not compared, both would repair the same part.

    Parameters
    ----------
    token : int
        The run's token.
    checkpoint : int
        The checkpoint's id.
    parts : Sequence[Mapping[str, Any]]
        The parts that the entry judges or repairs, each with the index of the handle that was its newest.
    must_be : str
        The state that each of these parts must have: ``open`` or ``lost``.
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
            reason = f"checkpoint {checkpoint} was settled, repaired or voided in the meantime"
            raise _concurrent(reason, checkpoint=checkpoint)

    return judge


def _may_end(
    token: int, checkpoint: int, parts: Sequence[PartRecord], is_other: Callable[[PartRecord], bool], reason: str
) -> Judge:
    """Return a check that the run is the newest, the checkpoint is unsettled, and its parts are as when `parts` was read.

    No part may be one that `is_other` returns True for, and each part must have as many handles as in `parts`.
    """
    settle = may_settle(token, checkpoint)
    before = _handles(parts)

    def judge(ledger: Ledger) -> None:
        settle(ledger)
        found = ledger.parts_of(ledger.checkpoints[checkpoint])
        if any(is_other(part) for part in found) or _handles(found) != before:
            raise _concurrent(reason, checkpoint=checkpoint)

    return judge


def _handles(parts: Sequence[PartRecord]) -> dict[tuple[int, PartKey], int]:
    """Return how many handles each part has; a part without rows has none, and is left out."""
    return {(part.batch, part.key): len(part.handles) for part in parts if part.handles}


def may_finish(token: int, checkpoint: int, committed: Sequence[PartRecord]) -> Judge:
    """C9: return a check that the run is the newest, the checkpoint is unsettled, and all its rows are committed.

    `committed` are the checkpoint's parts, as the process had them when it committed their newest handles. No part may have
    been judged lost or have got another handle since then, because then another process is repairing the checkpoint.
    """
    reason = f"another process is repairing checkpoint {checkpoint}"
    return _may_end(token, checkpoint, committed, lambda part: part.lost, reason)


def may_void_checkpoint(token: int, checkpoint: int, judged: Sequence[PartRecord]) -> Judge:
    """P5: return a check that the checkpoint is unsettled, and that all its parts are as the process has judged them.

    A part that was open may be lost now, because this process has aborted all open parts.
    """
    reason = f"checkpoint {checkpoint} was repaired or resolved in the meantime"
    return _may_end(token, checkpoint, judged, lambda part: part.committed, reason)


def may_restore(token: int, checkpoint: int | None) -> Judge:
    """P8: return a check that the run's hooks are not restored yet, and that `checkpoint` is the newest decided one."""
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        if ledger.runs[token].restored is not None or max(ledger.checkpoints, default=None) != checkpoint:
            raise _concurrent(f"the hooks of run {token} were restored in the meantime")

    return judge


def may_stop(token: int) -> Judge:
    """Return a check that the run is the newest, that no micro-batch is undecided, and that no transaction is open.

    Lost parts of a decided checkpoint may remain. The next start of the query repairs them.
    """
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        undecided = ledger.undecided()
        unsettled = [found for found in ledger.unsettled() if any(part.open for part in ledger.parts_of(found))]
        if undecided or unsettled:
            raise _concurrent(
                f"run {token} can't end: prepared but undecided micro-batches: {[record.batch for record in undecided]}; "
                f"decided but unsettled checkpoints: {[checkpoint.id for checkpoint in unsettled]}",
                run=token,
            )

    return judge


def may_keep(token: int, batch: int, entry: int) -> Judge:
    """Return a check for keeping a prepared micro-batch.

    The check raises unless run `token` is the newest and has not ended, entry `entry` prepared the micro-batch, and the
    micro-batch is still undecided.
    """
    own = must_own(token)

    def judge(ledger: Ledger) -> None:
        own(ledger)
        found = ledger.batches.get(batch)
        if found is None or found.entry != entry or found.checkpoint is not None:
            raise _concurrent(f"micro-batch {batch} was voided or decided in the meantime", batch=batch)

    return judge


def may_void(token: int, batch: int, entry: int) -> Judge:
    """Return a check for voiding a prepared micro-batch.

    The check includes everything that `may_keep` checks. Also, the micro-batch must be the last one in the journal.
    """
    keep = may_keep(token, batch, entry)

    def judge(ledger: Ledger) -> None:
        keep(ledger)
        if ledger.accounted != batch:
            raise _concurrent(f"micro-batch {batch} is no longer the last one in the journal", batch=batch)

    return judge
