"""Abort a transaction that belongs to none of the known queries, or to a query that was stopped."""

from __future__ import annotations

from typing import Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.sink.end_txn import TransactionEnder
from connector.kafka.sink.transactional_ids import TransactionalId
from connector.transactions.assessment import Assessment, Verdict
from transactional.clock import Deadline
from transactional.errors import ProtocolError

END_SECONDS: Final = 60.0


def check_abort(assessment: Assessment) -> None:
    """Check that a command may abort a transaction: no query has decided to commit it, and none will.

    Raises
    ------
    ProtocolError
        ``ABORT_REFUSED``: the command must not abort this transaction.
    """
    if assessment.verdict is Verdict.STRANGER and TransactionalId.parse(assessment.transaction.name) is None:
        return
    if assessment.verdict is Verdict.LINGERING and assessment.owner is not None and assessment.owner.is_done:
        return
    command = f" `{assessment.command}`" if assessment.command else ""
    raise ProtocolError(
        "ABORT_REFUSED",
        transaction=str(assessment.transaction),
        reason=f"the verdict is '{assessment.verdict.value}'. {assessment.reason}",
        way=f"{assessment.advice}{command}",
    )


def abort(admin: KafkaAdmin, assessment: Assessment) -> bool:
    """Abort a transaction that passes `check_abort`, and fence its producer. Return False if it is no longer open."""
    check_abort(assessment)
    seen = assessment.transaction
    version, cluster = admin.end_txn_version(), admin.cluster_id()
    described = admin.describe([seen.name]).get(seen.name)
    # A producer with an older client uses one epoch for all its transactions. Their start times distinguish them.
    if described is None or (
        (described.state, described.producer_id, described.producer_epoch, described.started_ms)
        != ("Ongoing", seen.producer_id, seen.producer_epoch, seen.started_ms)
    ):
        return False
    ender = TransactionEnder(admin, cluster)
    return ender.abort_open({seen.name: described}, version, Deadline(END_SECONDS, admin.clock)) == 1
