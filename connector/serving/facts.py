"""What the page and the metrics show of queries and clusters, looked at once. Immutable."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.client.topics import Partition, short_id
from connector.kafka.source.offsets import SourceOffset
from connector.location.location import CheckpointLocation
from connector.location.offset_log import source_lines
from connector.spark.first_start import has_begun
from connector.spark.recorded_sink import fitting
from connector.transactions.assessment import Assessment
from connector.transactions.clusters import Cluster, configs_of, of_cluster
from connector.transactions.in_journals import Owner, owners_of
from connector.transactions.on_brokers import ClusterView
from connector.transactions.waiting import waiting_groups
from connector.views.queries import QueryState, processes_alive, state_of
from transactional.errors import TwoPhaseCommitError
from transactional.journal import Journal
from transactional.ledger import Ledger

__all__ = ["ClusterFacts", "QueryFacts", "look_at_clusters", "look_at_query"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueryFacts:
    """A query, as its location shows it.

    Parameters
    ----------
    path : str
        Of its location.
    ledger : Ledger
        Empty if the journal can't be read, or is not there.
    state : QueryState
    sentence : str
        On the state.
    alive, doing : bool or None
        Whether the processes of its driver and of its rewind run; None if that can't be seen from here, or there is none.
    sources : Sequence[SourceOffset]
        Where the last settled micro-batch ends in its ``barrier-kafka`` sources; empty if that is not known.
    problem : str
        Why it can't be read; empty if it can.
    looked : float
        When; seconds since 1970, 0 before the first look.
    """

    path: str
    ledger: Ledger = field(default_factory=Ledger)
    state: QueryState = QueryState.EMPTY
    sentence: str = ""
    alive: bool | None = None
    doing: bool | None = None
    sources: Sequence[SourceOffset] = ()
    problem: str = ""
    looked: float = 0.0

    @property
    def news(self) -> tuple[Any, ...]:
        """What makes a later look worth showing."""
        return self.ledger.position, self.state, self.alive, self.doing, self.sources, self.problem, not self.looked


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster that queries write into, as its brokers show it.

    Parameters
    ----------
    servers : str
        Addresses.
    view : ClusterView
    assessments : Sequence[Assessment]
        How its open transactions stand.
    groups : Mapping[Partition, Sequence[str]]
        Consumer groups that seem to wait, by partition.
    lags : Mapping[str, Mapping[str, int]]
        Per location and topic: offsets from the last settled micro-batch's end to the stable end of the topic, if this
        cluster has it.
    answered : bool or None
        Whether the brokers did; None if they were not asked.
    problem : str
        What could not be asked; empty if everything could.
    time : int
        When it was asked; milliseconds since 1970.
    """

    servers: str
    view: ClusterView = field(default_factory=lambda: ClusterView((), (), ()))
    assessments: Sequence[Assessment] = ()
    groups: Mapping[Partition, Sequence[str]] = field(default_factory=dict)
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    answered: bool | None = True
    problem: str = ""
    time: int = field(default_factory=lambda: int(1000 * time.time()))


NO_RUN = (QueryState.EMPTY, QueryState.BEGUN, QueryState.MOVED, QueryState.RESTORING)

BEGUN = (
    "Spark has begun a query, and the journal has no run: its driver starts now, or has died in its first start. "
    "If it is dead, start it again."
)


def look_at_query(location: CheckpointLocation, journal: Journal) -> QueryFacts:
    """Read what is new in a location. Raises nothing: what went wrong is among the facts."""
    path, now = location.path, time.time()
    try:
        ledger = journal.load()
        if not ledger.position:
            if has_begun(location):
                return QueryFacts(path, state=QueryState.BEGUN, sentence=BEGUN, looked=now)
            return QueryFacts(path, sentence="There is no journal: no sink of barrier-kafka has run there.", looked=now)
        alive, doing = processes_alive(ledger)
        state, sentence = state_of(ledger, alive)
        sources = _settled_sources(location, ledger)
        return QueryFacts(path, ledger, state, sentence, alive, doing, sources, looked=now)
    except (TwoPhaseCommitError, OSError) as problem:
        return QueryFacts(path, problem=f"It can't be read: {problem}", looked=now)
    except Exception as problem:
        log.exception("%s could not be read", path)
        return QueryFacts(path, problem=f"It can't be read: {type(problem).__name__}, see the log.", looked=now)


