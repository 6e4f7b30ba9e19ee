"""The abort of a transaction that belongs to no query of ours, or to one that was stopped."""

from __future__ import annotations

from typing import Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.sink.end_txn import TransactionEnder
from connector.kafka.sink.transactional_ids import TransactionalId
from connector.transactions.assessment import Assessment, Verdict
from transactional.clock import Deadline
from transactional.errors import ProtocolError

__all__ = ["abort", "check_abort"]

END_SECONDS: Final = 60.0


def check_abort(assessment: Assessment) -> None:
    """Check that a transaction may be aborted from outside: it is open, and no journal decides about it, or may."""
    if assessment.verdict is Verdict.STRANGER and TransactionalId.parse(assessment.transaction.name) is None:
        return
    if assessment.verdict is Verdict.LINGERING and assessment.owner is not None and assessment.owner.is_done:
        return
    command = f" `{assessment.command}`" if assessment.command else ""
    raise ProtocolError(
        "ABORT_REFUSED",
        transaction=str(assessment.transaction),
        reason=f"it is {assessment.verdict.value}. {assessment.reason}",
        way=f"{assessment.advice}{command}",
    )


def abort(admin: KafkaAdmin, assessment: Assessment) -> bool:
    """Abort a transaction that `check_abort` lets pass, and fence its producer; False if another one is open by now."""
    check_abort(assessment)
    seen = assessment.transaction
    version, cluster = admin.end_txn_version(), admin.cluster_id()
    described = admin.describe([seen.name]).get(seen.name)
    # A producer whose clients are older uses one epoch for all of its transactions: the time distinguishes them.
    if described is None or (
        (described.state, described.producer_id, described.producer_epoch, described.started_ms)
        != ("Ongoing", seen.producer_id, seen.producer_epoch, seen.started_ms)
    ):
        return False
    ender = TransactionEnder(admin, cluster)
    return ender.abort_open({seen.name: described}, version, Deadline(END_SECONDS, admin.clock)) == 1
