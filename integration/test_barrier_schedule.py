"""Barriers at an interval, final barriers and planned ends: on a real broker, by the reader and in a real Spark."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from connector.kafka.source.data_source import BarrierKafkaDataSource
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from integration.broker import Cluster
from integration.test_kafka_source import (
    batches_of,
    collect,
    load,
    options_of,
    reader_of,
    rows_between,
    values,
    wait_until,
)
from integration.topic_jobs import produce
from tests.transactional.bodies import lines
from transactional.barrier import sources_digest
from transactional.errors import StoreError
from transactional.testing.clock import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offset = dict[str, Any]


def ask(reader: BarrierKafkaStreamReader, start: Offset) -> Offset | None:
    """The next end through text, as Spark keeps it; None where it is `start`."""
    end = reader.latestOffset(json.loads(json.dumps(start)), reader.getDefaultReadLimit())
    found: Offset = json.loads(json.dumps(end))
    return None if json.dumps(found) == json.dumps(start) else found


def told(end: Offset) -> tuple[int, bool, int]:
    """Number of the last barrier, whether rows followed it, how many in a row up to it were empty."""
    return end["barrier"]["number"], end["barrierRows"], end["barrierEmpty"]


# -- the reader, without Spark --------------------------------------------------------------------------------------


def test_barriers_come_at_the_interval_and_empty_ones_follow(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=2)
    clock = FakeClock()
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", barrierInterval="2s")
    reader._clock = reader._backlog._clock = clock
    start = reader.initialOffset()
    assert ask(reader, start) is None
    ends: list[Offset] = [start]

    def after(seconds: float, *rows: int) -> Offset | None:
        clock.sleep(seconds)
        produce(kafka, topic_name, rows)
        end = ask(reader, ends[-1])
        if end is not None:
            assert values(rows_between(reader, ends[-1], end)) == sorted(rows)
            ends.append(end)
        return end

    assert told(after(5, 0, 1) or {}) == (1, False, False)
    assert told(after(1, 2) or {}) == (1, True, False)
    assert told(after(0.5, 3, 4) or {}) == (1, True, False)
    assert after(0.4) is None
    assert told(after(0.1) or {}) == (2, False, False), "no rows now: an empty micro-batch carries it"
    assert ends[-1]["topics"] == ends[-1]["start"] == ends[-2]["topics"]
    assert after(1.9) is None
    assert told(after(0.1, 5) or {}) == (3, False, False), "due with rows: their own micro-batch carries it"
    assert after(9.9) is None
    assert told(after(0.1) or {}) == (4, False, 1)
    assert after(19.9) is None
    assert told(after(0.1) or {}) == (5, False, 2), "the checkpoint of the one before may have been declined, too"
    assert told(after(3, 6) or {}) == (6, False, 0)
    assert {end["interval"] for end in ends} == {2000}


def test_the_pause_begins_when_spark_first_asks_behind_the_barrier_and_anew_in_another_run(
    kafka: Cluster, topic_name: str
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    clock = FakeClock()

    def run() -> BarrierKafkaStreamReader:
        reader = reader_of(kafka, topic_name, startingOffsets="earliest", minPauseBetweenCheckpoints="3 s")
        reader._clock = reader._backlog._clock = clock
        return reader

    def follow(reader: BarrierKafkaStreamReader, start: Offset, row: int) -> Offset:
        produce(kafka, topic_name, [row])
        end = ask(reader, start)
        assert end is not None
        return end

    first = run()
    end = follow(first, first.initialOffset(), 0)
    assert (told(end), end["minPause"]) == ((1, False, False), 3000)
    clock.sleep(60)  # the micro-batch takes its time, and its checkpoint ends with it
    end = follow(first, end, 1)
    assert told(end) == (1, True, False)
    clock.sleep(2.9)
    end = follow(first, end, 2)
    assert told(end) == (1, True, False)
    second = run()
    clock.sleep(60)
    end = follow(second, end, 3)
    assert told(end) == (1, True, False)
    clock.sleep(3)
    assert told(ask(second, end) or {}) == (2, False, False)


def test_the_groups_offsets_stand_at_barriers_only(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(2))
    reader = reader_of(kafka, topic_name, startingOffsets="earliest", barrierInterval="1h")
    at_barrier = ask(reader, reader.initialOffset())
    assert at_barrier is not None
    produce(kafka, topic_name, range(2, 4))
    behind = ask(reader, at_barrier)
    assert behind is not None
    reader.stop()
    reader.commit(behind)
    assert reader._backlog._admin is None, "no broker was asked"
    reader.commit(at_barrier)
    assert reader._backlog._admin is not None


def planned_behind(start: Offset, ends: list[Offset]) -> Offset:
    """What a rewind writes: an end, with the ends of the micro-batches that followed it."""
    return {key: {**start, "planned": ends}[key] for key in sorted([*start, "planned"])}


@pytest.mark.parametrize("now", [False, True], ids=["stream", "availableNow"])
def test_planned_ends_come_first_and_as_they_are(kafka: Cluster, topic_name: str, now: bool) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(12))
    once = list(batches_of(reader_of(kafka, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger="4")))
    (first, _), (second, second_rows), (third, third_rows) = once
    # Spark repeated an end for a watermark, once behind the micro-batch that the rewind kept.
    planned = [first, second, second, third]
    start = planned_behind(first, planned)
    produce(kafka, topic_name, range(12, 15))

    reader = reader_of(kafka, topic_name, barrierInterval="1h")
    if now:
        reader.prepareForTriggerAvailableNow()
    read = []
    for wanted in planned:
        found = json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(1))))
        assert json.dumps(found) != json.dumps(start)
        assert sources_digest(lines(json.dumps(found))) == sources_digest(lines(json.dumps(wanted)))
        rows = rows_between(reader, start, found)
        assert rows_between(reader_of(kafka, topic_name), start, found) == rows, "its replay in another run"
        read.append(rows)
        start = found
    assert read == [[], second_rows, [], third_rows]
    assert json.dumps(start) == json.dumps(third)

    end = ask(reader, start)
    assert end is not None
    assert values(rows_between(reader, start, end)) == [12, 13, 14]
    assert (end["barrier"]["kind"], end["barrierRows"]) == (("final", False) if now else ("checkpoint", True))


def test_planned_ends_of_a_topic_that_was_made_anew_are_not_followed(kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(4))
    (first, _), (second, _) = batches_of(
        reader_of(kafka, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    )
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(4))
    with pytest.raises(StoreError, match=r"DATA_LOST.*created again"):
        reader_of(kafka, topic_name).latestOffset(planned_behind(first, [second]), ReadAllAvailable())
    mixed = {**first, "ids": {}}
    with pytest.raises(StoreError, match=r"DATA_LOST.*created again"):
        reader_of(kafka, topic_name).latestOffset(planned_behind(mixed, [second]), ReadAllAvailable())


# -- in Spark -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(BarrierKafkaDataSource)
    return spark


def offset_log(location: Path) -> list[Offset]:
    """The source's line of each micro-batch that Spark has planned."""
    log = location / "offsets"
    numbers = sorted(int(path.name) for path in log.iterdir() if path.name.isdigit()) if log.exists() else []
    return [json.loads((log / str(number)).read_text().splitlines()[2]) for number in numbers]


