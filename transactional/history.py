"""The progress of a query according to its journal, and the error of a store that holds more.

A checkpoint location that was put back from an older copy is consistent with itself. A store that has committed what the
journal does not know is the only witness, and it is asked before a new run begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.errors import PutBackError, StoreError
from transactional.ledger import Ledger, RunRecord
from transactional.transaction import ONE

__all__ = ["Handle", "History", "RunMark", "compared", "history_of", "must_hold"]

Handle = Mapping[str, Any]
RunMark = Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """A query's past according to its journal, before a new run begins; `KeepsEvidence.checkHistory` gets it.

    Parameters
    ----------
    queryId : str
        As in `TransactionContext`.
    position : int
        The number of the newest journal entry. No checkpoint that the journal ever decided has a higher id.
    binding : bool
        False if the sink should report the state of the store but not raise: since the query last ran on this store under
        this prefix, an operator has accepted the location as it is (restore, resolve).
    seen : Mapping[str, Any] or None
        The value that `checkHistory` returned for the newest run; None if that run did not call it. Empty if the journal has
        no run: if the store holds data of the query all the same, the journal is an older copy.
    mark : Mapping[str, Any] or None
        The value that `guardRun` returned for the newest run. None if it was not recorded for every run so far: a driver
        that was paused may still call `guardRun` at any time.
    late : Sequence[Mapping[str, Any]]
        All recorded marks. A driver that was paused may have called `guardRun` after the newest run did.
    stamp : int
        The highest `KeepsEvidence.stamp` of all checkpoints.
    newest : int
        The id of the newest checkpoint with rows that was committed to this store, under any prefix. 0 if there is none, or if
        an operator has accepted the store as it is since then.
    former : int
        If `newest` is 0: the newest checkpoint that was committed to the newest run's store. If this store is a copy of that
        one, it has to hold this checkpoint.
    handles : Sequence[Mapping[str, Any]]
        Handles of decided checkpoints that are not settled. Each of them may be committed or not.
    routes : Mapping[str, History]
        The history of each route, for a sink that combines several (`Routes`).
    """

    queryId: str
    position: int
    binding: bool
    seen: Mapping[str, Any] | None = None
    mark: Mapping[str, Any] | None = None
    stamp: int = 0
    handles: Sequence[Mapping[str, Any]] = ()
    late: Sequence[Mapping[str, Any]] = ()
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
    unsettled = [part for found in ledger.unsettled() for part in ledger.parts_of(found)]
    known, last = ledger.newest_at(asked, route), ledger.newest_run
    is_copy = not known and last is not None and last.sink == asked.sink  # of the newest run's store, perhaps
    history = History(
        queryId,
        ledger.position,
        binding=not ledger.position or (bool(ledger.runs) and all(run.binding for run in ledger.runs.values())),
        seen={},
        stamp=ledger.stamps.get(route, 0) if route else ledger.stamp,
        handles=[handle for part in unsettled if not route or part.route == route for handle in part.handles],
        newest=known,
        former=ledger.newest_at(last, route) if is_copy and last is not None else 0,
    )
    if not runs:
        return history
    newest, marked = runs[-1], all(run.mark is not None for run in runs)

    def of_route(kept: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return kept.get(route) if kept is not None and route else kept

    return replace(
        history,
        binding=newest.binding,
        seen=of_route(newest.seen),
        mark=of_route(newest.mark) if marked else None,
        late=[mark for run in runs for each in (*run.marks, run.mark) if (mark := of_route(each))],
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
        raise PutBackError("LOCATION_PUT_BACK", evidence=f"{store} holds checkpoint {held} of the query")
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
