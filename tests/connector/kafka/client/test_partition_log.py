"""The end of a transaction, searched in a partition's log: what passes is asked again, and no verdict."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from connector.kafka.client.partition_log import Ending, Verdict, Witness, search_marker
from connector.kafka.client.topics import Partition, TopicInfo
from transactional.testing import FakeClock

TOPIC = "f3b8a1de-2222-4444-8888-0123456789ab"
PART = Witness(Partition("t", 0), TOPIC, 5)


def answered(code: int = 0, part_code: int = 0, high: int = 9, stable: int = 6) -> Any:
    """A fetch without records."""
    part = SimpleNamespace(
        error_code=part_code, log_start_offset=0, high_watermark=high, last_stable_offset=stable, records=b""
    )
    return SimpleNamespace(error_code=code, responses=[SimpleNamespace(partitions=[part])])


class Admin:
    """Gives these answers, one after the other; the last says that the log ends before any marker."""

    def __init__(self, *answers: Any) -> None:
        self.clock = FakeClock()
        self.answers = [*answers, answered(high=5)]
        self.epochs: list[int] = []
        self.asked: list[Any] = []

    def topics(self, *_: Any) -> dict[str, TopicInfo]:
        return {"t": TopicInfo(TOPIC, {0: 1}, None, epochs={0: self.epochs.pop(0) if len(self.epochs) > 1 else 4})}

    def ask(self, request: Callable[[], Any], *_: Any) -> Any:
        self.asked.append(request())
        return self.answers.pop(0)

    def until(self, attempt: Callable[[], Verdict | None], _: str) -> Verdict:
        while (found := attempt()) is None:
            continue
        return found


@pytest.mark.parametrize(
    "passing",
    [
        *(pytest.param(answered(code=code), id=f"the answer {code}") for code in (-1, 7, 13, 56)),
        *(pytest.param(answered(part_code=code), id=f"the partition {code}") for code in (-1, 6, 9, 56, 74, 75, 78)),
        pytest.param(answered(), id="nothing below the high watermark: throttled, or from a tier"),
    ],
)
def test_what_passes_is_asked_again_before_anybody_is_told_to_resolve(passing: Any) -> None:
    admin = Admin(passing)
    verdict = search_marker(admin, 7, 3, PART)  # type: ignore[arg-type]
    assert (verdict.ending, admin.answers) == (Ending.UNKNOWN, [])
    assert "before offset 5" in verdict.evidence


@pytest.mark.parametrize("code", [3, 29, 100])
def test_what_no_waiting_heals_is_a_verdict(code: int) -> None:
    admin = Admin(answered(part_code=code))
    assert search_marker(admin, 7, 3, PART).ending is Ending.UNKNOWN  # type: ignore[arg-type]
    assert len(admin.answers) == 1


class EmptiedMarker(list[Any]):
    """What a log cleaner leaves of a producer's last batch, a marker: the batch without its record."""

    base_offset = last_offset = 6
    producer_id, producer_epoch, is_control_batch = 7, 4, True


def test_a_marker_that_compaction_has_emptied_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka.record.memory_records.MemoryRecords", lambda data: [EmptiedMarker()] if data else [])
    emptied = answered()
    emptied.responses[0].partitions[0].records = b"marker"
    verdict = search_marker(Admin(emptied), 7, 3, PART)  # type: ignore[arg-type]
    assert verdict.ending is Ending.UNKNOWN


class Marker(list[Any]):
    """A batch of one control record, which ends a producer's transaction: 0 aborts, 1 commits."""

    is_control_batch = True

    def __init__(self, offset: int, kind: int, producer: int = 7, epoch: int = 3) -> None:
        super().__init__([SimpleNamespace(key=struct.pack(">hh", 0, kind))])
        self.base_offset = self.last_offset = offset
        self.producer_id, self.producer_epoch = producer, epoch


@pytest.mark.parametrize(
    ("log", "ending"),
    [
        ([Marker(6, 1)], Ending.COMMIT),
        ([Marker(6, 0)], Ending.ABORT),
        ([Marker(6, 0, epoch=4)], Ending.ABORT),  # of EndTxn 5, or of who has fenced it
        ([Marker(6, 2)], Ending.UNKNOWN),
        ([Marker(5, 1, producer=8), Marker(6, 0)], Ending.ABORT),
        ([Marker(4, 1), Marker(6, 0)], Ending.ABORT),  # a broker returns whole batches, also what lies before
        ([Marker(6, 0), Marker(7, 1)], Ending.ABORT),
        ([Marker(6, 1, epoch=5), Marker(7, 1, epoch=2)], Ending.UNKNOWN),
    ],
)
def test_the_first_marker_of_the_transaction_itself_says_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, log: list[Marker], ending: Ending
) -> None:
    monkeypatch.setattr("kafka.record.memory_records.MemoryRecords", lambda data: log if data else [])
    read = answered()
    read.responses[0].partitions[0].records = b"the log"
    verdict = search_marker(Admin(read), 7, 3, PART)  # type: ignore[arg-type]
    assert verdict.ending is ending


def test_the_log_of_another_topic_or_of_later_rows_only_says_nothing() -> None:
    anothers = Admin()
    other = Witness(Partition("t", 0), "f3b8a1de-0000-4444-8888-0123456789ab", 5)
    assert "created again" in search_marker(anothers, 7, 3, other).evidence  # type: ignore[arg-type]
    assert anothers.asked == []
    later = answered()
    later.responses[0].partitions[0].log_start_offset = 6
    assert "now contains 6 to 9" in search_marker(Admin(later), 7, 3, PART).evidence  # type: ignore[arg-type]


class AnothersRow(list[Any]):
    """A row of another producer, between the witness and the marker."""

    base_offset = last_offset = 5
    producer_id, producer_epoch, is_control_batch = 8, 0, False


@pytest.mark.parametrize("high", [5, 6])
def test_a_marker_that_the_followers_do_not_have_yet_is_no_verdict(monkeypatch: pytest.MonkeyPatch, high: int) -> None:
    """Its leader has it, so the transaction is open nowhere; below the high watermark there is none of it."""
    monkeypatch.setattr("kafka.record.memory_records.MemoryRecords", lambda _: [AnothersRow()] * (high - 5))
    verdict = search_marker(Admin(answered(high=high, stable=5)), 7, 3, PART)  # type: ignore[arg-type]
    assert verdict.ending is Ending.NOT_YET
    assert f"before offset {high}" in verdict.evidence


def test_brokers_that_do_not_know_the_leader_of_the_witness_yet_are_asked_again() -> None:
    admin = Admin()
    admin.epochs = [2, 3, 4]
    search_marker(admin, 7, 3, Witness(Partition("t", 0), TOPIC, 5, 4))  # type: ignore[arg-type]
    (asked,) = admin.asked
    assert asked.topics[0].partitions[0].current_leader_epoch == 4
