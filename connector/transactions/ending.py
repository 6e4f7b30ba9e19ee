"""Ending a transaction that no journal names: an abort of a stranger's, the missing marker of one that hangs."""

from __future__ import annotations

from typing import Final

from connector.kafka.client.admin import Description, KafkaAdmin
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.sink.end_txn import TransactionEnder
from connector.kafka.sink.hanging import HangingTransaction, write_missing_marker
from connector.kafka.sink.transactional_ids import TransactionalId
from connector.transactions.assessment import Assessment, Verdict
from transactional.clock import Deadline
from transactional.errors import ProtocolError

__all__ = ["check_end", "end"]

END_SECONDS: Final = 60.0

COMPLETE: Final = {True: "CompleteCommit", False: "CompleteAbort"}


def check_end(assessment: Assessment, commit: bool) -> str:
    """Check that a transaction may be ended in this way from outside, and return what that means for its rows.

    Raises
    ------
    ProtocolError
        ``END_REFUSED``: a journal says otherwise, or may; its program may still write; or only its program knows whether it
        is complete.
    """
    transaction, verdict = assessment.transaction, assessment.verdict
    safe = f"{assessment.advice} {assessment.command}".strip()
    if assessment.owner is not None:
        raise _refused(assessment, commit, assessment.reason, safe)
    if verdict is Verdict.HANGING:
        if transaction.state != COMPLETE[commit]:
            raise _refused(assessment, commit, assessment.reason, safe)
        rows = "can be read" if commit else "are never seen"
        return f"the missing marker is written in {len(transaction.opened)} partitions, and its rows {rows}"
    if verdict is Verdict.ENDING:
        raise _refused(assessment, commit, assessment.reason, safe)
    if commit or TransactionalId.parse(transaction.name) is not None:
        why = "only its program knows whether it is complete" if commit else assessment.reason
        raise _refused(assessment, commit, why, safe)
    return "its producer is fenced, and its rows are never seen"


def end(admin: KafkaAdmin, assessment: Assessment, commit: bool) -> bool:
    """End a transaction that `check_end` lets end; return False if it was not as it was when it was looked at.

    Raises
    ------
    ProtocolError
        ``END_REFUSED``
    StoreError
        ``MISSING_RIGHT``, ``KAFKA_REFUSED``; ``MARKERS_SKIPPED``: the marker can't be written.
    RetriableError
        ``KAFKA_TIMEOUT``
    """
    check_end(assessment, commit)
    transaction = assessment.transaction
    version = admin.end_txn_version()
    if assessment.verdict is not Verdict.HANGING:
        described = Description(
            transaction.state,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.started_ms,
            transaction.partitions,
        )
        ender = TransactionEnder(admin, admin.cluster_id())
        return ender.abort_open({transaction.name: described}, version, Deadline(END_SECONDS, admin.clock)) == 1
    partitions = PartitionAdmin(admin)
    still = partitions.open_transactions(transaction.opened)
    hanging = [
        HangingTransaction(
            place,
            transaction.name,
            transaction.producer_id,
            transaction.state,
            transaction.coordinator_epoch,
            still[place][transaction.producer_id],
        )
        for place, each in transaction.opened.items()
        if still.get(place, {}).get(transaction.producer_id) == each
    ]
    for each in hanging:
        write_missing_marker(partitions, each, version)
    return bool(hanging)


def _refused(assessment: Assessment, commit: bool, reason: str, way: str) -> ProtocolError:
    return ProtocolError(
        "END_REFUSED",
        transaction=str(assessment.transaction),
        ended="committed" if commit else "aborted",
        reason=reason.rstrip("."),
        way=way,
    )
