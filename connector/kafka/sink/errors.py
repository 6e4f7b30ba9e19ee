"""Errors for transactions that did not end as the sink requested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from connector.kafka.client.cluster_admin import CLUSTER_DENIED
from connector.kafka.client.errors import error_name
from connector.kafka.client.partition_admin import OpenTransaction
from connector.kafka.client.topics import Partition
from connector.kafka.sink.fates import Whole
from connector.kafka.sink.handles import Prepared
from transactional.errors import AmbiguousOutcomeError, RetriableError, StoreError, TransactionLostError

PARTITIONS_NAMED = 10
"""The maximum number of partitions that one message names."""


def transactions_lost(lost: Sequence[Prepared], reason: str) -> TransactionLostError:
    """Return the error for transactions that were aborted instead of committed."""
    return TransactionLostError(
        "TRANSACTION_LOST",
        handles=[transaction.handle for transaction in lost],
        reason=f"{len(lost)} in all, the first is {lost[0]}; {reason}",
    )


def unknown_outcome(unknown: Sequence[tuple[Prepared, Whole]]) -> AmbiguousOutcomeError:
    """Return the error for transactions whose outcome an operator has to decide."""
    transaction, whole = unknown[0]
    more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    evidence = whole.state.evidence
    if whole.divided:
        evidence = (
            "readers see some of its rows, but other rows are gone. Writing all of them again would duplicate some: "
            f"{evidence}"
        )
    return AmbiguousOutcomeError(
        "OUTCOME_UNKNOWN",
        transaction=f"{transaction}{more}",
        handles=[dict(prepared.handle) for prepared, _ in unknown],
        evidence=evidence,
    )


def markers_pending(transactions: Sequence[Prepared], partitions: Iterable[object], state: str) -> RetriableError:
    """Return the error for transactions whose markers are not visible yet. `state` is a sentence without a period."""
    names = ", ".join(sorted({str(item) for item in partitions})[:PARTITIONS_NAMED])
    return RetriableError(
        "MARKERS_PENDING",
        count=len(transactions),
        state=state,
        partitions=names or "any partition",
        transactionalIds=[item.name for item in transactions],
    )


def skipped_marker(what: str, reason: str, name: str, partition: Partition, opened: OpenTransaction) -> StoreError:
    """Return the error for a transaction (`what`) whose marker is missing in a partition and can't be written."""
    return StoreError(
        "MARKERS_SKIPPED",
        transaction=what,
        reason=reason,
        transactionalId=name,
        partition=f"{partition.topic} [{partition.number}]",
        offset=opened.start,
    )


def refusal(code: int) -> str:
    """Return why a leader rejected a marker, as text for a message."""
    if code == CLUSTER_DENIED:
        return (
            "this user lacks CLUSTER_ACTION on the cluster (from Kafka 3.8 on, ALTER is enough). Grant this right, and "
            "start the query again: it writes the marker. After that, you can revoke the right"
        )
    return f"the leader rejected the marker: {error_name(code)}"
