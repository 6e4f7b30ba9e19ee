"""Snapshots of the facts about queries and clusters that the page and the metrics show."""

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
from connector.location.offset_log import newest, source_lines
from connector.spark.first_start import has_begun
from connector.spark.recorded_sink import fitting
from connector.transactions.assessment import Assessment
from connector.transactions.clusters import Cluster, configs_of, of_cluster
from connector.transactions.in_journals import Owner, owners_of
from connector.transactions.on_brokers import ClusterView
from connector.transactions.waiting import waiting_groups
from connector.views.queries import QueryState, processes_alive, state_of
from transactional.barrier import BarrierKind
from transactional.errors import TwoPhaseCommitError
from transactional.journal import Journal
from transactional.ledger import Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueryFacts:
    """The facts about a query, from one read of its checkpoint location."""

    path: str  # The path of the checkpoint location.
    # The ledger of the journal; empty if the journal can't be read or does not exist.
    ledger: Ledger = field(default_factory=Ledger)
    state: QueryState = QueryState.EMPTY  # The state of the query.
    sentence: str = ""  # An explanation of the state.
    # `alive` says whether the query's driver is running, `doing` whether the process of a started rewind is running. None if
    # unknown, or if there is no such process.
    alive: bool | None = None
    doing: bool | None = None
    # The offsets of the query's ``barrier-kafka`` sources at the end of the last settled micro-batch; empty if unknown.
    sources: Sequence[SourceOffset] = ()
    # Whether the driver ended after the final checkpoint of its run, as with ``availableNow`` and ``once``.
    finished: bool = False
    problem: str = ""  # The reason why the location can't be read; empty if the location was read.
    looked: float = 0.0  # The time of the read, in seconds since 1970; 0 before the first read.

    @property
    def word(self) -> str:
        """The query's state as the page shows it."""
        return "ended after final checkpoint" if self.finished else self.state.value

    @property
    def news(self) -> tuple[Any, ...]:
        """The facts that a page shows. If one of them has changed since the last read, the page is updated."""
        return self.ledger.position, self.state, self.alive, self.doing, self.sources, self.problem, not self.looked


@dataclass(frozen=True)
class ClusterFacts:
    """A Kafka cluster's open transactions, blocked partitions and lags, as its brokers last reported them."""

    servers: str  # The addresses of the brokers.
    # The open transactions and blocked partitions of the cluster.
    view: ClusterView = field(default_factory=lambda: ClusterView((), (), ()))
    assessments: Sequence[Assessment] = ()  # The cluster's open transactions, each with its verdict.
    # For each blocked partition, the consumer groups that seem to wait there.
    groups: Mapping[Partition, Sequence[str]] = field(default_factory=dict)
    # The lag by location and topic: the number of offsets from the end of the last settled micro-batch to the topic's last
    # stable offset. Contains only topics of this cluster.
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    answered: bool | None = True  # Whether the brokers answered; None if they were not asked.
    problem: str = ""  # Says which facts are unknown, and why; empty if all are known.
    # The time when the brokers were asked, in milliseconds since 1970.
    time: int = field(default_factory=lambda: int(1000 * time.time()))


NO_RUN = (QueryState.EMPTY, QueryState.BEGUN, QueryState.MOVED, QueryState.RESTORING)

BEGUN = (
    "Spark has started a query, but the journal has no run yet: the driver is starting now, or died during its first start. "
    "If the driver is dead, start the query again."
)


def look_at_query(location: CheckpointLocation, journal: Journal) -> QueryFacts:
    """Read a location's new journal entries, and return the query's facts. If this fails, `problem` has the reason."""
    path, now = location.path, time.time()
    try:
        ledger = journal.load()
        if not ledger.position:
            if has_begun(location):
                return QueryFacts(path, state=QueryState.BEGUN, sentence=BEGUN, looked=now)
            return QueryFacts(path, sentence="There is no journal: no sink of barrier-kafka has run here.", looked=now)
        alive, doing = processes_alive(ledger)
        state, sentence = state_of(ledger, alive)
        sources, is_final = _settled_sources(location, ledger)
        finished = is_final and state is QueryState.GONE and _ends_settled(location, ledger)
        if finished:
            sentence = "The newest run ended after its final checkpoint; no transaction is open."
        return QueryFacts(path, ledger, state, sentence, alive, doing, sources, finished, looked=now)
    except (TwoPhaseCommitError, OSError) as problem:
        return QueryFacts(path, problem=f"The location can't be read: {problem}", looked=now)
    except Exception as problem:
        log.exception("%s could not be read", path)
        return QueryFacts(
            path, problem=f"The location can't be read: {type(problem).__name__}. The log has the details.", looked=now
        )


def _settled_sources(location: CheckpointLocation, ledger: Ledger) -> tuple[list[SourceOffset], bool]:
    """Return the sources' offsets after the last settled micro-batch, and whether each source made its final barrier there.

    If the offset file is missing or can't be read, return no offsets, and False.
    """
    try:
        lines = source_lines(location, ledger.settled)
        barriers = [line.barrier if line.ends_with_barrier else None for line in lines]
        is_final = bool(lines) and all(at is not None and at.kind is BarrierKind.FINAL for at in barriers)
        return [SourceOffset.from_json(json.loads(line.text)) for line in lines if line.offset is not None], is_final
    except (TwoPhaseCommitError, OSError, ValueError, KeyError, TypeError):
        return [], False


def _ends_settled(location: CheckpointLocation, ledger: Ledger) -> bool:
    """Return whether the newest run completed a checkpoint, and no later micro-batch was planned and no failure recorded."""
    run, last = ledger.newest_run, ledger.completed
    if run is None or last is None or run.ended or ledger.undecided() or ledger.unsettled() or ledger.voided:
        return False
    return last.id > run.token and newest(location, "offsets") == newest(location, "commits") == ledger.settled


def look_at_clusters(
    queries: Sequence[QueryFacts], servers: str | None, given: Mapping[str, str]
) -> list[ClusterFacts]:
    """Ask the brokers at `servers` (None: those that the queries write to); return each cluster's facts, or its `problem`."""
    owners: list[Owner] = []
    found: list[ClusterFacts] = []
    for query in queries:
        run = query.ledger.newest_run
        if query.problem or run is None or query.state in NO_RUN:
            continue
        try:
            owners += owners_of(CheckpointLocation(query.path), query.ledger, fitting(run, given))
        except (TwoPhaseCommitError, OSError) as problem:
            found.append(ClusterFacts(query.path, answered=None, problem=f"The query's sink can't be used: {problem}"))
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
        except (TwoPhaseCommitError, OSError) as problem:  # noqa: PERF203 - a failure of one cluster must not hide the others
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
        unknown.append(f"It is unknown which consumer groups are waiting: {refused.message}")
    for query in queries:
        try:
            lags |= {query.path: _lags(cluster.admin, query.sources)} if query.sources else {}
        except TwoPhaseCommitError as refused:  # noqa: PERF203 - one query's missing rights must not hide the others
            unknown.append(f"The lag of {query.path} is unknown: {refused.message}")
    servers = cluster.config.bootstrap_servers
    return ClusterFacts(servers, view, assessments, groups, lags, problem=" ".join(unknown))


def _lags(admin: KafkaAdmin, sources: Sequence[SourceOffset]) -> dict[str, int]:
    """Return, for each topic, the sources' lag in offsets. Omit topics that are not in this cluster, or have a different id."""
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
