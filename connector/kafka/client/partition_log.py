"""Find out from a partition's log how a transaction ended. Its commit or abort marker is a control batch in the log.

If a transactional id was initialized again or has expired, the coordinator no longer knows how the id's previous transaction
ended. The markers in the partitions stay as long as the rows.
"""

from __future__ import annotations

import enum
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.cluster_admin import CLUSTER_DENIED, MOVING, NONE, TOPIC_DENIED
from connector.kafka.client.connection import FIRST_PAUSE_SECONDS
from connector.kafka.client.errors import error_name
from connector.kafka.client.topics import UNKNOWN_EPOCH, Partition, TopicInfo
from transactional.clock import Deadline

FETCH_BYTES: Final = 1 << 20
"""The size of one fetch. The broker returns at least one whole batch, even if it is larger."""

JUDGE_SECONDS: Final = 300.0
"""The time limit for the search for one marker. The marker usually follows the transaction's rows directly. If the
coordinator wrote the marker only when the transaction timed out, other producers' rows come first, and are read at tens
of megabytes per second.
"""

OFFSET_OUT_OF_RANGE: Final = 1
GONE: Final = frozenset({3, 100, 103, 104})
"""Error codes that mean that the requested topic no longer exists, or was created again."""


@dataclass(frozen=True)
class Witness:
    """A partition that a transaction wrote to, and an offset between the transaction's rows and its marker."""

    partition: Partition
    topic_id: str
    # The high watermark, read after every row was delivered and before the transaction ended. All rows of the transaction are
    # before this offset; the marker that ends it is at or after this offset.
    offset: int
    # The leader's epoch at that moment. If this epoch ends before `offset` in the log, the log has lost rows.
    leader_epoch: int = UNKNOWN_EPOCH

    def __str__(self) -> str:
        return f"{self.partition.topic} [{self.partition.number}]"


class Ending(enum.Enum):
    """The outcome of a transaction, according to a partition's log."""

    COMMIT = "commit"
    ABORT = "abort"
    NOT_YET = "not yet visible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a transaction, and the evidence for this outcome."""

    ending: Ending
    evidence: str


def search_marker(admin: KafkaAdmin, producer_id: int, epoch: int, witness: Witness) -> Verdict:
    """Search a partition's log for the marker that ended a transaction there, from the offset of `witness` on.

    This offset is after the transaction's rows. The marker has the epoch `epoch` (EndTxn below version 5) or the next epoch
    (version 5, time-outs, fencing). The first such marker belongs to this transaction: every later transaction of the
    producer has a later epoch, or begins after that marker.
    """

    def attempt() -> Verdict | None:
        topics = admin.topics([witness.partition.topic], [witness.partition])
        reason = why_gone(topics, witness)
        if reason:
            return Verdict(Ending.UNKNOWN, reason)
        info = topics[witness.partition.topic]
        if is_behind(info, witness):
            return None
        return _search(admin, info, producer_id, epoch, witness)

    return admin.until(attempt, "a transaction's marker in a partition's log")


def why_gone(topics: Mapping[str, TopicInfo], witness: Witness) -> str:
    """Return why a partition that a transaction wrote to no longer exists; an empty string if the partition still exists."""
    info = topics.get(witness.partition.topic)
    if info is None:
        return f"{witness} from {witness.offset}: the topic does not exist"
    if info.topic_id != witness.topic_id:
        return (
            f"{witness} from {witness.offset}: the topic was created again ({witness.topic_id} is now {info.topic_id})"
        )
    if witness.partition.number not in info.leaders:
        return f"{witness} from {witness.offset}: the partition does not exist"
    return ""


def is_behind(info: TopicInfo, witness: Witness) -> bool:
    """Return whether a topic's description is outdated: its leader epoch is lower than the epoch that the witness recorded."""
    epoch = info.epoch(witness.partition.number)
    return UNKNOWN_EPOCH < epoch < witness.leader_epoch


