"""Reading one range: where it ends, what it waits for, and what it takes for lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.reading import consumers
from connector.kafka.source.reading.consumers import borrow_consumer
from connector.kafka.source.reading.fetch import (
    AHEAD_RANGES,
    AHEAD_ROWS,
    BATCH_BYTES,
    BATCH_ROWS,
    FIRST_ROWS,
    LOOK_SECONDS,
    fetch,
)
from connector.kafka.source.reading.range_loss import PAUSE_SECONDS, LossTolerance
from connector.kafka.source.reading.records import MessageConsumer, MessageRecords, Notice, Records
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log
from tests.connector.kafka.source.fake_consumer import AT, FakeConsumer, error, offsets_of, row
from transactional.errors import StoreError
from transactional.failure import Remedy, failure_of
from transactional.testing import FakeClock

CONFIG = ClientConfig("barrier-kafka", {"bootstrap.servers": "b:9092"})


def read(consumer: FakeConsumer, start: int, end: int, **more: Any) -> list[int]:
    """The offsets of a range's rows."""
    return [offset for batch in offsets_of(batches_of(consumer, start, end, **more)) for offset in batch]


def batches_of(consumer: FakeConsumer, start: int, end: int, **more: Any) -> Iterator[Records]:
    """A range's batches."""
    return fetch(MessageConsumer(cast("Consumer", consumer)), [OffsetRange(AT, start, end)], consumer.clock, **more)


def careless(consumer: FakeConsumer, brokers: FakeBrokers | None = None, topic_id: str = "id-of-t") -> LossTolerance:
    """failOnDataLoss=false."""
    there = brokers or FakeBrokers({"t": {0: Log()}})
    return LossTolerance(CONFIG, {"t": topic_id}, consumer.clock, there.connect)


# -- where a range ends ---------------------------------------------------------------------------------------------


def test_a_range_has_its_rows_and_none_behind_its_end() -> None:
    consumer = FakeConsumer(range(20))
    assert read(consumer, 5, 12) == list(range(5, 12))
    assert consumer.starts == [5]
    assert read(FakeConsumer(range(13)), 5, 12) == list(range(5, 12)), "also if one row more came with the last ones"


def test_gaps_of_aborted_rows_and_markers_end_no_range_early() -> None:
    consumer = FakeConsumer([0, 1, 5, 9], end=15)
    assert read(consumer, 0, 15) == [0, 1, 5, 9], "markers up to the end: PARTITION_EOF says that it is reached"
    assert read(FakeConsumer([0, 1, 5, 9, 14], end=15), 0, 10) == [0, 1, 5, 9], "a row behind the end says so, too"
    assert read(FakeConsumer([], end=15), 3, 15) == []


def test_the_last_row_alone_does_not_end_a_range() -> None:
    clock = FakeClock()
    consumer = FakeConsumer([0, 1], end=2, clock=clock)
    with pytest.raises(StoreError, match=r"KAFKA_TIMEOUT.*at offset 2"):
        read(consumer, 0, 4, stall_seconds=5.0)
    assert clock.passed >= 5.0


def test_rows_that_come_while_it_waits_are_read_and_each_starts_the_wait_again() -> None:
    clock = FakeClock()

    class Slow(FakeConsumer):
        def _nothing(self, timeout: float) -> list[Message]:
            if clock.passed > 4.0 * len(self.rows):
                self.rows[self.end] = row(self.end)
                self.end += 1
                self._told_end = False
            return super()._nothing(timeout)

    assert read(Slow([0], clock=clock), 0, 4, stall_seconds=5.0) == [0, 1, 2, 3]
    assert clock.passed > 10.0, "twice as long as one wait may be"


def test_a_row_that_comes_with_an_error_is_not_dropped() -> None:
    class Together(FakeConsumer):
        def consume(self, number: int, timeout: float) -> list[Message]:
            found = super().consume(number, timeout)
            return [*found, error("_PARTITION_EOF", 3)] if len(found) > 1 else found

    assert read(Together([0, 1, 2]), 0, 3) == [0, 1, 2]


# -- batches --------------------------------------------------------------------------------------------------------


