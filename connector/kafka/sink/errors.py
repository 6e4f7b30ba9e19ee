"""Errors of transactions whose end is not what the protocol asked for, with the remedy of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from connector.kafka.client.admin import CLUSTER_DENIED
from connector.kafka.client.errors import error_name
from connector.kafka.client.partition_admin import OpenTransaction
from connector.kafka.client.topics import Partition
from connector.kafka.sink.fates import Whole
from connector.kafka.sink.handles import Prepared
from transactional.errors import AmbiguousOutcomeError, RetriableError, StoreError, TransactionLostError

__all__ = ["markers_pending", "refusal", "skipped_marker", "transactions_lost", "unknown_outcome"]

PARTITIONS_NAMED = 10
"""Partitions that one message names."""


def transactions_lost(lost: Sequence[Prepared], reason: str) -> TransactionLostError:
    """Return the error of transactions that were aborted instead of committed.

    Parameters
    ----------
    lost : Sequence[Prepared]
        At least one.
    reason : str
        A sentence.
    """
    return TransactionLostError(
        "TRANSACTION_LOST",
        f"{len(lost)} prepared transactions are lost; the first is {lost[0]}. {reason} Start the query again: it writes "
        "their rows again.",
        handles=[transaction.handle for transaction in lost],
    )


def unknown_outcome(unknown: Sequence[tuple[Prepared, Whole]]) -> AmbiguousOutcomeError:
    """Return the error of transactions whose outcome an operator has to decide.

    Parameters
    ----------
    unknown : Sequence[tuple[Prepared, Whole]]
        At least one.
    """
    transaction, whole = unknown[0]
    more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    if whole.divided:
        what = (
            f"Of {transaction}{more} readers see some rows, and others are gone: {whole.state.evidence}. Writing them again "
            "would double those that are there, so nothing is done by itself."
        )
    else:
        what = f"It is unknown whether {transaction}{more} was committed: {whole.state.evidence}."
    return AmbiguousOutcomeError(
        "OUTCOME_UNKNOWN",
        f"{what} Look at the topic, then decide: `barrier resolve LOCATION`.",
        handles=[dict(prepared.handle) for prepared, _ in unknown],
        evidence=whole.state.evidence,
    )


def markers_pending(transactions: Sequence[Prepared], partitions: Iterable[object], ended: str) -> RetriableError:
    """Return the error of transactions that have ended and whose markers are not written yet.

    Parameters
    ----------
    transactions : Sequence[Prepared]
    partitions : Iterable[object]
        The partitions that lack a marker, for the message.
    ended : str
        How they ended, and what is not known or visible because of it.
    """
    names = ", ".join(sorted({str(item) for item in partitions})[:PARTITIONS_NAMED])
    return RetriableError(
        "MARKERS_PENDING",
        f"{len(transactions)} transactions {ended}: their markers are not written yet in {names}. Has one of these partitions "
        "no leader, or fewer replicas in sync than min.insync.replicas? Start the query again when it has: it waits again, "
        "and there is nothing to resolve.",
        transactionalIds=[item.name for item in transactions],
    )


def skipped_marker(what: str, remedy: str, name: str, partition: Partition, opened: OpenTransaction) -> StoreError:
    """Return the error of a marker that is missing, and that can't be written.

    Parameters
    ----------
    what, remedy : str
        The transaction and where it hangs; what to do. Without full stops.
    name : str
        The transactional id.
    partition : Partition
    opened : OpenTransaction
    """
    return StoreError(
        "MARKERS_SKIPPED",
        f"{what}: the coordinator left its marker out (KAFKA-20734, brokers 4.3.0 and 4.3.1), and read_committed readers of "
        f"the partition wait. {remedy}. `kafka-transactions.sh abort` is no remedy: it would lose the rows of a commit.",
        transactionalId=name,
        partition=f"{partition.topic} [{partition.number}]",
        offset=opened.start,
    )


def refusal(code: int) -> str:
    """Return what to do about a marker that was refused."""
    if code == CLUSTER_DENIED:
        return (
            "This user lacks CLUSTER_ACTION on the cluster (ALTER is enough from Kafka 3.8 on): grant it for one start of the "
            "query, which writes the marker"
        )
    return f"Its leader refused the marker: {error_name(code)}. Start the query again"
