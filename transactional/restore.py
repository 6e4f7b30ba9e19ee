"""Pure functions for restoring a savepoint: they cut the ledger, number the new journal, and check the entry `moved`.

The first entry of a restored journal is `restoring`. No query may start at the new location until the second entry,
`opened`. If the query itself moves (a claim), the journal at the old location gets the entry `moved` before that. Only
this entry moves the query.
"""

from __future__ import annotations

from collections.abc import Callable

from transactional.errors import LocationError
from transactional.ledger import Ledger
from transactional.ownership import moved_on

FAR_ABOVE = 1_000_000
"""The gap in the entry numbers of a claimed journal, if the origin's journal can't be read.

Checkpoints and runs are identified by these numbers, so no number of the origin may be used again. A query needs months to
write that many entries.
"""


def _last_settled_by(ledger: Ledger, checkpoint: int) -> int:
    """Return the last micro-batch of a checkpoint. Raise if the checkpoint or an earlier micro-batch is not settled."""
    chosen = ledger.checkpoints.get(checkpoint)
    last = max(chosen.batches) if chosen is not None else -1
    early = [record.batch for record in ledger.undecided() if record.batch <= last]
    open_ones = [each.id for each in ledger.unsettled() if each.id <= checkpoint]
    again = [batch for batch in ledger.voided if batch <= last]
    if chosen is None or open_ones or early or again:
        raise LocationError(
            "CHECKPOINT_NOT_SETTLED", checkpoint=checkpoint, unsettled=open_ones, batches=sorted([*early, *again])
        )
    return last


def cut(ledger: Ledger, checkpoint: int) -> Ledger:
    """Return the ledger as it was at a settled checkpoint, without later records and without open requests.

    Raises
    ------
    LocationError
        ``CHECKPOINT_NOT_SETTLED``: the checkpoint or a micro-batch before it is not settled.
    """
    found = ledger.copy()
    last = _last_settled_by(found, checkpoint)
    found.checkpoints = {number: each for number, each in found.checkpoints.items() if number <= checkpoint}
    found.batches = {number: each for number, each in found.batches.items() if number <= last}
    found.logs = {number: text for number, text in found.logs.items() if number <= last}
    found.base = min(found.base, last)
    found.stop = None
    found.voided, found.declined, found.replay = [], [], None
    found.rewinding, found.request, found.moved, found.restored = None, None, None, None
    return found


def may_move(saved: Ledger, savepoint: str, checkpoint: int, location: str) -> Callable[[Ledger], None]:
    """Return a check for the entry `moved`: the origin's query has settled everything, and has stopped at the savepoint.

    Micro-batches that still have to run again after a rewind are ignored: they write no rows, and the savepoint already
    has the state after them.

    Parameters
    ----------
    saved : Ledger
        The ledger of the savepoint.
    savepoint : str
        The savepoint's id.
    checkpoint : int
        The savepoint's checkpoint.
    location : str
        The new location.
    """

    def judge(ledger: Ledger) -> None:
        if ledger.moved is not None:
            raise moved_on(ledger.moved)
        run = ledger.newest_run
        newest = ledger.completed
        wanted = saved.checkpoints[checkpoint]
        if ledger.rewinding is not None:
            why = f"a rewind was started there (journal entry {ledger.rewinding.token}) and has not finished"
        elif ledger.unsettled() or ledger.undecided():
            batches = [batch for each in ledger.unsettled() for batch in each.batches]
            batches += [record.batch for record in ledger.undecided()]
            why = f"micro-batches {sorted(batches)} are not settled there"
        elif run is not None and run.ended is None:
            why = f"the query's run {run.token} has not ended there"
        elif newest is None or (newest.id, newest.time) != (checkpoint, wanted.time):
            why = (
                f"the last checkpoint there is {newest.id if newest else 'unknown'}, but the savepoint has {checkpoint}"
            )
        elif ledger.accounted > max(wanted.batches):  # adopted: micro-batches without a checkpoint count as done
            why = (
                f"the savepoint ends at micro-batch {max(wanted.batches)}, but the location ends at {ledger.accounted}"
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
    """Return the number from which a claimed journal continues: at least as high as every number in the origin's journal.

    `moved` is the number of the `moved` entry in the origin's journal, and `saved` is the ledger of the savepoint.
    """
    return max(moved, saved.position)


def begins_far_above(position: int, now: int) -> int:
    """Return the number from which a claimed journal continues if the origin's journal can't be read.

    `position` is the number of the savepoint's last entry, and `now` is the time in milliseconds since the epoch.
    Writing an entry takes more than a millisecond, so a later claim of the same savepoint begins above every number
    that an earlier claim has used.
    """
    return position + FAR_ABOVE + now