def test_the_first_batch_is_small_and_the_next_ones_have_at_most_so_many_rows() -> None:
    consumer = FakeConsumer(range(25_000))
    batches = offsets_of(batches_of(consumer, 0, 25_000))
    assert [len(batch) for batch in batches] == [
        FIRST_ROWS,
        BATCH_ROWS,
        BATCH_ROWS,
        25_000 - FIRST_ROWS - 2 * BATCH_ROWS,
    ]


def test_batches_of_large_rows_end_by_their_bytes() -> None:
    consumer = FakeConsumer([])
    consumer.rows = {offset: row(offset, b"x" * 1_000_000) for offset in range(600)}
    consumer.end = 600
    batches = list(batches_of(consumer, 0, 600))
    # The first is what the client had in one queue; from then on the size of a row is known.
    assert [len(batch) for batch in batches][:2] == [FIRST_ROWS, BATCH_BYTES // 1_000_100]
    assert sum(map(len, batches)) == 600


def test_rows_that_grow_larger_than_the_first_ones_end_a_batch_by_their_bytes() -> None:
    consumer = FakeConsumer(range(2_000))
    consumer.rows |= {offset: row(offset, b"x" * 1_000_000) for offset in range(500, 600)}
    for offset in range(500, 600, 10):
        consumer.script(offset, error("_TRANSPORT"))  # the client hands over ten at a time
    batches = offsets_of(batches_of(consumer, 0, 2_000))
    assert [len(batch) for batch in batches][:3] == [FIRST_ROWS, 20, 16], (
        "16 MiB, and what one of the client's queues has"
    )
    assert sum(map(len, batches)) == 2_000


# -- several ranges -------------------------------------------------------------------------------------------------


class Several:
    """A consumer of partitions, each with a row at each offset. It delivers only rows of the partition that was begun last."""

    def __init__(self, notices: Mapping[Partition, list[Notice]] | None = None) -> None:
        # The partitions that were begun (a tuple with the offset) and prepared (a dict), in order.
        self.steps: list[Any] = []
        self.notices = dict(notices or {})
        self.at, self.position = AT, 0

    def begin(self, at: Partition, offset: int) -> None:
        self.steps.append((at, offset))
        self.at, self.position = at, offset

    def prepare(self, starts: Mapping[Partition, int]) -> None:
        self.steps.append(dict(starts))

    def take(self, most: int, seconds: float) -> list[Records | Notice]:
        if self.notices.get(self.at):
            return [self.notices[self.at].pop(0)]
        rows = [Message(topic=self.at.topic, partition=self.at.number, offset=self.position + n) for n in range(most)]
        self.position += most
        return [MessageRecords(rows, ((self.at, most),))]

    def watermarks(self, at: Partition) -> tuple[int, int] | None:
        return None

    def rest(self) -> None: ...

    def close(self) -> None: ...


def test_a_batch_has_rows_of_several_ranges_one_range_after_the_other() -> None:
    ranges = [OffsetRange(Partition("t", number), 5, 5 + rows) for number, rows in enumerate([3, 1, 600, 2])]
    batches = [records.to_batch(("partition", "offset")).to_pydict() for records in fetch(Several(), ranges)]
    assert [len(batch["offset"]) for batch in batches] == [FIRST_ROWS, 106]
    rows = [row for batch in batches for row in zip(batch["partition"], batch["offset"], strict=True)]
    assert rows == [(wanted.partition.number, n) for wanted in ranges for n in range(wanted.start, wanted.end)]


def test_the_client_fetches_the_next_ranges_while_few_rows_are_left_and_no_others() -> None:
    lengths = [3, 1, AHEAD_ROWS, AHEAD_ROWS + 3, 1, 7]
    ranges = [OffsetRange(Partition("t", number), 5, 5 + rows) for number, rows in enumerate(lengths)]
    consumer = Several()
    assert sum(map(len, fetch(consumer, ranges))) == sum(lengths)
    at = [wanted.partition for wanted in ranges]
    assert consumer.steps == [
        (at[0], 5),
        {at[1]: 5, at[2]: 5},  # the two leave fewer than so many rows in the end, and not before
        (at[1], 5),
        (at[2], 5),
        {at[3]: 5},
        (at[3], 5),
        {at[4]: 5, at[5]: 5},
        (at[4], 5),
        (at[5], 5),
    ]


def test_no_more_than_so_many_ranges_are_fetched_at_once() -> None:
    ranges = [OffsetRange(Partition("t", number), 0, 1) for number in range(2 * AHEAD_RANGES + 5)]
    consumer = Several()
    assert sum(map(len, fetch(consumer, ranges))) == len(ranges)
    ahead, most = set[Partition](), 0
    for step in consumer.steps:
        ahead = ahead | set(step) if isinstance(step, dict) else ahead - {step[0]}
        most = max(most, len(ahead))
    assert most == AHEAD_RANGES
    assert sorted(p for step in consumer.steps if isinstance(step, dict) for p in step) == [
        wanted.partition for wanted in ranges[1:]
    ]


def test_an_error_of_a_later_range_is_kept_until_that_range_is_read() -> None:
    here, later, topic = Partition("t", 0), Partition("u", 3), Partition("u", -1)

    def notice(name: str, at: Partition | None) -> Notice:
        return Notice(KafkaError(getattr(KafkaError, name), "as the client says"), -1, at)

    for at in (later, topic):
        consumer = Several({here: [notice("UNKNOWN_TOPIC_OR_PART", at)]})
        batches = fetch(consumer, [OffsetRange(here, 0, FIRST_ROWS), OffsetRange(later, 0, 3)])
        assert len(next(batches)) == FIRST_ROWS
        with pytest.raises(StoreError, match=r"READ_FAILED.*u-3 .*offset 0"):
            next(batches)
    consumer = Several({here: [notice("UNKNOWN_TOPIC_OR_PART", None)]})
    with pytest.raises(StoreError, match=r"READ_FAILED.*t-0"):
        next(fetch(consumer, [OffsetRange(here, 0, 3), OffsetRange(later, 0, 3)]))


def test_a_row_that_the_client_delivers_again_fails_the_task() -> None:
    class Twice(FakeConsumer):
        def consume(self, number: int, timeout: float) -> list[Message]:
            found = super().consume(min(number, 2), timeout)
            self.position -= 1 if self.position == 4 else 0
            return found

    with pytest.raises(StoreError, match=r"READ_FAILED.*offset 4.*offset 3 again"):
        read(Twice(range(9)), 0, 9)


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_TRANSPORT", "_ALL_BROKERS_DOWN", "NOT_LEADER_FOR_PARTITION", "_RESOLVE"])
def test_errors_that_pass_are_waited_for(name: str) -> None:
    consumer = FakeConsumer(range(6)).script(3, error(name), error(name))
    assert read(consumer, 0, 6) == list(range(6))


def test_an_error_that_does_not_pass_stalls_and_is_named() -> None:
    consumer = FakeConsumer(range(2), end=2).script(2, *[error("_TRANSPORT", reason="b:9092: refused")])
    with pytest.raises(StoreError, match=r"KAFKA_TIMEOUT.*120 s.*at offset 2.*offset 6.*b:9092: refused") as caught:
        read(consumer, 0, 6)
    assert failure_of(caught.value).remedy is Remedy.RESTART


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("_AUTHENTICATION", "READ_FAILED"),
        ("_BAD_MSG", "READ_FAILED"),
        ("UNKNOWN_TOPIC_OR_PART", "READ_FAILED"),
        ("TOPIC_AUTHORIZATION_FAILED", "MISSING_RIGHT"),
    ],
)
def test_errors_that_no_waiting_heals_fail_at_once(name: str, condition: str) -> None:
    clock = FakeClock()
    consumer = FakeConsumer(range(6), clock=clock).script(3, error(name))
    with pytest.raises(StoreError) as caught:
        read(consumer, 0, 6)
    assert caught.value.condition == condition
    assert clock.passed == 0.0