def barriers_of(location: Path) -> list[Offset]:
    """Each barrier once."""
    seen = {offset["barrier"]["number"]: offset["barrier"] for offset in offset_log(location)}
    return list(seen.values())


def test_available_now_ends_with_a_final_barrier_where_a_streaming_run_read_everything_without_one(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    options = options_of(kafka, topic_name, startingOffsets="earliest", barrierInterval="1h")
    produce(kafka, topic_name, [0])
    query, seen = collect(load(registered, options), tmp_path, now=False)
    try:
        query.processAllAvailable()
        for value in (1, 2):
            produce(kafka, topic_name, [value])
            query.processAllAvailable()
    finally:
        query.stop()
    batches = len(seen)
    assert [told(end) for end in offset_log(tmp_path)] == [(1, False, False), *[(1, True, False)] * (batches - 1)]

    query, again = collect(load(registered, options), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert again == {batches: []}, "one empty micro-batch"
    end = offset_log(tmp_path)[-1]
    assert (end["barrier"]["kind"], end["barrier"]["number"], end["barrierRows"]) == ("final", 2, False)

    query, none = collect(load(registered, options), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert none == {}
    produce(kafka, topic_name, [3])
    query, more = collect(load(registered, options), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert [row.value for row in more[batches + 1]] == [b"3"]
    assert [barrier["kind"] for barrier in barriers_of(tmp_path)] == ["checkpoint", "final", "final"]


@pytest.mark.slow
def test_a_query_that_runs_once_ends_with_a_final_barrier_too(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    options = options_of(kafka, topic_name, startingOffsets="earliest", barrierInterval="1h", maxOffsetsPerTrigger="2")
    for rows in (range(5), range(5, 9)):
        produce(kafka, topic_name, rows)
        writer = load(registered, options).writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        assert writer.trigger(once=True).start().awaitTermination(180)
    ends = offset_log(tmp_path)
    assert [sum(end["topics"][topic_name].values()) for end in ends] == [5, 9]
    assert [(end["barrier"]["kind"], end["barrierRows"]) for end in ends] == [("final", False)] * 2


def test_available_now_on_an_empty_topic_ends_without_a_barrier(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name)
    # Spark always runs the first micro-batch, from the initial offset to itself.
    runs: list[dict[int, list[Any]]] = [{0: []}, {}]
    for batches in runs:
        query, seen = collect(load(registered, options_of(kafka, topic_name)), tmp_path, now=True)
        assert query.awaitTermination(180)
        assert seen == batches
        assert [end["barrier"] for end in offset_log(tmp_path)] == [None]
    produce(kafka, topic_name, [0])
    query, seen = collect(load(registered, options_of(kafka, topic_name)), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert [row.value for row in seen[1]] == [b"0"]
    assert told(offset_log(tmp_path)[-1]) == (1, False, False)


@pytest.mark.slow
def test_barriers_stand_at_the_interval_only_and_a_quiet_query_makes_one_more(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    options = options_of(kafka, topic_name, startingOffsets="earliest", barrierInterval="2s")
    produce(kafka, topic_name, [0])
    query, seen = collect(load(registered, options), tmp_path, now=False)
    sent = 1
    try:

        def has_barriers() -> bool:
            nonlocal sent
            produce(kafka, topic_name, [sent])
            sent += 1
            query.processAllAvailable()
            return 4 <= len(barriers_of(tmp_path)) < len(offset_log(tmp_path))

        wait_until(has_barriers, 120)
        wait_until(lambda: offset_log(tmp_path)[-1]["barrierEmpty"], 120)
    finally:
        query.stop()
    log, barriers = offset_log(tmp_path), barriers_of(tmp_path)
    assert sorted(int(row.value) for rows in seen.values() for row in rows) == list(range(sent))
    assert len(log) > len(barriers), "more micro-batches than barriers"
    assert all(later["timestamp"] - earlier["timestamp"] >= 2000 for earlier, later in pairwise(barriers))
    assert [barrier["number"] for barrier in barriers] == list(range(1, len(barriers) + 1))
    assert [told(end)[1:] for end in log[-2:]] == [(False, 0), (False, 1)]
    assert log[-1]["topics"] == log[-1]["start"] == log[-2]["topics"]


def test_spark_runs_planned_micro_batches_as_they_were(
    kafka: Cluster, registered: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, range(10))
    options = options_of(kafka, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    query, once = collect(load(registered, options), tmp_path, now=True)
    assert query.awaitTermination(180)
    first, second, third = offset_log(tmp_path)

    for folder in ("commits", "offsets"):
        for name in ("2", ".2.crc", "1", ".1.crc"):
            (tmp_path / folder / name).unlink(missing_ok=name.endswith("crc"))
    kept = tmp_path / "offsets" / "0"
    written = kept.read_text().splitlines()
    kept.write_text("\n".join([*written[:2], json.dumps(planned_behind(first, [second, third]))]))
    (tmp_path / "offsets" / ".0.crc").unlink(missing_ok=True)
    produce(kafka, topic_name, range(10, 12))

    query, again = collect(load(registered, {**options, "maxOffsetsPerTrigger": "1"}), tmp_path, now=True)
    assert query.awaitTermination(180)
    assert [sorted(again[batch], key=str) for batch in (1, 2)] == [sorted(once[batch], key=str) for batch in (1, 2)]
    assert sorted(int(row.value) for batch in (3, 4) for row in again[batch]) == [10, 11]
    assert sorted(again) == [1, 2, 3, 4]
    log = offset_log(tmp_path)
    assert (log[1]["planned"], "planned" in log[2]) == ([third], False)
    assert [sources_digest(lines(json.dumps(end))) for end in log[1:3]] == [
        sources_digest(lines(json.dumps(end))) for end in (second, third)
    ]
    assert log[-1]["barrier"]["kind"] == "final"
