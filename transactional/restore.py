"""The journal of a savepoint, the first entries of a restored one, and when the origin of a claim may be closed. Pure.

A restored journal is *closed* from its first entry, `restoring`, to its second, `opened`. Of a claim, `moved` in the origin's
journal comes between the two: it is the only point at which the query changes its location.
"""

from __future__ import annotations

from collections.abc import Callable

from transactional.errors import LocationError
from transactional.ledger import Ledger
from transactional.ownership import moved_on

__all__ = ["FAR_ABOVE", "begins_at", "begins_far_above", "cut", "may_move"]

FAR_ABOVE = 1_000_000
"""Numbers that a claimed journal leaves free above the savepoint's if the origin's journal can't be asked: checkpoints and runs
are distinguished by their numbers, and it would take a query months to come there."""


def cut(ledger: Ledger, checkpoint: int) -> Ledger:
    """Return the ledger as of a settled checkpoint: nothing unsettled, nothing prepared, nothing asked for."""
    found = ledger.copy()
    chosen = found.checkpoints.get(checkpoint)
    last = max(chosen.batches) if chosen is not None else -1
    early = [record.batch for record in found.undecided() if record.batch <= last]
    open_ones = [each.id for each in found.unsettled() if each.id <= checkpoint]
    again = [batch for batch in found.voided if batch <= last]
    if chosen is None or open_ones or early or again:
        raise LocationError(
            "CHECKPOINT_NOT_SETTLED", checkpoint=checkpoint, unsettled=open_ones, batches=sorted([*early, *again])
        )
    found.checkpoints = {number: each for number, each in found.checkpoints.items() if number <= checkpoint}
    found.batches = {number: each for number, each in found.batches.items() if number <= last}
    found.logs = {number: text for number, text in found.logs.items() if number <= last}
    found.base = min(found.base, last)
    found.stop = None
    found.voided, found.declined, found.replay = [], [], None
    found.rewinding, found.request, found.moved, found.restored = None, None, None, None
    return found


def may_move(saved: Ledger, savepoint: str, checkpoint: int, location: str) -> Callable[[Ledger], None]:
    """Return the judge of `moved`: the query has stopped, nothing of it is open, and the savepoint's checkpoint is its last.

    What a rewind lets run again is no objection: it writes no row, and the savepoint holds the state after it.
    """

    def judge(ledger: Ledger) -> None:
        if ledger.moved is not None:
            raise moved_on(ledger.moved)
        run = ledger.newest_run
        newest = ledger.completed
        wanted = saved.checkpoints[checkpoint]
        if ledger.rewinding is not None:
            why = f"a rewind was begun there (journal entry {ledger.rewinding.token}) and is not done"
        elif ledger.unsettled() or ledger.undecided():
            batches = [batch for each in ledger.unsettled() for batch in each.batches]
            batches += [record.batch for record in ledger.undecided()]
            why = f"micro-batches {sorted(batches)} are not settled there"
        elif run is not None and run.ended is None:
            why = f"its run {run.token} has not ended"
        elif newest is None or (newest.id, newest.time) != (checkpoint, wanted.time):
            why = f"its last checkpoint is {newest.id if newest else 'unknown'}, but the savepoint holds {checkpoint}"
        elif ledger.accounted > max(wanted.batches):  # adopted: what is in no checkpoint counts as handled
            why = (
                f"the savepoint ends at micro-batch {max(wanted.batches)}, but the location goes to {ledger.accounted}"
            )
        else:
            return
        raise LocationError(
            "ORIGIN_NOT_AT_SAVEPOINT",
            origin=ledger.location,
            checkpoint=checkpoint,
            why=why,
            location=location,
            savepoint=savepoint,
        )

    return judge


def begins_at(moved: int, saved: Ledger) -> int:
    """Return the number at which a claimed journal goes on: none that was given in the origin's journal is above it."""
    return max(moved, saved.position)


def begins_far_above(position: int, now: int) -> int:
    """Return the number at which a claimed journal goes on if no journal can be read for the numbers taken.

    Of two such claims of one savepoint the later begins above what the earlier has numbered: an entry takes more than a
    millisecond.
    """
    return position + FAR_ABOVE + now
