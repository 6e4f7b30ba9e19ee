"""Figures of queries and clusters under the names of metrics: computed from the facts each time, so a restart loses none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.serving.facts import ClusterFacts, QueryFacts
from connector.transactions.assessment import Verdict
from connector.views.queries import QueryState
from transactional.ledger import Ledger
from transactional.stats import counts, newest_completed, pending, unsettled

__all__ = ["METRICS", "Metric", "Sample", "samples"]


@dataclass(frozen=True)
class Metric:
    """A metric.

    Parameters
    ----------
    text : str
        What it counts or measures, and its unit.
    labels : tuple[str, ...]
    grows : bool
        It is a counter; otherwise a gauge.
    """

    text: str
    labels: tuple[str, ...] = ("location",)
    grows: bool = False


@dataclass(frozen=True)
class Sample:
    """A value of a metric.

    Parameters
    ----------
    name : str
        Of `METRICS`.
    value : float
    labels : tuple[str, ...]
        Values, in the order of the metric's labels.
    """

    name: str
    value: float
    labels: tuple[str, ...]


_STEP = ("location", "step")
METRICS: Final[Mapping[str, Metric]] = {
    "barrier_last_look_timestamp_seconds": Metric(
        "When the journal was last read, in seconds since 1970; 0 before the first time."
    ),
    "barrier_journal_readable": Metric("1 if the query's journal can be read."),
    "barrier_query_state": Metric("1 for the present state of the query, 0 for the others.", ("location", "state")),
    "barrier_checkpoints_total": Metric(
        "Checkpoints by outcome: triggered, completed, failed, declined.", ("location", "outcome"), grows=True
    ),
    "barrier_checkpoint_seconds_total": Metric(
        "Time of completed checkpoints by step: until prepared, decided, committed.", _STEP, grows=True
    ),
    "barrier_committed_rows_total": Metric("Rows of completed checkpoints.", grows=True),
    "barrier_committed_bytes_total": Metric("Bytes of completed checkpoints.", grows=True),
    "barrier_restores_total": Metric("Runs that went on after a completed checkpoint.", grows=True),
    "barrier_restarts_total": Metric("Times that a supervisor started the query again.", grows=True),
    "barrier_rewinds_total": Metric("Rewinds to an earlier checkpoint.", grows=True),
    "barrier_repaired_parts_total": Metric("Parts whose rows were lost and written again.", grows=True),
    "barrier_last_checkpoint_timestamp_seconds": Metric("When the last checkpoint was completed; seconds since 1970."),
    "barrier_last_checkpoint_seconds": Metric("Time of the last completed checkpoint by step.", _STEP),
    "barrier_prepared_transactions": Metric("Prepared transactions that no checkpoint has decided."),
    "barrier_prepared_rows": Metric("Rows of these transactions."),
    "barrier_oldest_transaction_seconds": Metric(
        "Age of the oldest transaction that is not known to be committed; 0 if there is none."
    ),
    "barrier_transaction_lifetime_seconds": Metric("How long the store keeps a prepared transaction."),
    "barrier_transaction_overdue": Metric("1 if the store may have aborted the oldest transaction."),
    "barrier_unsettled_checkpoints": Metric("Decided checkpoints whose transactions are not all committed."),
    "barrier_lost_parts": Metric("Parts of decided checkpoints that are lost and not repaired yet."),
    "barrier_micro_batches_to_repeat": Metric("Micro-batches whose transactions were lost before a decision."),
    "barrier_journal_entries": Metric("Number of the journal's last entry."),
    "barrier_source_lag_offsets": Metric(
        "Offsets from the end of the last settled micro-batch to the topic's last stable offset.", ("location", "topic")
    ),
    "barrier_brokers_reachable": Metric("1 if the brokers answered.", ("servers",)),
    "barrier_open_transactions": Metric("Open transactions on the brokers by verdict.", ("servers", "verdict")),
    "barrier_stable_offset_lag": Metric(
        "Offsets from the last stable offset to the high watermark of a partition whose consumers are blocked.",
        ("servers", "topic", "partition"),
    ),
    "barrier_stable_offset": Metric("The last stable offset of such a partition.", ("servers", "topic", "partition")),
}
"""All metrics, by name."""


def samples(queries: Sequence[QueryFacts], clusters: Sequence[ClusterFacts], now: float) -> Iterator[Sample]:
    """Return the values of all metrics, at a time in seconds since the epoch."""
    for query in queries:
        yield Sample("barrier_last_look_timestamp_seconds", query.looked, (query.path,))
        if not query.looked:
            continue
        yield Sample("barrier_journal_readable", float(not query.problem), (query.path,))
        if not query.problem:
            for name, value, *labels in _of_query(query, now):
                yield Sample(f"barrier_{name}", value, (query.path, *labels))
    for cluster in clusters:
        yield from _of_cluster(cluster)


def _of_query(query: QueryFacts, now: float) -> Iterator[Any]:
    ledger = query.ledger
    for state in QueryState:
        yield "query_state", float(query.state is state), state.name.lower()
    if ledger.restoring is None:  # afterwards they are those of the origin: an increase would count all of them
        yield from _counters(ledger)
    last = newest_completed(ledger)
    if last is not None:
        yield "last_checkpoint_timestamp_seconds", (last.committed or 0) / 1000
        steps = {"prepared": last.preparing_ms, "decided": last.deciding_ms, "committed": last.committing_ms}
        for step, taken in steps.items():
            if taken is not None:
                yield "last_checkpoint_seconds", taken / 1000, step
    waiting, open_ones = pending(ledger, now), unsettled(ledger)
    yield "prepared_transactions", waiting.handles
    yield "prepared_rows", waiting.rows
    yield "oldest_transaction_seconds", waiting.oldest_age or 0
    yield "transaction_overdue", float(waiting.overdue)
    run = ledger.newest_run
    lifetime = waiting.lifetime if waiting.lifetime is not None else run and run.lifetime
    if lifetime is not None:
        yield "transaction_lifetime_seconds", lifetime
    yield "unsettled_checkpoints", len(open_ones)
    yield "lost_parts", sum(each.lost for each in open_ones)
    yield "micro_batches_to_repeat", len(ledger.voided)
    yield "journal_entries", ledger.position


def _counters(ledger: Ledger) -> Iterator[Any]:
    totals = ledger.totals
    number = counts(ledger)
    for outcome in ("triggered", "completed", "failed", "declined"):
        yield "checkpoints_total", number[outcome], outcome
    for step in ("prepared", "decided", "committed"):
        yield "checkpoint_seconds_total", totals.get(f"{step}_ms", 0) / 1000, step
    yield "committed_rows_total", totals.get("rows", 0)
    yield "committed_bytes_total", totals.get("bytes", 0)
    yield "restores_total", number["restored"]
    yield "restarts_total", number["restarts"]
    yield "rewinds_total", totals.get("rewound", 0)
    yield "repaired_parts_total", totals.get("repaired", 0)


def _of_cluster(cluster: ClusterFacts) -> Iterator[Sample]:
    if cluster.answered is None:
        return
    yield Sample("barrier_brokers_reachable", float(cluster.answered), (cluster.servers,))
    if not cluster.answered:
        return
    for location, lags in cluster.lags.items():
        for topic, behind in lags.items():
            yield Sample("barrier_source_lag_offsets", behind, (location, topic))
    for verdict in Verdict:
        number = sum(each.verdict is verdict for each in cluster.assessments)
        yield Sample("barrier_open_transactions", number, (cluster.servers, verdict.name.lower()))
    for held in cluster.view.held:
        labels = (cluster.servers, held.partition.topic, str(held.partition.number))
        yield Sample("barrier_stable_offset_lag", held.high - held.stable, labels)
        yield Sample("barrier_stable_offset", held.stable, labels)
