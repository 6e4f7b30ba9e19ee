"""What the page and the metrics show of queries and clusters, looked at once. Immutable."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.client.topics import Partition, short_id
from connector.kafka.source.offsets import SourceOffset
from connector.location.location import CheckpointLocation
from connector.location.offset_log import source_lines
from connector.spark.process import is_alive
from connector.transactions.assessment import Assessment
from connector.transactions.clusters import clusters_of
from connector.transactions.in_journals import Owner, owner_of
from connector.transactions.on_brokers import ClusterView
from connector.transactions.waiting import waiting_groups
from connector.views.queries import QueryState, state_of
from transactional.errors import TwoPhaseCommitError
from transactional.journal import Journal
from transactional.ledger import Ledger

__all__ = ["ClusterFacts", "QueryFacts", "look_at_clusters", "look_at_query"]


@dataclass(frozen=True)
class QueryFacts:
    """A query, as its location shows it.

    Parameters
    ----------
    path : str
        Of its location, as it was given.
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
    """

    path: str
    ledger: Ledger = field(default_factory=Ledger)
    state: QueryState = QueryState.EMPTY
    sentence: str = ""
    alive: bool | None = None
    doing: bool | None = None
    sources: Sequence[SourceOffset] = ()
    problem: str = ""


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
    problem: str = ""
    time: int = field(default_factory=lambda: int(1000 * time.time()))


def look_at_query(path: str, location: CheckpointLocation, journal: Journal) -> QueryFacts:
    """Read what is new in a location. Raises nothing: what went wrong is among the facts."""
    try:
        ledger = journal.load()
        if not ledger.position:
            return QueryFacts(path, problem="There is no journal: no sink of ours has run on it.")
        alive = is_alive(ledger.newest_run.process) if ledger.newest_run else None
        doing = is_alive(ledger.rewinding.request.get("process", {})) if ledger.rewinding else None
        state, sentence = state_of(ledger, alive)
        return QueryFacts(path, ledger, state, sentence, alive, doing, _settled_sources(location, ledger))
    except (TwoPhaseCommitError, OSError) as problem:
        return QueryFacts(path, problem=f"It can't be read: {problem}")


def _settled_sources(location: CheckpointLocation, ledger: Ledger) -> list[SourceOffset]:
    """Return where the last settled micro-batch ends; Spark deletes old files, and a rewound one has none."""
    try:
        lines = source_lines(location, ledger.settled)
    except (TwoPhaseCommitError, OSError):
        return []
    return [SourceOffset.from_json(json.loads(line.text)) for line in lines if line.offset is not None]


def look_at_clusters(
    queries: Sequence[QueryFacts], servers: str | None, given: Mapping[str, str]
) -> list[ClusterFacts]:
    """Ask the brokers that the queries write into, or those at `servers`. Raises nothing."""
    owners: list[Owner] = []
    found: list[ClusterFacts] = []
    for query in queries:
        if query.problem or query.state in (QueryState.EMPTY, QueryState.MOVED, QueryState.RESTORING):
            continue
        try:
            owners.append(owner_of(CheckpointLocation(query.path), query.ledger, given))
        except (TwoPhaseCommitError, OSError) as problem:
            found.append(ClusterFacts(query.path, problem=str(problem)))
    if servers is None and not any(owner.sink for owner in owners):
        return found
    try:
        with clusters_of(owners, servers, given) as clusters:
            for cluster in clusters:
                view, assessments = cluster.look()
                groups, unknown = {}, ""
                try:
                    groups = dict(waiting_groups(cluster.config, view.held))
                except TwoPhaseCommitError as refused:
                    unknown = f"Who waits is not known: {refused.message}"
                lags = {query.path: _lags(cluster.admin, query.sources) for query in queries if query.sources}
                found.append(ClusterFacts(cluster.config.bootstrap_servers, view, assessments, groups, lags, unknown))
    except (TwoPhaseCommitError, OSError) as problem:
        known = ", ".join(sorted({owner.sink.client.bootstrap_servers for owner in owners if owner.sink is not None}))
        found.append(ClusterFacts(servers or known, problem=f"The brokers can't be asked: {problem}"))
    return found


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
