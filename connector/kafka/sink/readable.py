"""Wait until committed transactions are *readable*: every partition shows their rows.

The answer NONE to EndTxn means only that the coordinator has decided. Usually the markers follow within milliseconds.
If a partition has no leader, its marker is late. A broker of version 4.3.0, 4.3.1 or 4.4.0 can also leave out a marker
forever, if the partition has no leader at that moment (KAFKA-20734). In that case, every `read_committed` reader of the
partition is stuck. Readers can also lose rows: another program may have written an abort marker into a partition,
without the coordinator's knowledge.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from connector.kafka.client.admin import NEWER_WAS_THERE, Description, KafkaAdmin
from connector.kafka.client.cluster_admin import NONE
from connector.kafka.client.connection import backing_off
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.client.topics import Partition
from connector.kafka.sink.errors import markers_pending, refusal, skipped_marker, transactions_lost, unknown_outcome
from connector.kafka.sink.fates import Fate, PartFate, Whole, ended_fates
from connector.kafka.sink.handles import Key, Prepared
from connector.kafka.sink.second_look import SecondLook
from transactional.clock import Deadline
from transactional.errors import StoreError
from transactional.sink import HandleState, Outcome

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.002, 0.5
"""The first and the longest pause between checks. Markers usually follow within 5 ms; within 200 ms if one broker has
to write to 200 partitions."""

PATIENCE_SECONDS: Final = 0.1
"""The time to wait for markers before the sink asks the leaders what blocks readers. A leader describes all of its
producers, which takes 10 to 20 ms for hundreds of producers. If other queries have open transactions in the same
partitions, every checkpoint waits this long."""


def ensure_readable(
    admin: KafkaAdmin,
    partitions: PartitionAdmin,
    together: Sequence[Prepared],
    alone: Sequence[Prepared],
    deadline: Deadline,
) -> list[dict[str, Any]]:
    """Wait until `read_committed` readers see every row of committed transactions.

    Write markers that were left out, and return a record of each marker written. `together` are transactions that one check
    found open at the same time; `alone` are the others.
    """
    admin.limit = deadline
    try:
        return _Wait(admin, partitions, deadline, together, alone).until_readable()
    finally:
        admin.limit = None


class _Wait:
    """Waits for committed transactions whose rows can't all be read yet."""

    def __init__(
        self,
        admin: KafkaAdmin,
        partitions: PartitionAdmin,
        deadline: Deadline,
        together: Sequence[Prepared],
        alone: Sequence[Prepared],
    ) -> None:
        self._admin = admin
        self._partitions = partitions
        self._deadline = deadline
        self._patience = Deadline(PATIENCE_SECONDS, admin.clock)
        self._together, self._alone = list(together), list(alone)
        self._complete: dict[Key, Description] = {}
        self._seen: dict[Key, dict[Partition, PartFate]] = {}
        self._second = SecondLook(admin.clock)
        self._sure: set[tuple[Key, Partition]] = set()
        self._refused: StoreError | None = None
        self._repaired: list[dict[str, Any]] = []

    @property
    def _waiting(self) -> list[Prepared]:
        return [*self._together, *self._alone]

    def until_readable(self) -> list[dict[str, Any]]:
        """Wait until all rows can be read, and return a record of each marker that had to be written."""
        retrier = backing_off(self._deadline, self._admin.clock, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        if retrier(self._look) is None:
            if self._refused is not None:
                raise self._refused
            parts = [fate.part for transaction in self._waiting for fate in self._open_parts(transaction)]
            raise markers_pending(self._waiting, parts, "Readers can't see the rows of committed transactions yet")
        return self._repaired

    def _look(self) -> bool | None:
        """Check once, and write markers that no broker will write. Return None if some rows can't be read yet."""
        ask = self._patience.passed()
        for transaction, fates in [
            *zip(
                self._together,
                ended_fates(self._partitions, self._together, together=True, ask_leaders=ask),
                strict=True,
            ),
            *zip(self._alone, ended_fates(self._partitions, self._alone, ask_leaders=ask), strict=True),
        ]:
            self._seen.setdefault(transaction.key, {}).update({fate.part.partition: fate for fate in fates})
            self._confirm(transaction.key, fates)
        self._refuse_lost(self._waiting)
        self._together, self._alone = self._still_open(self._together), self._still_open(self._alone)
        if not self._waiting:
            return True
        if ask:
            # The coordinator answered before the partitions did, so it had already written every marker that it ever writes.
            for transaction in self._waiting:
                self._repair(transaction, self._complete.get(transaction.key))
            self._complete = self._completed(self._waiting)
        return None

    def _still_open(self, transactions: Sequence[Prepared]) -> list[Prepared]:
        """Return the transactions that are still open in some partition, each reduced to those partitions."""
        return [
            replace(transaction, written=tuple(fate.part for fate in fates))
            for transaction in transactions
            if (fates := self._open_parts(transaction))
        ]

    def _open_parts(self, transaction: Prepared) -> list[PartFate]:
        """Return the transaction's outcome in those partitions where its end is not visible yet, or not confirmed."""
        fates = self._seen[transaction.key].values()
        return [fate for fate in fates if fate.fate in (Fate.OPEN, Fate.PENDING) or self._doubts(transaction.key, fate)]

    def _doubts(self, key: Key, fate: PartFate) -> bool:
        return fate.doubtful and (key, fate.part.partition) not in self._sure

    def _confirm(self, key: Key, fates: Sequence[PartFate]) -> None:
        """Remember which doubtful outcomes of a transaction a second check has confirmed."""
        for fate in fates:
            what = key, fate.part.partition
            if fate.doubtful and self._second.confirms(what, (fate.fate, fate.leader_epoch)):
                self._sure.add(what)

    def _refuse_lost(self, transactions: Sequence[Prepared]) -> None:
        whole: list[Prepared] = []
        divided: list[tuple[Prepared, Whole]] = []
        for transaction in transactions:
            fates = list(self._seen[transaction.key].values())
            if any(self._doubts(transaction.key, fate) for fate in fates):
                continue
            gone = [fate for fate in fates if fate.fate in (Fate.ABORTED, Fate.CUT, Fate.UNKNOWN)]
            if fates and all(fate.fate is Fate.ABORTED for fate in fates):
                whole.append(transaction)
            elif gone:
                rest = [fate for fate in fates if fate not in gone]
                evidence = "; ".join(fate.evidence for fate in [*gone, *rest])
                divided.append((transaction, Whole(HandleState(Outcome.UNKNOWN, evidence=evidence), divided=True)))
        if divided:
            raise unknown_outcome(divided)
        if whole:
            raise transactions_lost(
                whole,
                "before the query committed them, another program aborted them (probably `kafka-transactions.sh abort`)",
            )

    def _completed(self, transactions: Sequence[Prepared]) -> dict[Key, Description]:
        for transaction in transactions:
            self._admin.forget_coordinator(transaction.name)
        described = self._admin.describe([transaction.name for transaction in transactions])
        return {
            transaction.key: description
            for transaction in transactions
            if (description := described.get(transaction.name)) is not None and not description.ending
        }

    def _repair(self, transaction: Prepared, description: Description | None) -> None:
        """Write a missing marker if two checks, one second apart, found the transaction open at the same leader.

        Both checks must come after the coordinator has finished with the transaction.
        """
        for fate in self._open_parts(transaction):
            if fate.fate is not Fate.OPEN or fate.opened is None:
                continue
            hanging = "hangs", transaction.key, fate.part.partition
            if description is None:
                self._second.forget(hanging)
                continue
            if not self._second.confirms(hanging, (fate.opened, fate.leader_epoch)):
                continue
            what = f"{transaction} is committed, but it is still open in {fate.part} from offset {fate.opened.start}"
            proof, version = self._proof(transaction, description)
            if not proof:
                reason = (
                    f"the coordinator can no longer confirm the commit (it reports the state {description.state} for producer "
                    f"{description.producer_id} at epoch {description.producer_epoch}). To decide the outcome, run "
                    "`barrier resolve LOCATION`"
                )
                raise skipped_marker(what, reason, transaction.name, fate.part.partition, fate.opened)
            code = self._partitions.write_marker(
                fate.part.partition,
                transaction.producer_id,
                fate.opened,
                transaction.producer_epoch + (version >= 5),
                True,
                version,
            )
            if code != NONE:
                refused = skipped_marker(what, refusal(code), transaction.name, fate.part.partition, fate.opened)
                if code not in NEWER_WAS_THERE:
                    raise refused
                self._refused = refused
                self._second.forget(hanging)
                continue
            log.warning("%s: the coordinator did not write the commit marker, so the query wrote the marker", what)
            self._repaired.append(
                {
                    "transactionalId": transaction.name,
                    "producerId": transaction.producer_id,
                    "producerEpoch": transaction.producer_epoch,
                    "topic": fate.part.partition.topic,
                    "partition": fate.part.partition.number,
                    "offset": fate.opened.start,
                    "marker": "commit",
                    "proof": proof,
                }
            )

    def _proof(self, transaction: Prepared, description: Description) -> tuple[str, int]:
        """Return the proof of the commit (empty if there is none), and the EndTxn version that committed the transaction."""
        if (description.state, description.producer_id) == ("CompleteCommit", transaction.producer_id):
            proof = f"coordinator: {description.state} at epoch {description.producer_epoch}"
            if description.producer_epoch == transaction.ended_epoch:
                return proof, transaction.end_version
            if description.producer_epoch == transaction.producer_epoch:
                return proof, 4  # another program committed it, with a version that does not raise the epoch
        for fate in self._seen[transaction.key].values():
            if fate.fate is Fate.COMMITTED:
                return fate.evidence, transaction.end_version
        return "", 0