def parse_control_key(key: bytes | None) -> Ending:
    """Parse the key of a control record: a version and a type, two bytes each. Type 0 is an abort, type 1 a commit."""
    if key is None or len(key) < 4:
        return Ending.UNKNOWN
    _, kind = struct.unpack_from(">hh", key)
    return {0: Ending.ABORT, 1: Ending.COMMIT}.get(kind, Ending.UNKNOWN)


def _why_unreadable(part: Any, witness: Witness) -> str:
    """Return why a Fetch answer does not show the log at the offset that was asked for; empty if it does."""
    if part.error_code in GONE:
        return f"the topic was deleted or created again ({error_name(part.error_code)})"
    if part.error_code in (TOPIC_DENIED, CLUSTER_DENIED):
        return "this user lacks READ on the topic"
    if part.error_code == OFFSET_OUT_OF_RANGE or part.log_start_offset > witness.offset:
        return f"the log now contains {part.log_start_offset} to {part.high_watermark}"
    return "" if part.error_code == NONE else error_name(part.error_code)


def _ending(batch: Any, producer_id: int, epoch: int, witness: Witness) -> Ending:
    """Return the outcome that a record batch shows if it is this transaction's marker; else ``UNKNOWN``."""
    ours = batch.producer_id == producer_id and batch.producer_epoch in (epoch, epoch + 1)
    if not (batch.is_control_batch and ours and batch.last_offset >= witness.offset):
        return Ending.UNKNOWN
    marker = next(iter(batch), None)  # compaction can leave an empty batch of a marker
    return parse_control_key(marker.key if marker else None)


def _search(admin: KafkaAdmin, info: TopicInfo, producer_id: int, epoch: int, witness: Witness) -> Verdict | None:
    from kafka.record.memory_records import MemoryRecords

    def unknown(reason: str) -> Verdict:
        return Verdict(Ending.UNKNOWN, f"{witness} from {witness.offset}: {reason}")

    deadline = Deadline(JUDGE_SECONDS, admin.clock)
    offset = witness.offset
    leader, leader_epoch = info.leaders[witness.partition.number], info.epoch(witness.partition.number)
    while not deadline.passed():
        answer = admin.ask(partial(_fetch_request, witness, offset, leader_epoch), lambda: leader)
        if answer.error_code in MOVING:
            return None
        if answer.error_code != NONE:
            return unknown(error_name(answer.error_code))
        part = answer.responses[0].partitions[0]
        if part.error_code in MOVING:
            return None
        reason = _why_unreadable(part, witness)
        if reason:
            return unknown(reason)
        before = offset
        for batch in MemoryRecords(bytes(part.records or b"")):
            offset = max(offset, batch.last_offset + 1)
            ending = _ending(batch, producer_id, epoch, witness)
            if ending is not Ending.UNKNOWN:
                return Verdict(
                    ending,
                    f"{witness} has its {ending.value} marker at {batch.base_offset} "
                    f"(producer {producer_id}, epoch {batch.producer_epoch})",
                )
        if offset >= part.high_watermark:
            reason = f"no marker of producer {producer_id} before offset {part.high_watermark}"
            if part.last_stable_offset > witness.offset:
                return unknown(reason)  # its marker was below the stable offset, so a log cleaner has removed it
            # A cleaner removes nothing above the stable offset, so the marker exists, or will be written.
            return Verdict(Ending.NOT_YET, f"{witness} from {witness.offset}: {reason} yet")
        if offset == before:  # a broker that throttles, or fetches from a remote tier, can return no records
            admin.clock.sleep(FIRST_PAUSE_SECONDS)
    return unknown(f"the search for the marker did not finish within {JUDGE_SECONDS:.0f} s")


def _fetch_request(witness: Witness, offset: int, leader_epoch: int) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topic = FetchRequest.FetchTopic(
        topic=witness.partition.topic,
        topic_id=uuid.UUID(witness.topic_id),
        partitions=[
            FetchRequest.FetchTopic.FetchPartition(
                partition=witness.partition.number,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=FETCH_BYTES,
            )
        ],
    )
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, isolation_level=0, topics=[topic], max_version=17
    )
