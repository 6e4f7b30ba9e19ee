"""What happened to a query's checkpoints, told to an object in the user's own driver program.

Spark's events say only *when* to look: what happened is read from the journal. So nothing is missed between two events,
and a listener hears of what the query's recovery did, too.
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

__all__ = ["CheckpointListener", "Listening", "listen"]

log = logging.getLogger(__name__)


class CheckpointListener:
    """Told what becomes of a query's checkpoints. Subclass it, and attach it with `barrier_kafka.listen`.

    *Called in the user's driver program, in a thread of Spark's events; each event once, in order.* What a method raises is
    logged, and neither the query nor the next event notices. Rows are visible, or not, whatever a listener does: what has to
    take part in a checkpoint is a `transactional.hooks.CheckpointHook`.
    """

    def onCheckpointCompleted(self, checkpoint: CheckpointHistory) -> None:
        """All of its rows are visible."""

    def onCheckpointFailed(self, checkpoint: CheckpointHistory) -> None:
        """It was given up before its decision, or is void: its rows are written anew. Also of each attempt that failed."""

    def onCheckpointDeclined(self, checkpoint: CheckpointHistory) -> None:
        """It could not be decided: its rows wait for the next one."""

    def onCheckpointSubsumed(self, checkpoint: CheckpointHistory) -> None:
        """A declined one was taken in by a younger (`CheckpointHistory.subsumed_by`), which completed just now."""

    def onRestored(self, restored: Restored) -> None:
        """A run of the query went on after an earlier checkpoint."""


class Listening:
    """A listener and a location.

    Parameters
    ----------
    location : CheckpointLocation
    listener : CheckpointListener
    since : int or None
        Number of the journal's entry after which events count as new; None: what is there by now is not reported.
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
        """Read the journal, report what is new, and say how much it was. Also for those without Spark's events.

        Raises
        ------
        JournalError
            It can't be read.
        """
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
            log.exception("%s of %s raised", getattr(call, "__name__", call), type(self._listener).__qualname__)

    def stop(self) -> None:
        """Report nothing any more, and take Spark's listener away. To call it again changes nothing."""
        with self._lock:
            remove, self._remove = self._remove, lambda: None
            self._stopped = True
        remove()

    def attach(self, spark: SparkSession) -> Listening:
        """Look at every progress, pause and end of the location's query, in this session."""
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
                """Nothing has happened yet; and `start()` waits for this."""

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
        """An event of any query of the session."""
        try:
            if self.location.query_id() == query:
                self.poll()
        except LocationError:
            return  # nothing has been started there yet
        except Exception:
            log.exception("the journal of %s can't be read now; the next event tries again", self.location.path)

    def _new(self, ledger: Ledger) -> list[tuple[Callable[[Any], None], Any]]:
        """The events after what was seen, in order of their numbers in the journal; a completion has its decision's."""
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


def listen(
    spark: SparkSession, checkpointLocation: str, listener: CheckpointListener, since: int | None = None
) -> Listening:
    """Tell a listener of a query's checkpoints. *Called in the user's driver program, before or after the query starts.*

    Parameters
    ----------
    spark : SparkSession
        The session in which the query runs (a classic one: with Spark Connect, call `Listening.poll` where the location can
        be read).
    checkpointLocation : str
        The query's, as set on its writer.
    listener : CheckpointListener
    since : int, optional
        Report also what happened earlier, after this number (of a `CheckpointHistory.id`, as a former driver kept it; 0 for
        all that the journal keeps). Default: what happens from now on.

    Returns
    -------
    Listening
        With ``poll()``, to look now, and ``stop()``.

    Raises
    ------
    OptionError
        ``NO_EXCLUSIVE_CREATE``: the location is on a store that has none.
    JournalError

    Notes
    -----
    An event is told once to each `Listening`. The journal keeps the last completed checkpoints
    (``retainedCheckpoints``) and 50 failures: of more than that between two of Spark's events only the last are told.

    Examples
    --------
    >>> class Lag(CheckpointListener):
    ...     def onCheckpointCompleted(self, checkpoint):
    ...         print(checkpoint.id, checkpoint.rows, checkpoint.committing_ms)
    >>> listening = barrier_kafka.listen(spark, "/var/lib/orders", Lag())
    """
    from connector.spark import formats

    formats.check_starts()
    formats.register_lost(spark)
    return Listening(CheckpointLocation(checkpointLocation), listener, since).attach(spark)
