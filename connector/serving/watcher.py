"""Threads that read journals, ask brokers and keep the newest facts. A store that is down delays only its own query."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from connector.location.location import CheckpointLocation
from connector.serving.facts import ClusterFacts, QueryFacts, look_at_clusters, look_at_query
from connector.serving.series import LagSample
from transactional.errors import OptionError

log = logging.getLogger(__name__)

JOURNAL_SECONDS = 1.0
BROKER_SECONDS = 10.0
"""The time between two rounds of requests to the brokers, in seconds. Between reads of a journal: `JOURNAL_SECONDS`."""

LOCATIONS_PER_SECOND = 30
"""The maximum number of journals that are read per second. If there are more locations, each is read less often."""

LAG_SAMPLES = 1000
"""The maximum number of points in the chart of a query's lag. With `BROKER_SECONDS` between them, they cover almost
three hours."""

FIRST_SECONDS = 5.0
"""The number of seconds to wait for the first reads. After that, the page is served even if a store has not
answered."""

NOT_YET = "The location has not been read yet, because its store has not answered."


class Watcher:
    """The newest facts about queries and their clusters. Inside its ``with`` block, background threads update them.

    Parameters
    ----------
    locations : Sequence[str]
        The checkpoint locations of the queries.
    servers : str, optional
        The brokers to ask. The default is the brokers that the queries' sinks write to.
    given : Mapping[str, str], optional
        Sink options that the journals do not contain, such as secrets.
    brokers : bool
        True to ask brokers.

    Raises
    ------
    OptionError, LocationError
        A path contains secrets that the page would show, or no checkpoint location can be opened there.
    """

    def __init__(
        self,
        locations: Sequence[str],
        servers: str | None = None,
        given: Mapping[str, str] | None = None,
        *,
        brokers: bool = True,
    ) -> None:
        looked = [location_of(path) for path in locations]
        self._locations = {location.path: location for location in looked}
        self._journals = {path: location.journal() for path, location in self._locations.items()}
        self._servers, self._given = servers, dict(given or {})
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._version = 0
        self._queries = {path: QueryFacts(path, sentence=NOT_YET) for path in self._locations}
        self._clusters: tuple[ClusterFacts, ...] | None = None
        self._lags: dict[str, deque[LagSample]] = {path: deque(maxlen=LAG_SAMPLES) for path in self._locations}
        pause = JOURNAL_SECONDS * max(1.0, len(self._locations) / LOCATIONS_PER_SECOND)
        looks: list[tuple[Callable[[], None], float]] = [
            (partial(self.look_at_journal, path), pause) for path in self._locations
        ]
        if brokers:
            looks.append((self.look_at_brokers, BROKER_SECONDS))
        else:
            self._clusters = ()
        self._threads = [threading.Thread(target=self._repeat, args=each, daemon=True) for each in looks]

    @property
    def queries(self) -> Sequence[QueryFacts]:
        """The facts of the queries, in the order of their locations."""
        return tuple(self._queries.values())

    @property
    def clusters(self) -> Sequence[ClusterFacts]:
        """The facts of the clusters, from the newest answers of their brokers."""
        return self._clusters or ()

    @property
    def has_asked(self) -> bool:
        """True if the brokers have been asked at least once, or are never asked."""
        return self._clusters is not None

    @property
    def version(self) -> int:
        """A number that increases with every change of the facts."""
        return self._version

    def lag(self, path: str) -> Mapping[str, int]:
        """Return each topic's lag in offsets for a query, from the newest answers of all clusters."""
        return {topic: behind for each in self.clusters for topic, behind in each.lags.get(path, {}).items()}

    def lags(self, path: str) -> Sequence[LagSample]:
        """Return a query's lag over time: one sample for each of the brokers' last answers."""
        return tuple(self._lags[path])

    def look_at_journal(self, path: str) -> None:
        """Read the journal of a location now, and store its facts."""
        seen = look_at_query(self._locations[path], self._journals[path])
        with self._changed:
            known, self._queries[path] = self._queries[path], seen
            if seen.news != known.news:
                self._tell()

    def look_at_brokers(self) -> None:
        """Ask the brokers now, and store their facts."""
        seen = tuple(look_at_clusters(self.queries, self._servers, self._given))
        with self._changed:
            self._clusters = seen
            for path, samples in self._lags.items():
                if lag := self.lag(path):
                    samples.append((max(each.time for each in seen) / 1000, lag))
            self._tell()

    def _tell(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def __enter__(self) -> Watcher:
        for thread in self._threads[: len(self._locations)]:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: all(each.looked for each in self._queries.values()), FIRST_SECONDS)
        for thread in self._threads[len(self._locations) :]:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _repeat(self, look: Callable[[], None], seconds: float) -> None:
        while not self._over.is_set():
            try:
                look()
            except Exception:
                log.exception("the page's data could not be refreshed; trying again")
            self._over.wait(seconds)


def location_of(path: str) -> CheckpointLocation:
    """Return the checkpoint location at a path. If the path contains a user, password or query, raise `OptionError`.

    The page shows the path, so a secret in it would be visible. Also raise `OptionError` if the path is not valid
    UTF-8.
    """
    shown = path.encode("utf-8", "replace").decode()
    if shown != path or urlsplit(path).username is not None or (":" in path and "?" in path):
        raise OptionError(
            "INVALID_OPTION",
            owner="barrier serve",
            option="LOCATION",
            value="(hidden)",
            expectation="a path in UTF-8 without user, password or query, because the page would show them",
        )
    return CheckpointLocation(path)