# -- rows that are gone ---------------------------------------------------------------------------------------------


def test_expired_rows_are_an_error_with_all_offsets() -> None:
    consumer = FakeConsumer(range(100))
    consumer.expire(40)
    with pytest.raises(StoreError, match=r"DATA_LOST.*offset 10 .*\[40, 100\).*failOnDataLoss=false") as caught:
        read(consumer, 10, 60)
    assert failure_of(caught.value).remedy is Remedy.NONE
    assert caught.value.parameters["earliest"] == 40


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    "answers",
    [
        [(0, 100)],  # the leader knows better than the one before it
        [(40, 100), (0, 100)],
        [(0, 5), (0, 100)],
        [(40, 100), "_TIMED_OUT"],
        ["_TRANSPORT"],
        [(-1001, -1001), (-1001, -1001)],
        [(40, 100), (-1001, -1001)],
        [None],
    ],
)
def test_an_offset_that_only_one_answer_refuses_is_asked_for_again(allowed: bool, answers: list[Any]) -> None:
    consumer = FakeConsumer(range(100)).script(10, error("_AUTO_OFFSET_RESET", 10))
    consumer.watermarks.extend(answers)
    tolerance = careless(consumer) if allowed else None
    assert read(consumer, 10, 20, tolerance=tolerance) == list(range(10, 20))
    assert consumer.starts == [10, 10]


