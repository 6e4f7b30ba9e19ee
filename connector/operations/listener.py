"""Report the events of a query's checkpoints to a listener in the user's driver program.

An event from Spark only triggers a read of the journal, which contains the checkpoints' events. So no event is missed
between two of Spark's events, and the listener also gets the events of the query's recovery.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from connector.location.location import CheckpointLocation
from transactional.errors import LocationError
from transactional.ledger import CheckpointState, Ledger
from transactional.stats import CheckpointHistory, Restored, history, restored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class CheckpointListener:
    """Base class for a listener of a query's checkpoints. Subclass it, and attach it with `barrier_kafka.add_listener`.

    Spark's listener thread calls the methods in the user's driver program. Events arrive in order, and no event arrives
    twice. If a method raises, the error is logged; the query and later events are not affected. A listener can't change
    a checkpoint. To save your own state with checkpoints, write a `barrier_kafka.CheckpointHook`.
    """

    def onCheckpointCompleted(self, checkpoint: CheckpointHistory) -> None:
        """Handle a completed checkpoint: all of its rows are visible."""

    def onCheckpointFailed(self, checkpoint: CheckpointHistory) -> None:
        """Handle a checkpoint that failed before its decision, or was voided: its rows are written again."""

    def onCheckpointDeclined(self, checkpoint: CheckpointHistory) -> None:
        """Handle a checkpoint that could not be decided: its rows wait for the next checkpoint."""

    def onCheckpointSubsumed(self, checkpoint: CheckpointHistory) -> None:
        """Handle a declined checkpoint. A later checkpoint (`CheckpointHistory.subsumed_by`) has completed its rows."""

    def onRestored(self, restored: Restored) -> None:
        """Handle the start of a new run that continues from an earlier checkpoint."""


class Listening:
    """Reports the checkpoint events of a location to a listener.

    Parameters
    ----------
    location : CheckpointLocation
        The query's checkpoint location.
    listener : CheckpointListener
        The listener that gets the events.
    since : int or None
        The number of a journal entry: events after this entry are reported. None to report only events from now on.
    """

    def __init__(self, location: CheckpointLocation, listener: CheckpointListener, since: int | None = None) -> None:
        self.location = location
        self._listener = listener
        self._journal = location.journal()
        self._lock = threading.RLock()
        self._stopped = False
        self._remove: Callable[[], None] = lambda: None
        ledger = self._journal.load() if since is None else Ledger()
        self._seen = ledger.position if since is None else since
        self._open = {checkpoint.id for checkpoint in ledger.unsettled()}

    def poll(self) -> int:
        """Read the journal, report new events, and return how many there were. Works without Spark's events as well."""
        with self._lock:
            if self._stopped:
                return 0
            ledger = self._journal.load()
            events = self._new(ledger)
            self._seen = max(self._seen, ledger.position)
            self._open = {checkpoint.id for checkpoint in ledger.unsettled()}
            for call, what in events:
                self._tell(call, what)
            return len(events)

    def _tell(self, call: Callable[[Any], None], what: CheckpointHistory | Restored) -> None:
        try:
            call(what)
        except Exception:
            log.exception(
                "%s of the listener %s raised an error",
                getattr(call, "__name__", call),
                type(self._listener).__qualname__,
            )

    def stop(self) -> None:
        """Stop reporting, and remove Spark's listener. A second call changes nothing."""
        with self._lock:
            remove, self._remove = self._remove, lambda: None
            self._stopped = True
        remove()

    def attach(self, spark: SparkSession) -> Listening:
        """Call `poll` at every progress, idle and termination event of the location's query in a Spark session. Return self."""
        from pyspark.sql.streaming.listener import (
            QueryIdleEvent,
            QueryProgressEvent,
            QueryStartedEvent,
            QueryTerminatedEvent,
            StreamingQueryListener,
        )

        look = self._look

        class Attached(StreamingQueryListener):
            def onQueryStarted(self, event: QueryStartedEvent) -> None:
                """Do nothing: there is nothing to report yet, and `start()` waits until this method returns."""

            def onQueryProgress(self, event: QueryProgressEvent) -> None:
                look(str(event.progress.id))

            def onQueryIdle(self, event: QueryIdleEvent) -> None:
                look(str(event.id))

            def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
                look(str(event.id))

        attached, streams = Attached(), spark.streams
        streams.addListener(attached)
        self._remove = lambda: streams.removeListener(attached)
        return self

    def _look(self, query: str) -> None:
        """Handle an event of any query in the session: call `poll` if `query` is the id of the location's query."""
        try:
            if self.location.query_id() == query:
                self.poll()
        except LocationError:
            return  # no query was started at the location yet
        except Exception:
            log.exception(
                "can't read the journal of %s now; the listener tries again at the next event", self.location.path
            )

    def _new(self, ledger: Ledger) -> list[tuple[Callable[[Any], None], Any]]:
        """Return the new events, in the order of their journal entries.

        A completed checkpoint is ordered by the entry of its decision.
        """
        listener, found = self._listener, history(ledger)
        events: list[tuple[int, Callable[[Any], None], Any]] = []
        events += [(each.run, listener.onRestored, each) for each in restored(ledger) if each.run > self._seen]
        for each in found:
            new = each.id > self._seen
            if each.status is CheckpointState.SETTLED and (new or each.id in self._open):
                taken_in = [other for other in found if other.subsumed_by == each.id]
                events += [(each.id, listener.onCheckpointSubsumed, other) for other in taken_in]
                events.append((each.id, listener.onCheckpointCompleted, each))
            elif each.status in (CheckpointState.ABORTED, CheckpointState.VOID) and new:
                events.append((each.id, listener.onCheckpointFailed, each))
            elif each.status is CheckpointState.DECLINED and new:
                events.append((each.id, listener.onCheckpointDeclined, each))
        return [(call, what) for _, call, what in sorted(events, key=lambda event: event[0])]


def add_listener(
    spark: SparkSession, location: str, listener: CheckpointListener, since: int | None = None
) -> Listening:
    """Report a query's checkpoints to a listener. Call this in the driver program, before or after the query starts.

    Parameters
    ----------
    spark : SparkSession
        The session in which the query runs. With Spark Connect, create a `Listening` in a process that can read the location,
        and call its ``poll()``.
    location : str
        The query's checkpoint location, as set on its writer.
    listener : CheckpointListener
    since : int, optional
        The id of the last checkpoint that your program has handled (`CheckpointHistory.id`). All events after it are
        reported. 0 reports everything that the journal keeps. By default, only new events are reported.

    Returns
    -------
    Listening
        Its ``poll()`` reports new events immediately; its ``stop()`` ends the reports.

    Raises
    ------
    OptionError
        ``NO_EXCLUSIVE_CREATE``: the store of the location can't create a file exclusively.
    JournalError
        The journal can't be read.

    Notes
    -----
    No event is reported twice. The journal keeps ``retainedCheckpoints`` completed checkpoints and 50 failures. If more of
    them occur between two of Spark's progress events, the oldest are not reported.

    Examples
    --------
    >>> class Lag(CheckpointListener):
    ...     def onCheckpointCompleted(self, checkpoint):
    ...         print(checkpoint.id, checkpoint.rows, checkpoint.committing_ms)
    >>> listening = barrier_kafka.add_listener(spark, "/var/lib/orders", Lag())
    """
    from connector.registration.sessions import register_lost
    from connector.registration.start_check import check_starts

    check_starts()
    register_lost(spark)
    return Listening(CheckpointLocation(location), listener, since).attach(spark)
