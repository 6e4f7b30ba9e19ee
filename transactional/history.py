"""The history of a query according to its journal, and its comparison with the store before a new run begins.

If a checkpoint location was restored from an older copy, nothing in the location shows that. But the store then contains a
later checkpoint than the journal. So the store is asked before each new run and each rewind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.errors import PutBackError, StoreError
from transactional.ledger import Ledger, PartRecord, RunRecord
from transactional.transaction import ONE

Handle = Mapping[str, Any]
RunMark = Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """A query's history according to its journal, before a new run or a rewind. Passed to `KeepsEvidence.checkHistory`.

    For `seen`, `mark` and `late`, only the runs on this store under this prefix count.

    Parameters
    ----------
    queryId : str
        The query's id. If the location is a copy (``barrier restore --no-claim``), the id has a suffix.
    position : int
        The number of the newest journal entry.
    known : int
        The highest checkpoint id that the journal has ever recorded as decided, or that an operator has accepted
        (``barrier restore``). If the store holds a higher id, the checkpoint location is an older copy.
    binding : bool
        If False, the sink should return the state of the store and not raise. `binding` is False if an operator has run
        ``barrier restore --as-is`` or ``barrier resolve`` after the query's last run on this store under this prefix.
    seen : Mapping[str, Any] or None
        The value that `checkHistory` returned for the newest run. None if that run did not call `checkHistory`. Empty if there
        was no run. In that case, if the store holds data of this query under this prefix, the journal is an older copy.
    mark : Mapping[str, Any] or None
        The value that `guardRun` returned for the newest run. If the value of any run was not recorded, `mark` is None: the
        driver of such a run may be paused, and may still call `guardRun` at any time.
    late : Sequence[Mapping[str, Any]]
        All recorded values of `guardRun`. Older values matter because a driver that was paused may have called `guardRun`
        after the newest run did.
    stamp : int
        The highest value that `KeepsEvidence.stamp` returned for any checkpoint.
    newest : int
        The id of the newest checkpoint with rows that was committed to this store, under any prefix. 0 if there is none, or if
        an operator has accepted the current state of the store after that commit.
    former : int
        If `newest` is not 0, 0. Otherwise, the id of the newest checkpoint that was committed to the previous run's store.
        If the present store is a copy of that store, it must contain this checkpoint.
    handles : Sequence[Mapping[str, Any]]
        Handles of decided checkpoints that are not settled. Some of these handles may be committed. Before a rewind,
        `handles` also has those of prepared micro-batches. If another program has committed one of these, don't raise:
        the rewind detects this itself.
    routes : Mapping[str, History]
        If the sink combines several sinks (`Routes`), the history of each route; otherwise empty.
    """

    queryId: str
    position: int
    binding: bool
    known: int = 0
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
    asked: RunRecord,
    routes: Sequence[str] = ONE,
    *,
    rewind: bool = False,
) -> History:
    """Return a query's history, for a run that is about to be claimed, or for a rewind that is about to begin.

    Parameters
    ----------
    ledger : Ledger
        The journal's ledger.
    queryId : str
        The id of the query (see `TransactionContext`).
    asked : RunRecord
        The new run: only its sink, prefix and identity are used. Earlier runs on another store or under another prefix
        count only for `newest` and `former`.
    routes : Sequence[str]
        The new run's routes.
    rewind : bool
        True before a rewind.
    """
    decided = [part for checkpoint in ledger.unsettled() for part in ledger.parts_of(checkpoint)]
    prepared = [part for record in ledger.undecided() for part in record.parts] if rewind else []
    found = {route: _history(ledger, queryId, asked, route, [*decided, *prepared]) for route in {"", *routes}}
    whole = found.pop("")
    return replace(whole, routes=found)


def _history(ledger: Ledger, queryId: str, asked: RunRecord, route: str, open_parts: Sequence[PartRecord]) -> History:
    key = asked.store_key(route)
    runs = [run for _, run in sorted(ledger.runs.items()) if run.store_key(route) == key]
    newest_here, last = ledger.newest_at(asked, route), ledger.newest_run
    # Perhaps this store is a copy of the newest run's.
    is_copy = not newest_here and last is not None and last.sink == asked.sink
    history = History(
        queryId,
        ledger.position,
        binding=not ledger.position or (bool(ledger.runs) and all(run.binding for run in ledger.runs.values())),
        known=ledger.known,
        seen={},
        stamp=ledger.stamps.get(route, 0) if route else ledger.stamp,
        handles=[handle for part in open_parts if not route or part.route == route for handle in part.handles],
        newest=newest_here,
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
    """Check that the newest checkpoint in a store is neither later nor earlier than the journal allows.

    Parameters
    ----------
    history : History
    held : int or None
        The value that `TwoPhaseCommitSink.newestCheckpoint` returned.
    store : str
        The name of the store, for error messages.

    Returns
    -------
    Mapping[str, Any]
        The newest checkpoint as JSON, which the journal records with the run. Empty if the store keeps no ids.

    Raises
    ------
    PutBackError
        ``LOCATION_PUT_BACK``: the store has a checkpoint that the journal does not know.
    StoreError
        ``STORE_WENT_BACK``: the store lacks a checkpoint that the journal has settled.
    """
    if held is None:
        return {}
    seen = history.seen if history.binding else None
    if seen is not None:
        must_know(store, held, max(history.known, seen.get("checkpoint", 0)))
    must_hold(store, held, history.newest)
    if held:  # if `former` is set, this store has another address, so it is a copy of the old store
        must_hold(store, held, history.former)
    return {"checkpoint": held}


def must_hold(store: str, held: int, known: int) -> None:
    """Check that a store holds the newest checkpoint that the journal has settled there.

    Parameters
    ----------
    store : str
        The name of the store, for the error message.
    held : int
        The newest checkpoint in the store.
    known : int
        The newest checkpoint that the journal has settled in this store.

    Raises
    ------
    StoreError
        ``STORE_WENT_BACK``: `held` is lower than `known`.
    """
    if held < known:
        raise StoreError("STORE_WENT_BACK", store=store, held=held, known=known)


def must_know(store: str, held: int, known: int) -> None:
    """Check that the journal knows the newest checkpoint that a store holds.

    Parameters
    ----------
    store : str
        The name of the store, for the error message.
    held : int
        The newest checkpoint in the store.
    known : int
        The newest checkpoint that the journal knows.

    Raises
    ------
    PutBackError
        ``LOCATION_PUT_BACK``: `held` is higher than `known`, so the journal is an older copy.
    """
    if held > known:
        raise PutBackError("LOCATION_PUT_BACK", evidence=f"{store} contains checkpoint {held} of the query")
