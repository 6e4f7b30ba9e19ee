"""The state that all steps of one coordinator share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.clock import Clock
from transactional.comparison import must_be_there
from transactional.errors import StoreError
from transactional.hooks import CheckpointHook
from transactional.journal import Journal
from transactional.ledger import Ledger
from transactional.recovery import QueryView
from transactional.settlement import Settlement
from transactional.sink import TwoPhaseCommitSink, routes_of
from transactional.transaction import Cutoff


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run. A driver continues the newest run only if `driver` and `digest` are the same."""

    driver: str  # Id of the driver: the same in all processes of one driver, and different for every driver.
    sink: str  # The sink's format name.
    digest: str  # Digest of the user's options and schema.
    prefix: str  # Value of the option ``transactionalIdPrefix``.
    # The driver's process, as the engine's adapter identifies it.
    process: Mapping[str, Any] = field(default_factory=dict)
    # Everything that a tool needs to build the sink: format, options without secrets, schema.
    setup: Mapping[str, Any] = field(default_factory=dict)
    retained: int = 100  # Number of settled checkpoints that the journal keeps.
    max_batches: int = 50  # Number of micro-batches after which a checkpoint closes.
    commit_seconds: float = 120.0  # How long to retry a decision that fails, in seconds.
    tolerable: int = 0  # How many checkpoints in a row may be declined before commit raises.
    hooks: Sequence[CheckpointHook] = ()
    # True if the query may drop data of a restored savepoint: hook states and topic positions that the query does not use.
    allow_non_restored: bool = False
    # Secret values of options. They are removed from the errors of hooks, because the journal must not contain them.
    secrets: Collection[str] = field(default=(), repr=False)
    started: int | None = None  # Number of the journal's last entry when Spark started the query; None if unknown.
    host_options: Collection[str] = ()  # Names, in lower case, of options that do not select the target.


class Session:
    """Holds one coordinator's journal, sink, settings and view of the query."""

    def __init__(
        self,
        journal: Journal,
        sink: TwoPhaseCommitSink[Any, Any],
        settings: RunSettings,
        view: QueryView,
        clock: Clock,
    ) -> None:
        self.journal = journal
        self.sink = sink
        self.settings = settings
        self.view = view
        self.clock = clock
        self.settlement = Settlement(journal, sink, view.queryId, settings.prefix, view.batch)
        self._identity: dict[str, str] | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger, as of the journal's last load or append."""
        return self.journal.ledger

    def identify(self) -> dict[str, str]:
        """Return the store's identity. The sink is asked only once per planning.

        If the journal has settled checkpoints in the store, check that the store still exists and was not replaced. Otherwise
        the sink could create an empty store, or write to the wrong one. If the user changed the address, accept a
        different store.

        Raises
        ------
        StoreError
            ``STORE_GONE``: the store no longer exists. ``STORE_REPLACED``: it is a different store at the same address.
        """
        if self._identity is None:
            settled = self._settled()
            here = {route: checkpoint for route, checkpoint in settled.items() if self._is_same_address(route)}
            must_be_there(self.sink, here)
            identity = dict(self.sink.identify())
            for route, checkpoint in settled.items():
                if route in here or self._is_same_place(identity, route):
                    self._must_be_the_same(identity, route, checkpoint)
            self._identity = identity
        return self._identity

    def _settled(self) -> dict[str, int]:
        former = self.ledger.newest_run
        if former is None or former.sink != self.settings.sink:
            return {}
        return self.ledger.known_at_store(routes_of(self.sink))

    def _is_same_address(self, route: str) -> bool:
        """Return whether the options of a route (or of a single sink) still address the same target."""
        former = self.ledger.newest_run
        return former is not None and self._address(former.setup, route) == self._address(self.settings.setup, route)

    def _address(self, setup: Mapping[str, Any], route: str) -> dict[str, Any]:
        names, start = self.sink.addressOptions, f"{route}." if route else ""
        given: Mapping[str, Any] = setup.get("options", {})
        own = {key: value for key, value in given.items() if key.startswith(start)}
        return {
            key: value
            for key, value in own.items()
            if (key in names if names else key not in self.settings.host_options)
        }

    def moved_target(self, identity: Mapping[str, str]) -> tuple[str, str] | None:
        """Return how the target changed, as two strings (before, now).

        Return None if the target did not change. Also return None if the newest run recorded the id of a cluster, because
        the caller compares the ids of clusters. Without cluster ids, this method compares the identity and the address.
        """
        former = self.ledger.newest_run
        for route in routes_of(self.sink):
            if former is None or former.identified("cluster", route) is not None:
                continue
            before, now = dict(_of_route(former.identity, route)), dict(_of_route(identity, route))
            if former.setup:  # a release that did not record the options could not be asked for the old ones
                before.update(self._address(former.setup, route))
                now.update(self._address(self.settings.setup, route))
            if before != now:
                changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
                return _shown(before, changed), _shown(now, changed)
        return None

    def _is_same_place(self, identity: Mapping[str, str], route: str) -> bool:
        """Return whether `identity` has the newest run's ``cluster`` and ``topic``, even if the address differs."""
        former, start = self.ledger.newest_run, f"{route}." if route else ""
        return former is not None and all(
            former.identified(key, route) == identity.get(f"{start}{key}") for key in ("cluster", "topic")
        )

    def _must_be_the_same(self, identity: Mapping[str, str], route: str, checkpoint: int) -> None:
        former = self.ledger.newest_run
        if former is None or self.view.gaps:  # for a batch write, `check_target` compares the identity
            return
        changed = [key for key, value in _of_route(former.identity, route).items() if identity.get(key) != value]
        if changed:
            was = ", ".join(f"{key} was {former.identity[key]}, is now {identity.get(key)}" for key in sorted(changed))
            raise StoreError("STORE_REPLACED", store=self._named(route), known=checkpoint, changes=was)

    def _named(self, route: str) -> str:
        return f"{self.sink.name()} {route}".strip()

    def milliseconds(self) -> int:
        """Return the current time, in milliseconds since the epoch."""
        return int(self.clock.now() * 1000)

    def sweep(self, token: int, ended: bool = False) -> None:
        """Abort all of the query's transactions except those of prepared micro-batches and unsettled checkpoints.

        `ended` is true if the run can no longer decide anything.
        """
        self.sink.sweep(self.ledger.known_handles(), self.cutoff(token, ended))

    def cutoff(self, token: int, ended: bool = False) -> Cutoff:
        """Return the cut-off for a run's sweep (see `Cutoff`).

        If a transaction is older than the cut-off, a driver commits it only if a decided checkpoint contains it. If
        `ended` is true, all transactions of the run itself also count as older.
        """
        cutoff = self.ledger.cutoff(self.view.queryId, token)
        return replace(cutoff, run=token + 1, batch=0) if ended else cutoff


def _of_route(identity: Mapping[str, str], route: str) -> dict[str, str]:
    return {key: value for key, value in identity.items() if key.startswith(f"{route}." if route else "")}


def _shown(target: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={target[key]}" if key in target else f"no {key}" for key in keys)
