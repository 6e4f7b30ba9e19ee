"""The progress of a query according to its journal, and the error of a store that holds more.

A checkpoint location that was put back from an older copy is consistent with itself. A store that has committed what the
journal does not know is the only witness, and it is asked before a new run begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.errors import LocationError, StoreError
from transactional.ledger import Ledger, RunRecord
from transactional.transaction import ONE

__all__ = ["Handle", "History", "RunMark", "compared", "history_of", "must_hold", "put_back"]

Handle = Mapping[str, Any]
RunMark = Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """The history of a query in its journal when a new run is about to claim it; see `TwoPhaseCommitSink.checkHistory`.

    Parameters
    ----------
    queryId : str
        As in `TransactionContext`.
    position : int
        Of the journal: no checkpoint that it ever decided has a higher id.
    binding : bool
        False if what the store holds is to be reported and not judged: an operator has accepted the location as it is
        (restore, resolve) since the query last ran here, on this store and under this prefix.
    seen : Mapping[str, Any] or None
        What `checkHistory` returned for the newest run; None if that run did not call it. Empty if none ran: a store that
        holds something of the query was written by a run that the journal has forgotten.
    mark : RunMark or None
        What `guardRun` returned for the newest run; None if that was not recorded, or not for an earlier run: a driver that
        stood still in between may call it at any time.
    late : Sequence[RunMark]
        All recorded ones: a driver that stood still may have called `guardRun` after the newest run has.
    stamp : int
        The highest `stamp` of a checkpoint.
    newest : int
        The newest checkpoint with rows that was committed to this store, under whatever prefix; 0 if none was, or an operator
        has accepted the store as it is since.
    former : int
        If none was: the newest that was committed to the newest run's store. A copy of that one has to hold it.
    handles : Sequence[Handle]
        Decided ones whose checkpoint is not settled: any of them may be committed, or not.
    routes : Mapping[str, History]
        Of a sink that is several (`TwoPhaseCommitSink.routes`): the history of each.
    """

    queryId: str
    position: int
    binding: bool
    seen: Mapping[str, Any] | None = None
    mark: RunMark | None = None
    stamp: int = 0
    handles: Sequence[Handle] = ()
    late: Sequence[RunMark] = ()
    newest: int = 0
    former: int = 0
    routes: Mapping[str, History] = field(default_factory=dict)


def history_of(
    ledger: Ledger,
    queryId: str,
    sink: str,
    prefix: str,
    identity: Mapping[str, str],
    routes: Sequence[str] = ONE,
) -> History:
    """Return the history in a journal, for a run that is about to be claimed.

    Parameters
    ----------
    ledger : Ledger
    queryId : str
        As in `TransactionContext`.
    sink, prefix, identity, routes
        Of the new run. Of a run on another store or under another prefix only what it has committed proves something here.
    """
    asked = RunRecord(0, "", "", sink, "", prefix, dict(identity))
    found = {route: _history(ledger, queryId, asked, route) for route in {"", *routes}}
    whole = found.pop("")
    return replace(whole, routes=found)


def _history(ledger: Ledger, queryId: str, asked: RunRecord, route: str) -> History:
    key = asked.store_key(route)
    runs = [run for _, run in sorted(ledger.runs.items()) if run.store_key(route) == key]
    newest = runs[-1] if runs else None
    marked = newest is not None and all(run.mark is not None for run in runs)
    unaccepted = not ledger.position or (bool(ledger.runs) and all(run.binding for run in ledger.runs.values()))
    known, last = ledger.newest_at(asked, route), ledger.newest_run
    former = 0
    if not known and last is not None and last.sink == asked.sink:  # the store may be a copy of the newest run's
        former = ledger.newest_at(last, route)
    unsettled = [part for found in ledger.unsettled() for part in ledger.parts_of(found)]

    def of_route(kept: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return kept.get(route) if kept is not None and route else kept

    return History(
        queryId,
        ledger.position,
        newest.binding if newest is not None else unaccepted,
        of_route(newest.seen) if newest is not None else {},
        of_route(newest.mark) if newest is not None and marked else None,
        ledger.stamps.get(route, 0) if route else ledger.stamp,
        [handle for part in unsettled if part.route == route or not route for handle in part.handles],
        [mark for run in runs for each in (*run.marks, run.mark) if (mark := of_route(each))],
        known,
        former,
    )


def compared(history: History, held: int | None, store: str) -> Mapping[str, Any]:
    """Compare the newest checkpoint that a store holds with the journal, in both directions; return it, to be recorded.

    Parameters
    ----------
    history : History
    held : int or None
        As `TwoPhaseCommitSink.newestCheckpoint` returned it.
    store : str
        The store, for a message.

    Raises
    ------
    LocationError
        ``LOCATION_PUT_BACK``
    StoreError
        ``STORE_WENT_BACK``
    """
    if held is None:
        return {}
    seen = history.seen if history.binding else None
    if seen is not None and held > max(history.position, seen.get("checkpoint", 0)):
        raise put_back(f"{store} holds checkpoint {held} of the query")
    must_hold(store, held, history.newest)
    if held:  # at another address, so it is a copy of the former store
        must_hold(store, held, history.former)
    return {"checkpoint": held}


def must_hold(store: str, held: int, known: int) -> None:
    """Check that a store holds the newest checkpoint that the journal has settled there.

    Raises
    ------
    StoreError
        ``STORE_WENT_BACK``
    """
    if held < known:
        raise StoreError("STORE_WENT_BACK", store=store, held=held, known=known)


def put_back(evidence: str) -> LocationError:
    """Make the error of a store that holds more of a query than the query's journal knows.

    Parameters
    ----------
    evidence : str
        A clause that describes what the store holds.
    """
    return LocationError("LOCATION_PUT_BACK", evidence=evidence)
