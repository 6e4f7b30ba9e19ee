"""A partition's own log as the judge of a transaction: its first control batch of that producer says how it ended.

The coordinator forgets: an id that was initialised again, or that expired, no longer tells what became of the
transaction before. The markers in the partitions stay as long as the rows.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from connector.kafka.client.admin import CLUSTER_DENIED, MOVING, NONE, TOPIC_DENIED, KafkaAdmin, topic_uuid
from connector.kafka.client.connection import FIRST_PAUSE_SECONDS, error_name
from connector.kafka.sink.handles import WrittenPartition
from transactional.clock import Deadline

__all__ = ["Ending", "Verdict", "parse_control_key", "search_marker"]

FETCH_BYTES: Final = 1 << 20
"""Of one fetch; the broker gives one whole batch at least, however large it is."""

JUDGE_SECONDS: Final = 300.0
"""Limit of one transaction's search. The marker mostly stands right behind the witness; where it was written by a timeout,
all that others have written meanwhile lies in between, and is read at tens of megabytes a second."""

OFFSET_OUT_OF_RANGE: Final = 1
GONE: Final = frozenset({3, 100, 103, 104})
"""Codes that say: not this topic any more."""


class Ending(enum.Enum):
    """How a transaction ended, as a partition's log says."""

    COMMIT = "commit"
    ABORT = "abort"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """An ending, and how it is known."""

    ending: Ending
    evidence: str


def search_marker(admin: KafkaAdmin, producer_id: int, epoch: int, part: WrittenPartition) -> Verdict:
    """Search a partition, from the witness on, for the marker that ended a transaction there.

    A marker of `epoch` (EndTxn below version 5) or of the next one (version 5, time-outs, fencing) is the
    transaction's own: every later transaction of the producer has a later epoch or a later place.

    Returns
    -------
    Verdict
        `UNKNOWN` if the topic is another one, the log starts past the witness, or no marker is there.
    """

    def attempt() -> Verdict | None:
        found = admin.topics([part.topic], [part.place]).get(part.topic)
        place = f"{part} from {part.offset}"
        if found is None:
            return Verdict(Ending.UNKNOWN, f"{place}: the topic does not exist")
        if found.topic_id != part.topic_id:
            return Verdict(
                Ending.UNKNOWN,
                f"{place}: the topic was created again ({part.topic_id} is now {found.topic_id})",
            )
        if part.partition not in found.leaders:
            return Verdict(Ending.UNKNOWN, f"{place}: the partition does not exist")
        return _search(admin, found.leaders[part.partition], producer_id, epoch, part, place)

    return admin.until(attempt, "the end of a transaction from its partition's log")


def parse_control_key(key: bytes | None) -> Ending:
    """Read a control record's key: version and type, two bytes each; type 0 aborts, 1 commits."""
    if key is None or len(key) < 4:
        return Ending.UNKNOWN
    _, kind = struct.unpack_from(">hh", key)
    return {0: Ending.ABORT, 1: Ending.COMMIT}.get(kind, Ending.UNKNOWN)


def _search(
    admin: KafkaAdmin, leader: int, producer_id: int, epoch: int, part: WrittenPartition, place: str
) -> Verdict | None:
    from kafka.record.memory_records import MemoryRecords

    deadline = Deadline(JUDGE_SECONDS, admin.clock)
    offset = part.offset
    while not deadline.passed():
        answer = admin.ask(partial(_fetch_request, part, offset), lambda: leader)
        if answer.error_code in MOVING:
            return None
        if answer.error_code != NONE:
            return Verdict(Ending.UNKNOWN, f"{place}: {error_name(answer.error_code)}")
        got = answer.responses[0].partitions[0]
        if got.error_code in GONE:
            return Verdict(Ending.UNKNOWN, f"{place}: the topic is another one ({error_name(got.error_code)})")
        if got.error_code in (TOPIC_DENIED, CLUSTER_DENIED):
            return Verdict(Ending.UNKNOWN, f"{place}: this user lacks READ on the topic")
        if got.error_code == OFFSET_OUT_OF_RANGE or got.log_start_offset > part.offset:
            return Verdict(Ending.UNKNOWN, f"{place}: the log now holds {got.log_start_offset} to {got.high_watermark}")
        if got.error_code in MOVING:
            return None
        if got.error_code != NONE:
            return Verdict(Ending.UNKNOWN, f"{place}: {error_name(got.error_code)}")
        before = offset
        for batch in MemoryRecords(bytes(got.records or b"")):
            offset = max(offset, batch.last_offset + 1)
            ours = batch.producer_id == producer_id and batch.producer_epoch in (epoch, epoch + 1)
            if not (batch.is_control_batch and ours and batch.last_offset >= part.offset):
                continue
            marker = next(iter(batch), None)  # compaction leaves an empty batch of a producer's last marker
            ending = parse_control_key(marker.key if marker else None)
            if ending is not Ending.UNKNOWN:
                return Verdict(
                    ending,
                    f"{part} has its {ending.value} marker at {batch.base_offset} "
                    f"(producer {producer_id}, epoch {batch.producer_epoch})",
                )
        if offset >= got.high_watermark:
            return Verdict(Ending.UNKNOWN, f"{place}: no marker of producer {producer_id} up to {got.high_watermark}")
        if offset == before:  # a broker that throttles, or fetches from a tier, answers with nothing
            admin.clock.sleep(FIRST_PAUSE_SECONDS)
    return Verdict(Ending.UNKNOWN, f"{place}: not searched to its end within {JUDGE_SECONDS:.0f} s")


def _fetch_request(part: WrittenPartition, offset: int) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topic = FetchRequest.FetchTopic(
        topic=part.topic,
        topic_id=topic_uuid(part.topic_id),
        partitions=[
            FetchRequest.FetchTopic.FetchPartition(
                partition=part.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
            )
        ],
    )
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, isolation_level=0, topics=[topic], max_version=17
    )
