"""Two threads that look at journals and at brokers, and keep what they saw last. A broker that is away delays no journal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from connector.location.location import CheckpointLocation
from connector.serving.facts import ClusterFacts, QueryFacts, look_at_clusters, look_at_query

__all__ = ["BROKER_SECONDS", "JOURNAL_SECONDS", "Watcher"]

log = logging.getLogger(__name__)

JOURNAL_SECONDS = 1.0
BROKER_SECONDS = 10.0
"""From one look to the next."""


class Watcher:
    """The facts about some queries and their clusters. A context manager: its threads run inside.

    Parameters
    ----------
    locations : Sequence[str]
    servers : str, optional
        The brokers to ask, instead of those of the queries' sinks.
    given : Mapping[str, str], optional
        Options of the sinks that the journals do not keep.
    brokers : bool
        Whether brokers are asked at all.

    Raises
    ------
    OptionError, LocationError
        A location whose path nothing can be read from.
    """

    def __init__(
        self,
        locations: Sequence[str],
        servers: str | None = None,
        given: Mapping[str, str] | None = None,
        *,
        brokers: bool = True,
    ) -> None:
        self._locations = {path: CheckpointLocation(path) for path in dict.fromkeys(locations)}
        self._journals = {path: location.journal() for path, location in self._locations.items()}
        self._servers, self._given = servers, dict(given or {})
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._version = 0
        self._queries: tuple[QueryFacts, ...] = ()
        self._clusters: tuple[ClusterFacts, ...] = ()
        loops = [
            (self.look_at_journals, JOURNAL_SECONDS),
            *([(self.look_at_brokers, BROKER_SECONDS)] if brokers else []),
        ]
        self._threads = [threading.Thread(target=self._repeat, args=each, daemon=True) for each in loops]

    @property
    def queries(self) -> Sequence[QueryFacts]:
        """The queries, in the order of their locations."""
        return self._queries

    @property
    def clusters(self) -> Sequence[ClusterFacts]:
        """The clusters that were asked last."""
        return self._clusters

    @property
    def version(self) -> int:
        """A number that grows with everything new."""
        return self._version

    def wait(self, version: int, seconds: float) -> int:
        """Wait until there is something newer than a version, at most this long, and return the version."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self._over.is_set(), seconds)
            return self._version

    def look_at_journals(self) -> None:
        """Look at all journals now."""
        seen = tuple(look_at_query(path, location, self._journals[path]) for path, location in self._locations.items())
        news = [(each.path, each.ledger.position, each.state, each.problem) for each in seen]
        if news != [(each.path, each.ledger.position, each.state, each.problem) for each in self._queries]:
            self._keep(queries=seen)

    def look_at_brokers(self) -> None:
        """Ask the brokers now."""
        self._keep(clusters=tuple(look_at_clusters(self._queries, self._servers, self._given)))

    def _keep(
        self, queries: tuple[QueryFacts, ...] | None = None, clusters: tuple[ClusterFacts, ...] | None = None
    ) -> None:
        with self._changed:
            self._queries = self._queries if queries is None else queries
            self._clusters = self._clusters if clusters is None else clusters
            self._version += 1
            self._changed.notify_all()

    def __enter__(self) -> Watcher:
        self.look_at_journals()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def _repeat(self, look: object, seconds: float) -> None:
        assert callable(look)
        while not self._over.is_set():
            try:
                look()
            except Exception:
                log.exception("a look failed; the next one follows")
            self._over.wait(seconds)
