"""What of a journal goes into a savepoint, and how the journal of a restored one begins. Pure.

Both are a snapshot's body: the whole ledger, cut to one settled checkpoint.
"""

from __future__ import annotations

from transactional.entry import EntryKind
from transactional.errors import LocationError
from transactional.ledger import Ledger, Origin

__all__ = ["FAR_ABOVE", "begin_claimed", "begin_copy", "begins_at", "begins_far_above", "cut", "holds", "is_unused"]

FAR_ABOVE = 1_000_000
"""Numbers that a claimed journal leaves free above the savepoint's if the old journal can't be asked: ids of checkpoints and
tokens of runs differ by their numbers only, and a query would need months to come there."""


def cut(ledger: Ledger, checkpoint: int) -> Ledger:
    """Return the ledger as of a settled checkpoint: nothing unsettled, nothing prepared, nothing asked for.

    Parameters
    ----------
    ledger : Ledger
    checkpoint : int

    Raises
    ------
    LocationError
        ``CHECKPOINT_NOT_SETTLED``: it, or one before it, is not; or what is before it has to run again.
    """
    found = ledger.copy()
    chosen = found.checkpoints.get(checkpoint)
    last = max(chosen.batches) if chosen is not None else -1
    early = [record.batch for record in found.undecided() if record.batch <= last]
    open_ones = [each.id for each in found.unsettled() if each.id <= checkpoint]
    again = [batch for batch in found.voided if batch <= last]
    if chosen is None or open_ones or early or again or found.replay is not None:
        raise LocationError(
            "CHECKPOINT_NOT_SETTLED", checkpoint=checkpoint, unsettled=open_ones, batches=sorted([*early, *again])
        )
    found.checkpoints = {number: each for number, each in found.checkpoints.items() if number <= checkpoint}
    found.batches = {number: each for number, each in found.batches.items() if number <= last}
    found.logs = {number: text for number, text in found.logs.items() if number <= last}
    found.base = min(found.base, last)
    found.stop = None
    found.voided, found.declined = [], []
    found.rewinding, found.request, found.moved, found.restored = None, None, None, None
    return found


def begin_copy(saved: Ledger, location: str, savepoint: str, checkpoint: int, allowed: bool) -> Ledger:
    """Return how the journal of a copy begins: another query, which must never use a prefix of the first.

    Parameters
    ----------
    saved : Ledger
        `cut`.
    location : str
        The new location.
    savepoint : str
    checkpoint : int
    allowed : bool
        See `Origin`.
    """
    found = _begin(saved, location, savepoint, checkpoint, saved.position, False, allowed)
    found.originals = sorted({*found.originals, *(run.prefix for run in found.runs.values())})
    found.runs = {}
    found.query, found.identity_suffix = "", ""  # the engine gives it a new id, which the next run records
    return found


def begin_claimed(
    saved: Ledger, location: str, savepoint: str, checkpoint: int, allowed: bool, position: int
) -> Ledger:
    """Return how the journal begins if the query itself goes on.

    Parameters
    ----------
    saved, location, savepoint, checkpoint, allowed
        As in `begin_copy`.
    position : int
        See `begins_at`: nothing that was ever numbered comes back.
    """
    found = _begin(saved, location, savepoint, checkpoint, position, True, allowed)
    for run in found.runs.values():
        run.ended = run.ended or EntryKind.MOVED
    return found


def holds(ledger: Ledger, saved: Ledger, checkpoint: int) -> bool:
    """Return whether a journal holds the checkpoint of a savepoint still: the very one, not another with its number.

    Parameters
    ----------
    ledger : Ledger
        Of the old location.
    saved : Ledger
        `cut`.
    checkpoint : int
    """
    found, wanted = ledger.checkpoints.get(checkpoint), saved.checkpoints[checkpoint]
    return found is not None and (found.batches, found.time) == (wanted.batches, wanted.time)


def begins_at(moved: int, ledger: Ledger, saved: Ledger, checkpoint: int) -> int:
    """Return the number at which a claimed journal begins.

    It is that of ``moved``: every number was given in the old journal. But if that was put back from a backup which is older
    than the savepoint, it has forgotten numbers: then it is one far above those of the savepoint.

    Parameters
    ----------
    moved : int
        It follows ``rewind begun``, so that it is at least the second after the savepoint's.
    ledger, saved, checkpoint
        As in `holds`.
    """
    if holds(ledger, saved, checkpoint) and moved >= saved.position + 2:
        return moved
    return max(moved, saved.position + FAR_ABOVE)


def begins_far_above(position: int, now: int) -> int:
    """Return the number at which a claimed journal begins if no journal can be asked what was numbered.

    Of two such claims of one savepoint the later begins above what the earlier has numbered: an entry takes more than a
    millisecond.

    Parameters
    ----------
    position : int
        Of the savepoint.
    now : int
        Milliseconds since the epoch.
    """
    return position + FAR_ABOVE + now


def is_unused(ledger: Ledger) -> bool:
    """Return whether no query has begun at the location of a restored savepoint: nothing is lost with this journal.

    Restarts and requests that were journalled meanwhile do not count, nor does a run that a stop has claimed and ended.
    """
    restored = ledger.restored
    if restored is None or ledger.moved is not None or any(batch > restored.batch for batch in ledger.batches):
        return False
    return all(run.ended == EntryKind.STOPPED for run in ledger.runs.values() if run.token > restored.position)


def _begin(
    saved: Ledger, location: str, savepoint: str, checkpoint: int, position: int, claim: bool, allowed: bool
) -> Ledger:
    found = saved.copy()
    batch = max(found.checkpoints[checkpoint].batches)
    found.restored = Origin(savepoint, saved.location, checkpoint, batch, position, claim, allowed)
    found.location, found.position = location, position
    found.accept_store()  # what was committed after the savepoint is written again, as the person who restored it was warned
    return found
