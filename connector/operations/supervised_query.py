"""The function `supervise`, which keeps a query running in the user's own program."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from connector.location.location import CheckpointLocation
from connector.operations.restart_options import from_config
from connector.operations.signals import StopRequest, obeying_signals
from connector.operations.supervision import LOOK_SECONDS, Supervision
from connector.registration.sessions import register_lost
from connector.registration.start_check import check_starts
from connector.spark import first_start, internals
from connector.spark.process import is_alive
from transactional.clock import Deadline
from transactional.errors import OptionError
from transactional.failure import Failure, Remedy, failure_of
from transactional.restart import RestartStrategy

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StopRequest", "supervise"]

log = logging.getLogger(__name__)

TASKS_SECONDS = 30.0
"""Seconds to wait until a stopped query's tasks have ended. Spark kills a stopped task's Python worker after 2 s."""

STOPS_SECONDS = 60.0
"""Seconds to wait for `query.stop()` in a forced stop. It waits for a running commit, in which a hook may hang."""


def supervise(
    start: Callable[[], StreamingQuery],
    strategy: RestartStrategy | None = None,
    *,
    location: str | None = None,
    options: Mapping[str, str] | None = None,
    stop_timeout: float = 300.0,
    single_driver: bool = False,
    stop: StopRequest | None = None,
) -> None:
    """Keep a query running: restart it after failures, and return after a graceful stop.

    Call this function in the driver program. `strategy` decides when a failed query is started again. If a restart
    can't help (wrong options, missing rights, a replay with other rows), the query is not restarted. If the failure
    requires a rewind, `supervise` rewinds the query first.

    SIGTERM, SIGINT, `stop` and ``barrier stop`` end the query at a final checkpoint, with no open transaction. After a second
    signal, or when `stop_timeout` has passed, the query is stopped immediately, and then its prepared rows are committed.

    Parameters
    ----------
    start : Callable[[], StreamingQuery]
        Builds the query and starts it. Called for every start and restart.
    strategy : RestartStrategy, optional
        By default, it is read from environment variables (see docs/run.md).
    location : str, optional
        The query's checkpoint location. By default, Spark is asked for it after the first start.
    options : Mapping[str, str], optional
        Sink options that the journal does not keep (secrets). `supervise` needs them for a rewind, for a forced stop, and for
        a stop between two runs. Also pass the options that are needed to open the checkpoint location:
        ``checkpointEndpoint``, ``checkpointRegion``, ``singleDriver``.
    stop_timeout : float
        Seconds to wait for the final checkpoint after a stop was requested.
    single_driver : bool
        True if nothing else starts this query. In that case, a previous driver that can't be seen from here (in another
        container) counts as dead, and its unfinished transactions are ended.
    stop : StopRequest, optional
        An object with which another thread can request a stop. Signals work only if `supervise` runs in the main thread.

    Raises
    ------
    OptionError
        `stop_timeout` is negative or not a number.
    StreamingQueryException
        The query's last error, if no restart can help or the strategy allows no more restarts. Errors of `start` are raised
        unchanged. If the JVM is gone, Py4J's error is raised: start the program again.
    FencedError
        ``DRIVER_HOLDS_STATE``: a query with state can't be rewound while its driver is alive.
    TwoPhaseCommitError
        A rewind failed, or the unfinished transactions could not be ended after a stop.

    Examples
    --------
    >>> def start():
    ...     rows = spark.readStream.format("barrier-kafka")...load()
    ...     return rows.writeStream.format("2pc-kafka").option("checkpointLocation", "/var/lib/orders")...start()
    >>> supervise(start, ExponentialDelay())
    """
    if not stop_timeout >= 0:
        raise OptionError(
            "INVALID_OPTION",
            owner="supervise",
            option="stop_timeout",
            value=stop_timeout,
            expectation="seconds, 0 or more",
        )
    check_starts()
    supervision = Supervision(
        "supervise",
        from_config() if strategy is None else strategy,
        options or {},
        log.warning,
        single_driver,
        stop or StopRequest(),
    )
    with obeying_signals(supervision.wish) as obey:
        query = _Query(start, supervision, stop_timeout, obey)
        if location is not None:
            place = query.find(location)
            if single_driver:  # `start` does not know that no other driver starts the query
                first_start.clean(place, lambda process: bool(is_alive(process)))
        failure = supervision.run(query.live)
        if failure is not None:
            raise query.problem or RuntimeError(failure.text)


class _Query:
    """Starts, watches and stops one supervised query. Each start begins a new *life*, which lasts until the query ends."""

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        supervision: Supervision,
        stop_timeout: float,
        obey: Callable[[], None],
    ) -> None:
        self.problem: BaseException | None = None  # The error that ended the last life; None if no life has failed.
        self._start = start
        self._supervision = supervision
        self._wish, self._clock = supervision.wish, supervision.clock
        self._stop_timeout = stop_timeout
        self._obey = obey

    def find(self, location: str) -> CheckpointLocation:
        """Open the query's checkpoint location, pass it to the `Supervision`, and return it."""
        place = CheckpointLocation.from_options({**self._supervision.given, "checkpointLocation": location})
        self._supervision.meet(place, None)
        return place

    def live(self) -> Failure | None:
        """Start the query and wait until it ends. Return its failure; None if it has ended normally or was stopped."""
        query: StreamingQuery | None = None
        try:
            register_lost(internals.active_session())
            query = self._start()
            self._obey()
            self._meet(query)
            while not self._wish.asked():
                if _has_ended(query):
                    return None
                self._supervision.listen()
        except KeyboardInterrupt as interrupt:  # raised by PySpark's own handler while a session was created
            if not self._wish.asked():
                self._wish.ask()
            if query is None:
                return self._failed(interrupt)
        except Exception as problem:  # noqa: BLE001 - `_failed` classifies every error
            if query is not None and _is_active(query):  # no query may run without supervision
                self._halt(query, safe=False)
            return self._failed(problem)
        self._stop(query)
        return None

    def _failed(self, problem: BaseException) -> Failure:
        self.problem = problem
        failure = failure_of(problem)
        if internals.jvm_is_gone(problem):
            log.error("the driver's JVM no longer answers: start the program again")
            return Failure(failure.condition, failure.text, Remedy.NONE)
        return failure

    def _meet(self, query: StreamingQuery) -> CheckpointLocation:
        location = self._supervision.location or self.find(internals.checkpoint_location(query))
        driver = internals.driver_of(query)
        self._supervision.meet(location, driver)
        return location

    def _stop(self, query: StreamingQuery) -> None:
        """Stop a running query at its final checkpoint or, if that takes too long, without one."""
        deadline, safe = Deadline(self._stop_timeout, self._clock), False
        try:
            final = self._supervision.final_checkpoint(self._meet(query))
            while query.isActive and not self._wish.forced() and not deadline.passed():
                if final.has_come():
                    safe = final.safe
                    break
                _has_ended(query)
        except Exception as problem:  # noqa: BLE001 - the query has ended, as requested or by a failure
            failure = failure_of(problem)
            if failure.remedy is not Remedy.STOPPED:
                log.warning("the query failed while it was being stopped: %s", failure.text)
        if _is_active(query):
            self._halt(query, safe)

    def _halt(self, query: StreamingQuery, safe: bool) -> None:
        """Call ``query.stop()``. Unless `safe` is True, wait until the running tasks have ended."""
        if not safe:
            log.warning("stopping the query now, without a final checkpoint")
        stopping = threading.Thread(target=query.stop, daemon=True)
        stopping.start()
        stopping.join(STOPS_SECONDS)
        deadline = Deadline(TASKS_SECONDS, self._clock)
        while not safe and internals.running_tasks() and not deadline.passed():
            self._clock.sleep(LOOK_SECONDS)


def _is_active(query: StreamingQuery) -> bool:
    """Return whether the query is running; False if its JVM is gone."""
    try:
        return bool(query.isActive)
    except Exception:  # noqa: BLE001 - any error of Py4J
        return False


def _has_ended(query: StreamingQuery) -> bool:
    """Wait for `LOOK_SECONDS`, then return whether the query has ended. Raises the query's error if it has failed."""
    return bool(query.awaitTermination(LOOK_SECONDS))  # type: ignore[arg-type]  # it takes fractions
