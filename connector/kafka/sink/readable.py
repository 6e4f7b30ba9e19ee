"""A committed transaction is not the end: its rows have to be *readable*, in every partition.

EndTxn's NONE says that the coordinator has decided. Usually the markers follow within milliseconds. They come late if a
partition has no leader; a broker can leave one out for ever (KAFKA-20734: 4.3.0 and 4.3.1, partitions that had no leader at
that moment), and then every `read_committed` reader of the partition waits; and a marker from outside may have aborted a
part before, which the coordinator does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from connector.kafka.client.admin import NONE, Description, KafkaAdmin
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.sink.fates import Fate, PartFate, Whole, ended_fates
from connector.kafka.sink.handles import Key, Place, Prepared
from connector.kafka.sink.hanging import refusal, skipped_marker
from transactional.clock import Deadline
from transactional.errors import (
    AmbiguousOutcomeError,
    RetriableError,
    TransactionLostError,
    TwoPhaseCommitError,
)
from transactional.sink import HandleState, Outcome

__all__ = ["ensure_readable", "unknown_outcome"]

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.002, 0.5
"""Between looks: markers follow within 5 ms as a rule, 200 ms in 200 partitions of one broker."""

PATIENCE_SECONDS: Final = 0.1
"""How long to wait for markers before asking the leaders what holds readers back. Leaders describe all of their producers:
10 to 20 ms for hundreds. If other queries write to the same partitions, their open transactions hold back every checkpoint."""


def ensure_readable(
    admin: KafkaAdmin,
    partitions: PartitionAdmin,
    together: Sequence[Prepared],
    alone: Sequence[Prepared],
    deadline: Deadline,
) -> list[dict[str, Any]]:
    """Wait until `read_committed` readers see every row of committed transactions; repair what hangs.

    Parameters
    ----------
    admin : KafkaAdmin
    partitions : PartitionAdmin
    together : Sequence[Prepared]
        Those that one look has found open in every partition.
    alone : Sequence[Prepared]
        All others.
    deadline : Deadline

    Returns
    -------
    list[dict[str, Any]]
        Each marker that was written in place of the coordinator.

    Raises
    ------
    TransactionLostError
        Markers from outside have aborted these, whole.
    AmbiguousOutcomeError
        ``OUTCOME_UNKNOWN``: some rows can be read, others never will be.
    RetriableError
        ``MARKERS_PENDING``
    StoreError
        ``MARKERS_SKIPPED``: readers are blocked, and this user may not repair it, or there is no proof.
    """
    admin.limit = deadline
    try:
        return _Wait(admin, partitions, deadline).until_readable(list(together), list(alone))
    finally:
        admin.limit = None


class _Wait:
    def __init__(self, admin: KafkaAdmin, partitions: PartitionAdmin, deadline: Deadline) -> None:
        self._admin = admin
        self._partitions = partitions
        self._deadline = deadline
        self._seen: dict[Key, dict[Place, PartFate]] = {}
        self._repaired: list[dict[str, Any]] = []

    def until_readable(self, together: list[Prepared], alone: list[Prepared]) -> list[dict[str, Any]]:
        patience = Deadline(PATIENCE_SECONDS, self._admin.clock)
        pause = FIRST_PAUSE_SECONDS
        complete: dict[Key, Description] = {}
        while True:
            ask = patience.passed()
            for each, fates in [
                *zip(together, ended_fates(self._partitions, together, together=True, ask_leaders=ask), strict=True),
                *zip(alone, ended_fates(self._partitions, alone, ask_leaders=ask), strict=True),
            ]:
                self._seen.setdefault(each.key, {}).update({fate.part.place: fate for fate in fates})
            self._refuse_lost([*together, *alone])
            together, alone = self._still_open(together), self._still_open(alone)
            waiting = [*together, *alone]
            if not waiting:
                return self._repaired
            if ask:
                # Asked before the partitions were: all markers that it ever writes are there.
                for each in waiting:
                    if each.key in complete:
                        self._repair(each, complete[each.key])
                complete = self._completed(waiting)
            if self._deadline.passed():
                raise self._late(waiting)
            self._admin.clock.sleep(min(pause, max(self._deadline.left(), FIRST_PAUSE_SECONDS)))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _still_open(self, transactions: Sequence[Prepared]) -> list[Prepared]:
        """Those that have open partitions, with these only."""
        return [
            replace(each, written=tuple(fate.part for fate in fates))
            for each in transactions
            if (fates := self._open_parts(each))
        ]

    def _open_parts(self, transaction: Prepared) -> list[PartFate]:
        return [fate for fate in self._seen[transaction.key].values() if fate.fate is Fate.OPEN]

    def _refuse_lost(self, transactions: Sequence[Prepared]) -> None:
        whole: list[Prepared] = []
        divided: list[tuple[Prepared, Whole]] = []
        for each in transactions:
            fates = list(self._seen[each.key].values())
            gone = [fate for fate in fates if fate.fate in (Fate.ABORTED, Fate.CUT, Fate.UNKNOWN)]
            if fates and all(fate.fate is Fate.ABORTED for fate in fates):
                whole.append(each)
            elif gone:
                rest = [fate for fate in fates if fate not in gone]
                told = "; ".join(fate.evidence for fate in [*gone, *rest])
                divided.append((each, Whole(HandleState(Outcome.UNKNOWN, evidence=told), divided=True)))
        if divided:
            raise unknown_outcome(divided)
        if whole:
            raise TransactionLostError(
                "TRANSACTION_LOST",
                f"{len(whole)} transactions were committed, and markers from outside had aborted them before; the first is "
                f"{whole[0]}. Was `kafka-transactions.sh abort` run on its topic? The next start writes their rows again.",
                handles=[each.handle for each in whole],
            )

    def _completed(self, transactions: Sequence[Prepared]) -> dict[Key, Description]:
        described = self._admin.describe([each.name for each in transactions])
        return {
            each.key: found
            for each in transactions
            if (found := described.get(each.name)) is not None and not found.state.startswith("Prepare")
        }

    def _repair(self, transaction: Prepared, description: Description) -> None:
        for fate in self._open_parts(transaction):
            if fate.found is None:
                continue
            what = f"{transaction} is committed, and {fate.part} has it open from offset {fate.found.start}"
            proof, version = self._proof(transaction, description)
            if not proof:
                told = (
                    f"{description.state} of producer {description.producer_id} at epoch {description.producer_epoch}"
                )
                remedy = (
                    f"Its coordinator does not prove the commit any more ({told}), so the marker is not written: `barrier "
                    "resolve LOCATION` settles it by decision"
                )
                raise skipped_marker(what, remedy, transaction.name, fate.part.place, fate.found)
            code = self._partitions.write_marker(
                fate.part.place,
                transaction.producer_id,
                fate.found,
                transaction.producer_epoch + (version >= 5),
                True,
                version,
            )
            if code != NONE:
                raise skipped_marker(what, refusal(code), transaction.name, fate.part.place, fate.found)
            log.warning("%s: its coordinator had left the commit marker out, it was written in its place", what)
            self._repaired.append(
                {
                    "transactionalId": transaction.name,
                    "producerId": transaction.producer_id,
                    "producerEpoch": transaction.producer_epoch,
                    "topic": fate.part.topic,
                    "partition": fate.part.partition,
                    "offset": fate.found.start,
                    "marker": "commit",
                    "proof": proof,
                }
            )

    def _proof(self, transaction: Prepared, description: Description) -> tuple[str, int]:
        """How the commit is known, empty if it is not; and the version of EndTxn that made it."""
        if (description.state, description.producer_id) == ("CompleteCommit", transaction.producer_id):
            told = f"coordinator: {description.state} at epoch {description.producer_epoch}"
            if description.producer_epoch == transaction.ended_epoch:
                return told, transaction.end_version
            if description.producer_epoch == transaction.producer_epoch:
                return told, 4  # somebody else has committed it, by a version that leaves the epoch
        for fate in self._seen[transaction.key].values():
            if fate.fate is Fate.COMMITTED:
                return fate.evidence, transaction.end_version
        return "", 0

    def _late(self, waiting: Sequence[Prepared]) -> TwoPhaseCommitError:
        places = sorted({str(fate.part) for each in waiting for fate in self._open_parts(each)})
        return RetriableError(
            "MARKERS_PENDING",
            f"{len(waiting)} transactions are committed, and readers can't see their rows yet in {', '.join(places[:10])}: "
            "the coordinator has not written their markers. Has one of these partitions no leader, or fewer replicas in sync "
            "than min.insync.replicas? Start the query again when it has: it waits again, and there is nothing to resolve.",
            transactionalIds=[each.name for each in waiting],
        )


def unknown_outcome(unknown: Sequence[tuple[Prepared, Whole]]) -> AmbiguousOutcomeError:
    """Make the error of transactions that somebody has to look at."""
    transaction, whole = unknown[0]
    more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    if whole.divided:
        what = (
            f"Of {transaction}{more} readers see some rows, and others are gone: {whole.state.evidence}. Writing them again "
            "would double those that are there, so nothing is done by itself."
        )
    else:
        what = f"Nobody can tell whether {transaction}{more} was committed: {whole.state.evidence}."
    return AmbiguousOutcomeError(
        "OUTCOME_UNKNOWN",
        f"{what} Look at the topic, then decide: `barrier resolve LOCATION`.",
        handles=[dict(each.handle) for each, _ in unknown],
        evidence=whole.state.evidence,
    )
