"""Threads that look at journals, one for each, and at brokers, and keep what they saw last: who is away delays no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from connector.location.location import CheckpointLocation
from connector.serving.facts import ClusterFacts, QueryFacts, look_at_clusters, look_at_query
from transactional.errors import OptionError

__all__ = ["BROKER_SECONDS", "JOURNAL_SECONDS", "Watcher"]

log = logging.getLogger(__name__)

JOURNAL_SECONDS = 1.0
BROKER_SECONDS = 10.0
"""From one look to the next."""

LOCATIONS_PER_SECOND = 30
"""With more of them, each is looked at less often."""

FIRST_SECONDS = 5.0
"""How long the first looks are waited for: a store that does not answer keeps no other query from being seen."""

NOT_YET = "It was not read yet: its store has not answered."


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
        looked = [location_of(path) for path in locations]
        self._locations = {location.path: location for location in looked}
        self._journals = {path: location.journal() for path, location in self._locations.items()}
        self._servers, self._given = servers, dict(given or {})
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._version = 0
        self._queries = {path: QueryFacts(path, sentence=NOT_YET) for path in self._locations}
        self._clusters: tuple[ClusterFacts, ...] | None = None
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
        """The queries, in the order of their locations."""
        return tuple(self._queries.values())

    @property
    def clusters(self) -> Sequence[ClusterFacts]:
        """The clusters that were asked last."""
        return self._clusters or ()

    @property
    def has_asked(self) -> bool:
        """Whether the first look at brokers is over, or none is wanted."""
        return self._clusters is not None

    @property
    def version(self) -> int:
        """A number that grows with everything new."""
        return self._version

    def look_at_journal(self, path: str) -> None:
        """Look at a location now."""
        seen = look_at_query(self._locations[path], self._journals[path])
        with self._changed:
            known, self._queries[path] = self._queries[path], seen
            if seen.news != known.news:
                self._tell()

    def look_at_brokers(self) -> None:
        """Ask the brokers now."""
        seen = tuple(look_at_clusters(self.queries, self._servers, self._given))
        with self._changed:
            self._clusters = seen
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
                log.exception("an update failed; the next one follows")
            self._over.wait(seconds)


def location_of(path: str) -> CheckpointLocation:
    """Return a location that may be shown."""
    shown = path.encode("utf-8", "replace").decode()
    if shown != path or urlsplit(path).username is not None or (":" in path and "?" in path):
        raise OptionError(
            "INVALID_OPTION",
            owner="barrier serve",
            option="LOCATION",
            value="(hidden)",
            expectation="a path in UTF-8 without user, password or query: the page would show them",
        )
    return CheckpointLocation(path)
