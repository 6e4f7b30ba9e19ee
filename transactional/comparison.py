"""The comparison of a query's journal with the sink's store, before a run or a rewind begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transactional.errors import LocationError, StoreError
from transactional.history import History, history_of
from transactional.journal import Journal
from transactional.ledger import RunRecord
from transactional.ownership import moved_on
from transactional.sink import TwoPhaseCommitSink, history_seen, routes_of


def must_be_there(sink: TwoPhaseCommitSink[Any, Any], settled: Mapping[str, int]) -> None:
    """Raise ``STORE_GONE`` if a target with a settled checkpoint is missing.

    `settled` has the newest settled checkpoint of each route.
    """
    for route, checkpoint in settled.items():
        if not sink.isThere(route):
            raise StoreError("STORE_GONE", store=f"{sink.name()} {route}".strip(), known=checkpoint)


def compare_histories(
    journal: Journal,
    sink: TwoPhaseCommitSink[Any, Any],
    queryId: str,
    run: RunRecord,
    *,
    rewind: bool = False,
) -> tuple[History, Mapping[str, Any]]:
    """Check that neither the checkpoint location nor the sink's store is an older copy.

    Another driver may be running at the location. Such a driver journals each step before the step changes the store.
    So if the store has more than the journal knows, and the journal has grown in the meantime, the comparison is
    repeated.

    Parameters
    ----------
    journal : Journal
        The query's journal, already loaded.
    sink : TwoPhaseCommitSink
    queryId : str
        The id of the query, without the suffix that a copy's id has.
    run : RunRecord
        The run for which the histories are compared: only its sink, prefix and identity are used.
    rewind : bool
        True before a rewind.

    Returns
    -------
    History
        The history according to the journal.
    Mapping[str, Any]
        The state of the store as JSON, to be recorded with the run.

    Raises
    ------
    PutBackError
        ``LOCATION_PUT_BACK``: the location is an older copy.
    LocationError
        ``LOCATION_MOVED_ON``: the query was moved to another location in the meantime.
    StoreError
        ``STORE_WENT_BACK``: the store is an older copy.
    """
    while True:
        ledger = journal.ledger
        position, query = ledger.position, ledger.identity(queryId)
        history = history_of(ledger, query, run, routes_of(sink), rewind=rewind)
        try:
            return history, history_seen(sink, history)
        except LocationError:
            found = journal.load()
            if found.moved is not None:
                raise moved_on(found.moved) from None
            if found.position == position:
                raise