def test_a_leader_that_refuses_an_offset_and_says_that_it_has_it_is_not_asked_for_ever() -> None:
    consumer = FakeConsumer(range(100))
    consumer.script(10, *(error("_AUTO_OFFSET_RESET", 10) for _ in range(1000)))
    with pytest.raises(StoreError, match="KAFKA_TIMEOUT"):
        read(consumer, 10, 20, stall_seconds=5.0)
    assert len(consumer.starts) < 60


def test_where_loss_is_allowed_a_task_goes_on_behind_what_retention_removed(caplog: pytest.LogCaptureFixture) -> None:
    consumer = FakeConsumer(range(100))
    consumer.expire(40)
    assert read(consumer, 10, 60, tolerance=careless(consumer), stall_seconds=PAUSE_SECONDS / 2) == list(range(40, 60))
    assert consumer.clock.passed >= PAUSE_SECONDS, "two answers, a pause apart"
    [warning] = [record.getMessage() for record in caplog.records]
    assert "up to 30 rows are lost (offsets [10, 40))" in warning
    assert read(consumer, 10, 30, tolerance=careless(consumer)) == [], "nothing of the range is left"


def test_of_two_answers_the_one_that_leaves_more_rows_counts() -> None:
    consumer = FakeConsumer(range(100))
    consumer.expire(40)
    consumer.watermarks.extend([(90, 100), (40, 100)])
    assert read(consumer, 10, 60, tolerance=careless(consumer)) == list(range(40, 60))


def test_rows_that_expire_in_the_middle_of_a_range_leave_those_that_were_read() -> None:
    consumer = FakeConsumer(range(1200))
    batches = batches_of(consumer, 0, 1200, tolerance=careless(consumer))
    [found] = offsets_of([next(batches)])
    consumer.expire(900)
    found += [offset for batch in offsets_of(batches) for offset in batch]
    assert found == [*range(FIRST_ROWS), *range(900, 1200)]


def test_a_log_that_ends_too_early_fails_the_task_and_gives_up_nothing() -> None:
    consumer = FakeConsumer(range(5))
    with pytest.raises(StoreError, match=r"READ_FAILED.*after offset 8: the partition now ends at offset 5") as caught:
        read(consumer, 8, 20, tolerance=careless(consumer))
    assert failure_of(caught.value).remedy is Remedy.RESTART
    with pytest.raises(StoreError, match=r"DATA_LOST.*\[0, 5\)"):
        read(consumer, 8, 20)


def test_a_range_that_ends_behind_its_partition_stalls_also_where_loss_is_allowed() -> None:
    consumer = FakeConsumer(range(5))
    with pytest.raises(StoreError, match=r"KAFKA_TIMEOUT.*at offset 5"):
        read(consumer, 0, 20, tolerance=careless(consumer))


@pytest.mark.parametrize("how", ["deleted", "re-created", "fewer partitions"])
def test_a_topic_that_is_not_the_planned_one_fails_the_task_soon(how: str) -> None:
    consumer = FakeConsumer(range(5), end=5)
    brokers = FakeBrokers({"t": {0: Log()}})
    tolerance = careless(consumer, brokers)
    if how == "deleted":
        brokers.topics.clear()
    elif how == "re-created":
        brokers.ids["t"] = "another"
    else:
        brokers.topics["t"] = {}
    with pytest.raises(
        StoreError, match=r"READ_FAILED.*after offset 5: the topic was deleted, or re-created.*No row was skipped"
    ):
        read(consumer, 0, 100, tolerance=tolerance)
    assert LOOK_SECONDS + PAUSE_SECONDS <= consumer.clock.passed < 2 * LOOK_SECONDS
    # What retention seems to have removed of another topic's log means nothing.
    consumer.expire(4)
    with pytest.raises(StoreError, match=r"READ_FAILED.*after offset 0: the topic was deleted, or re-created"):
        read(consumer, 0, 5, tolerance=tolerance)


