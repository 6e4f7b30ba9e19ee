"""A partition's own log as the judge of a transaction: its first control batch of that producer says how it ended.

The coordinator forgets: an id that was initialised again, or that expired, no longer tells what became of the
transaction before. The markers in the partitions stay as long as the rows.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypedDict

from connector.kafka.admin import CLUSTER_DENIED, MOVING, NONE, TOPIC_DENIED, KafkaAdmin, topic_uuid
from connector.kafka.connection import FIRST_PAUSE_SECONDS, error_name
from transactional.clock import Deadline

__all__ = ["Ending", "Verdict", "Witness", "judge_by_log", "parse_control_key"]

FETCH_BYTES: Final = 1 << 20
"""Of one fetch; the broker gives one whole batch at least, however large it is."""

JUDGE_SECONDS: Final = 300.0
"""Limit of one transaction's search. The marker mostly stands right behind the witness; where it was written by a timeout,
all that others have written meanwhile lies in between, and is read at tens of megabytes a second."""

OFFSET_OUT_OF_RANGE: Final = 1
GONE: Final = frozenset({3, 100, 103, 104})
"""Codes that say: not this topic any more."""


class Witness(TypedDict):
    """A place in a written partition behind which the transaction's marker must stand."""

    topic: str
    topicId: str
    partition: int
    offset: int


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


def judge_by_log(admin: KafkaAdmin, producer_id: int, epoch: int, witnesses: Sequence[Witness]) -> Verdict:
    """Search each witness's partition for the transaction's marker; the first that is found decides.

    A marker of `epoch` (EndTxn below version 5) or of the next one (version 5, time-outs, fencing) is the
    transaction's own: every later transaction of the producer has a later epoch or a later place.

    Returns
    -------
    Verdict
        `UNKNOWN` where the topic is another one, the log starts past the witness, or no marker is there.
    """

    def attempt() -> Verdict | None:
        topics = admin.topics(witness["topic"] for witness in witnesses)
        reasons: list[str] = []
        for witness in witnesses:
            place = f"{witness['topic']} [{witness['partition']}] from {witness['offset']}"
            found = topics.get(witness["topic"])
            if found is None:
                reasons.append(f"{place}: the topic does not exist")
            elif found.topic_id != witness["topicId"]:
                reasons.append(f"{place}: the topic was created again ({witness['topicId']} is now {found.topic_id})")
            elif witness["partition"] not in found.leaders:
                reasons.append(f"{place}: the partition does not exist")
            else:
                verdict = _search(admin, found.leaders[witness["partition"]], producer_id, epoch, witness, place)
                if verdict is None or verdict.ending is not Ending.UNKNOWN:
                    return verdict
                reasons.append(verdict.evidence)
        return Verdict(Ending.UNKNOWN, "; ".join(reasons) or "no partition is known to have been written")

    return admin.until(attempt, "the end of a transaction from its partitions' logs")


def parse_control_key(key: bytes | None) -> Ending:
    """Read a control record's key: version and type, two bytes each; type 0 aborts, 1 commits."""
    if key is None or len(key) < 4:
        return Ending.UNKNOWN
    _, kind = struct.unpack_from(">hh", key)
    return {0: Ending.ABORT, 1: Ending.COMMIT}.get(kind, Ending.UNKNOWN)


def _search(
    admin: KafkaAdmin, leader: int, producer_id: int, epoch: int, witness: Witness, place: str
) -> Verdict | None:
    from kafka.record.memory_records import MemoryRecords

    deadline = Deadline(JUDGE_SECONDS, admin.clock)
    offset = witness["offset"]
    while not deadline.passed():
        answer = admin.ask(partial(_fetch_request, witness, offset), lambda: leader)
        if answer.error_code in MOVING:
            return None
        if answer.error_code != NONE:
            return Verdict(Ending.UNKNOWN, f"{place}: {error_name(answer.error_code)}")
        part = answer.responses[0].partitions[0]
        if part.error_code in GONE:
            return Verdict(Ending.UNKNOWN, f"{place}: the topic is another one ({error_name(part.error_code)})")
        if part.error_code in (TOPIC_DENIED, CLUSTER_DENIED):
            return Verdict(Ending.UNKNOWN, f"{place}: this user lacks READ on the topic")
        if part.error_code == OFFSET_OUT_OF_RANGE or part.log_start_offset > witness["offset"]:
            return Verdict(
                Ending.UNKNOWN, f"{place}: the log now holds {part.log_start_offset} to {part.high_watermark}"
            )
        if part.error_code in MOVING:
            return None
        if part.error_code != NONE:
            return Verdict(Ending.UNKNOWN, f"{place}: {error_name(part.error_code)}")
        before = offset
        for batch in MemoryRecords(bytes(part.records or b"")):
            offset = max(offset, batch.last_offset + 1)
            ours = batch.producer_id == producer_id and batch.producer_epoch in (epoch, epoch + 1)
            if not (batch.is_control_batch and ours and batch.last_offset >= witness["offset"]):
                continue
            ending = parse_control_key(next(iter(batch)).key)
            if ending is not Ending.UNKNOWN:
                return Verdict(
                    ending,
                    f"{witness['topic']} [{witness['partition']}] has its {ending.value} marker at {batch.base_offset} "
                    f"(producer {producer_id}, epoch {batch.producer_epoch})",
                )
        if offset >= part.high_watermark:
            return Verdict(Ending.UNKNOWN, f"{place}: no marker of producer {producer_id} up to {part.high_watermark}")
        if offset == before:  # a broker that throttles, or fetches from a tier, answers with nothing
            admin.clock.sleep(FIRST_PAUSE_SECONDS)
    return Verdict(Ending.UNKNOWN, f"{place}: not searched to its end within {JUDGE_SECONDS:.0f} s")


def _fetch_request(witness: Witness, offset: int) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topic = FetchRequest.FetchTopic(
        topic=witness["topic"],
        topic_id=topic_uuid(witness["topicId"]),
        partitions=[
            FetchRequest.FetchTopic.FetchPartition(
                partition=witness["partition"], fetch_offset=offset, partition_max_bytes=FETCH_BYTES
            )
        ],
    )
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, isolation_level=0, topics=[topic], max_version=17
    )
