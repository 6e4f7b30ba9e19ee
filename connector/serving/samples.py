"""Compute the values of all metrics. Counts come from the journals, so none is lost if the exporter restarts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.serving.facts import ClusterFacts, QueryFacts
from connector.transactions.assessment import Verdict
from connector.views.queries import QueryState
from transactional.ledger import Ledger
from transactional.stats import counts, newest_completed, pending, unsettled


@dataclass(frozen=True)
class Metric:
    """The definition of a metric: its description, the names of its labels, and whether it is a counter."""

    text: str  # A description of the metric, with its unit.
    labels: tuple[str, ...] = ("location",)  # The names of the metric's labels.
    grows: bool = False  # Whether the metric is a counter; otherwise it is a gauge.


@dataclass(frozen=True)
class Sample:
    """A metric's value for one set of labels."""

    name: str  # The name of the metric, a key of `METRICS`.
    value: float  # The value of the metric.
    labels: tuple[str, ...]  # The values of the labels, in the order of the metric's labels.


_STEP = ("location", "step")
METRICS: Final[Mapping[str, Metric]] = {
    "barrier_last_look_timestamp_seconds": Metric(
        "Time when the query's journal was last read, in seconds since 1970; 0 before the first read."
    ),
    "barrier_journal_readable": Metric("1 if the query's journal can be read, otherwise 0."),
    "barrier_query_state": Metric("1 for the query's present state, 0 for every other state.", ("location", "state")),
    "barrier_checkpoints_total": Metric(
        "Number of checkpoints by outcome: triggered, completed, failed, declined.", ("location", "outcome"), grows=True
    ),
    "barrier_checkpoint_seconds_total": Metric(
        "Total duration of completed checkpoints by step (until prepared, decided, committed), in seconds.",
        _STEP,
        grows=True,
    ),
    "barrier_committed_rows_total": Metric("Number of rows in completed checkpoints.", grows=True),
    "barrier_committed_bytes_total": Metric("Number of bytes in completed checkpoints.", grows=True),
    "barrier_restores_total": Metric("Number of runs that continued after a completed checkpoint.", grows=True),
    "barrier_restarts_total": Metric("Number of times that a supervisor restarted the query.", grows=True),
    "barrier_rewinds_total": Metric("Number of rewinds to an earlier checkpoint.", grows=True),
    "barrier_repaired_parts_total": Metric("Number of parts whose rows were lost and written again.", grows=True),
    "barrier_last_checkpoint_timestamp_seconds": Metric(
        "Time when the last checkpoint was completed, in seconds since 1970."
    ),
    "barrier_last_checkpoint_seconds": Metric("Duration of the last completed checkpoint by step, in seconds.", _STEP),
    "barrier_prepared_transactions": Metric("Number of prepared transactions that no checkpoint has decided."),
    "barrier_prepared_rows": Metric("Number of rows in prepared transactions that no checkpoint has decided."),
    "barrier_oldest_transaction_seconds": Metric(
        "Age of the oldest transaction that is not known to be committed, in seconds; 0 if there is none."
    ),
    "barrier_transaction_lifetime_seconds": Metric("How long the store keeps a prepared transaction, in seconds."),
    "barrier_transaction_overdue": Metric("1 if the store may have aborted the oldest transaction, otherwise 0."),
    "barrier_unsettled_checkpoints": Metric("Number of decided checkpoints whose transactions are not all committed."),
    "barrier_lost_parts": Metric("Number of parts of decided checkpoints that are lost and not repaired yet."),
    "barrier_micro_batches_to_repeat": Metric(
        "Number of micro-batches that must run again, because their transactions were lost before a decision."
    ),
    "barrier_journal_entries": Metric("Number of the journal's last entry."),
    "barrier_source_lag_offsets": Metric(
        "Number of offsets from the end of the last settled micro-batch to the topic's last stable offset.",
        ("location", "topic"),
    ),
    "barrier_brokers_reachable": Metric("1 if the brokers answered, otherwise 0.", ("servers",)),
    "barrier_open_transactions": Metric(
        "Number of open transactions on the brokers, by verdict.", ("servers", "verdict")
    ),
    "barrier_stable_offset_lag": Metric(
        "Number of offsets from the last stable offset to the high watermark of a partition whose consumers are blocked.",
        ("servers", "topic", "partition"),
    ),
    "barrier_stable_offset": Metric(
        "Last stable offset of a partition whose consumers are blocked.", ("servers", "topic", "partition")
    ),
}
"""The definitions of all metrics, by name."""


def samples(queries: Sequence[QueryFacts], clusters: Sequence[ClusterFacts], now: float) -> Iterator[Sample]:
    """Yield the values of all metrics; `now` is the present time, in seconds since 1970."""
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
    if ledger.restoring is None:  # else they jump to the origin's counts later, which looks like an increase
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