@pytest.mark.parametrize("how", ["quiet", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"])
def test_one_broker_that_does_not_know_the_topic_costs_no_row(how: str, caplog: pytest.LogCaptureFixture) -> None:
    brokers = FakeBrokers({"t": {0: Log()}})

    class Silent(FakeConsumer):
        """Nothing comes for as long as the topic was not looked for twice."""

        def consume(self, number: int, timeout: float) -> list[Message]:
            if self.position == 10 and brokers.asked.count("topics") < 2:
                return [error(how)] if how != "quiet" else self._nothing(timeout)
            return super().consume(number, timeout)

    consumer = Silent(range(100))
    logs = brokers.topics.pop("t")
    brokers.lies = [lambda: None, lambda: brokers.topics.update(t=logs)]
    assert read(consumer, 10, 100, tolerance=careless(consumer, brokers)) == list(range(10, 100))
    assert brokers.asked.count("topics") == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_brokers_that_can_not_be_asked_for_the_topic_may_come_back() -> None:
    brokers = FakeBrokers({}, refuses="INVALID_REQUEST")
    clock = FakeClock()

    class Silent(FakeConsumer):
        def consume(self, number: int, timeout: float) -> list[Message]:
            return super().consume(number, timeout) if clock.passed > 3 * LOOK_SECONDS else self._nothing(timeout)

    consumer = Silent(range(10), clock=clock)
    assert read(consumer, 0, 10, tolerance=careless(consumer, brokers)) == list(range(10))
    assert brokers.asked.count("topics") >= 2


# -- consumers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeConsumer]:
    """Every consumer that is made in this process."""
    found: list[FakeConsumer] = []

    def make(settings: dict[str, Any]) -> FakeConsumer:
        found.append(FakeConsumer(range(3)))
        return found[-1]

    monkeypatch.setattr("confluent_kafka.Consumer", make)
    monkeypatch.setattr(consumers, "native_library", lambda: None)
    monkeypatch.setattr(consumers, "_idle", {})
    return found


def test_a_consumer_is_used_again_by_the_next_task_and_stands_nowhere_between(made: list[FakeConsumer]) -> None:
    for _ in range(2):
        with borrow_consumer(CONFIG, {"t": "one"}) as consumer:
            assert offsets_of(fetch(consumer, [OffsetRange(AT, 0, 3)])) == [[0, 1, 2]]
    assert [(each.closed, each.position) for each in made] == [(False, -1)]


def test_a_consumer_is_dropped_after_an_error_and_for_a_topic_with_another_id(made: list[FakeConsumer]) -> None:
    with pytest.raises(StoreError), borrow_consumer(CONFIG, {"t": "one"}):
        raise StoreError("READ_FAILED", "planted")
    with borrow_consumer(CONFIG, {"t": "one"}):
        pass
    with borrow_consumer(CONFIG, {"u": "other"}):
        pass
    assert len(made) == 2, "another topic is no reason"
    with borrow_consumer(CONFIG, {"t": "re-created"}):
        pass
    assert len(made) == 3
    assert [each.closed for each in made] == [False, True, False]


def test_consumers_of_other_settings_are_closed(made: list[FakeConsumer]) -> None:
    for servers in ("a:1", "b:2"):
        with borrow_consumer(CONFIG.with_setting("bootstrap.servers", servers)):
            pass
    assert [each.closed for each in made] == [True, False]


def test_a_batch_that_the_client_cannot_unpack_names_the_setting() -> None:
    consumer = FakeConsumer(range(10)).script(3, error("_BAD_COMPRESSION"))
    with pytest.raises(StoreError, match=r"READ_FAILED.*offset 3.*kafka\.receive\.message\.max\.bytes"):
        read(consumer, 0, 10)