def _settled_sources(location: CheckpointLocation, ledger: Ledger) -> list[SourceOffset]:
    """Return where the last settled micro-batch ends; Spark deletes old files, and a rewound one has none."""
    try:
        lines = source_lines(location, ledger.settled)
        return [SourceOffset.from_json(json.loads(line.text)) for line in lines if line.offset is not None]
    except (TwoPhaseCommitError, OSError, ValueError, KeyError, TypeError):
        return []


def look_at_clusters(
    queries: Sequence[QueryFacts], servers: str | None, given: Mapping[str, str]
) -> list[ClusterFacts]:
    """Ask the brokers that the queries write into, or those at `servers`, one cluster after the other. Raises nothing."""
    owners: list[Owner] = []
    found: list[ClusterFacts] = []
    for query in queries:
        run = query.ledger.newest_run
        if query.problem or run is None or query.state in NO_RUN:
            continue
        try:
            owners += owners_of(CheckpointLocation(query.path), query.ledger, fitting(run, given))
        except (TwoPhaseCommitError, OSError) as problem:
            found.append(ClusterFacts(query.path, answered=None, problem=f"Its sink can't be asked: {problem}"))
    try:
        configs = configs_of(owners, servers, given)
    except TwoPhaseCommitError as problem:
        return [*found, ClusterFacts(servers or "", answered=None, problem=str(problem))]
    seen: set[str] = set()
    for config in configs:
        try:
            with closing(KafkaAdmin(config)) as admin:
                if admin.cluster_id() not in seen:
                    seen.add(admin.cluster_id())
                    found.append(_look(of_cluster(admin, owners), queries))
        except (TwoPhaseCommitError, OSError) as problem:  # noqa: PERF203 - one cluster's failure is no other's
            found.append(
                ClusterFacts(config.bootstrap_servers, answered=False, problem=f"The brokers can't be asked: {problem}")
            )
    return found


def _look(cluster: Cluster, queries: Sequence[QueryFacts]) -> ClusterFacts:
    view, assessments = cluster.look()
    groups: dict[Partition, Sequence[str]] = {}
    lags: dict[str, Mapping[str, int]] = {}
    unknown = []
    try:
        groups = dict(waiting_groups(cluster.config, view.held))
    except TwoPhaseCommitError as refused:
        unknown.append(f"Who waits is not known: {refused.message}")
    for query in queries:
        try:
            lags |= {query.path: _lags(cluster.admin, query.sources)} if query.sources else {}
        except TwoPhaseCommitError as refused:  # noqa: PERF203 - one query's rights are no other's
            unknown.append(f"The lag of {query.path} is not known: {refused.message}")
    servers = cluster.config.bootstrap_servers
    return ClusterFacts(servers, view, assessments, groups, lags, problem=" ".join(unknown))


def _lags(admin: KafkaAdmin, sources: Sequence[SourceOffset]) -> dict[str, int]:
    """Return how far the sources are behind, per topic; nothing of a topic that is not here, or has another id here."""
    here = admin.topics({partition.topic for source in sources for partition in source.topics}, ())
    partitions = PartitionAdmin(admin)
    found: dict[str, int] = {}
    for topic, info in here.items():
        ends = partitions.ends(topic)
        for source in sources:
            if source.ids.get(topic) == short_id(info.topic_id):
                behind = (
                    max(0, ends[place][0] - offset)
                    for place, offset in source.topics.items()
                    if place.topic == topic and place in ends
                )
                found[topic] = found.get(topic, 0) + sum(behind)
    return found
