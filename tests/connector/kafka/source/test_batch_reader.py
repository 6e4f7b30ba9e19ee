"""The batch reader's planning, on brokers that answer at once."""

from __future__ import annotations

import logging

import pytest

from connector.kafka.source.batch_reader import BarrierKafkaBatchReader
from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.reading.fetch import KafkaInputPartition
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log
from transactional.errors import OptionError
from transactional.testing import FakeClock


def planned(brokers: FakeBrokers, **options: str) -> list[tuple[str, int, int]]:
    given = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", **options}
    reader = BarrierKafkaBatchReader(parse_read_options(given, "batch"), FakeClock(), brokers.connect)
    found = [each for each in reader.partitions() if isinstance(each, KafkaInputPartition)]
    assert all(each.topic_ids == {"t": "id-of-t"} for each in found)
    return [(str(each.partition), each.start, each.end) for task in found for each in task.ranges]


def brokers_of(*logs: Log) -> FakeBrokers:
    return FakeBrokers({"t": dict(enumerate(logs))})


def test_a_scan_reads_what_is_there_and_readable() -> None:
    assert planned(brokers_of(Log(2, 9), Log(0, 9, stable=4), Log(3, 3))) == [("t-0", 2, 9), ("t-1", 0, 4)]


def test_explicit_offsets_count_and_minus_one_and_minus_two_are_the_ends() -> None:
    options = {"startingOffsets": '{"t":{"0":3,"1":-2}}', "endingOffsets": '{"t":{"0":-1,"1":5}}'}
    assert planned(brokers_of(Log(0, 9), Log(1, 9)), **options) == [("t-0", 3, 9), ("t-1", 1, 5)]


def test_an_end_behind_an_open_transaction_is_refused_or_cut(caplog: pytest.LogCaptureFixture) -> None:
    end = {"endingOffsets": '{"t":{"0":9}}'}
    with pytest.raises(
        OptionError, match=r"INVALID_OPTION.*is 't-0: 9'; expected at most the offset that can be read now \(t-0: 4\)"
    ):
        planned(brokers_of(Log(0, 9, stable=4)), **end)
    assert planned(brokers_of(Log(0, 9, stable=4)), failOnDataLoss="false", **end) == [("t-0", 0, 4)]
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "after the last readable offset, so the read ends at t-0: 4, not at t-0: 9" in warning.getMessage()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_leader_that_knows_no_better_at_first_cuts_no_rows_off(fails: str) -> None:
    brokers = brokers_of(Log(0, 9))
    answers = [4, 9]

    class Ends(Log):
        """Each look at the end has the next answer."""

        @property
        def stable(self) -> int:
            return answers.pop(0) if answers else 9

        @stable.setter
        def stable(self, value: int | None) -> None:
            pass

    brokers.topics["t"][0] = Ends(0, 9)
    assert planned(brokers, failOnDataLoss=fails, endingOffsets='{"t":{"0":9}}') == [("t-0", 0, 9)]
    assert answers == []


def test_ends_before_their_starts_are_refused_or_empty() -> None:
    options = {"startingOffsets": '{"t":{"0":7}}', "endingOffsets": '{"t":{"0":-1}}'}
    log = Log(0, 9, stable=5)
    with pytest.raises(OptionError, match=r"is 't-0: from 7 to 5'; expected an end at or after"):
        planned(brokers_of(log), **options)
    assert planned(brokers_of(log), failOnDataLoss="false", **options) == []


def test_long_ranges_are_split_among_tasks() -> None:
    assert planned(brokers_of(Log(0, 10)), minPartitions="2") == [("t-0", 0, 5), ("t-0", 5, 10)]
