"""The stream reader on brokers that answer at once: ends, limits, barriers, planned ends, and what tasks read."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from confluent_kafka import KafkaException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import SourceOffset
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.reading.fetch import KafkaInputPartition, read_ranges
from connector.kafka.source.reading.range_loss import check_planned_topics
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from tests.connector.kafka.source.fake_brokers import Log, failed
from tests.connector.kafka.source.fake_consumer import FakeConsumer
from tests.connector.kafka.source.fake_query import Query, begun, brokers_of, through_text
from transactional.errors import LocationError, OptionError, StoreError
from transactional.testing import FakeClock


def test_a_new_query_reads_what_is_there_and_then_what_comes() -> None:
    query = Query(brokers_of(t=[Log(0, 5), Log(2, 4)]))
    assert query.start["start"] == query.start["topics"] == {"t": {"0": 0, "1": 2}}
    assert query.go_on() == [("t-0", 0, 5), ("t-1", 2, 4)]
    assert query.start["barrier"]["number"] == 1
    assert query.ask() is None
    query.brokers.topics["t"][1].last = 9
    assert query.reader.reportLatestOffset() == {"t": {"0": 5, "1": 4}}
    assert query.go_on() == [("t-1", 4, 9)]
    assert query.reader.reportLatestOffset() == {"t": {"0": 5, "1": 9}}


def test_read_committed_ends_at_the_last_stable_offset_and_read_uncommitted_behind_it() -> None:
    assert Query(brokers_of(t=[Log(0, 10, stable=6)])).go_on() == [("t-0", 0, 6)]
    both = {"kafka.isolation.level": "READ_UNCOMMITTED"}
    assert Query(brokers_of(t=[Log(0, 10, stable=6)]), None, **both).go_on() == [("t-0", 0, 10)]


def test_starting_at_latest_counts_what_the_first_end_recorded() -> None:
    log = Log(0, 7)
    query = Query(brokers_of(t=[log]), startingOffsets="latest")
    log.last = 9
    end = query.ask()
    assert end is not None
    log.last = 12
    query.start = through_text(query.run().reader.initialOffset())
    assert query.start["topics"] == {"t": {"0": 12}}, "asked again, it answers differently"
    assert query.ranges(end) == [("t-0", 7, 9)]


def test_the_most_is_shared_out_and_the_least_waits_for_rows_or_for_the_delay() -> None:
    query = Query(brokers_of(t=[Log(0, 100), Log(0, 50)]), maxOffsetsPerTrigger="30")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert query.go_on() == [("t-0", 0, 20), ("t-1", 0, 10)]
    assert query.go_on(ReadAllAvailable()) == [("t-0", 20, 100), ("t-1", 10, 50)]

    query, log = begun(10, minOffsetsPerTrigger="20", maxTriggerDelay="60s", barrierInterval="1h")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(20)
    log.last = 15
    assert query.ask() is None
    query.clock.advance(59)
    assert query.ask() is None
    query.clock.advance(2)
    assert query.go_on() == [("t-0", 10, 15)]
    log.last = 35
    assert query.go_on() == [("t-0", 15, 35)]
    log.last = 36
    assert query.ask() is None, "the delay counts from the last micro-batch with rows"
    assert query.go_on(ReadAllAvailable()) == [("t-0", 35, 36)]


def test_barriers_come_by_the_clock_also_without_rows() -> None:
    query, log = begun(10, barrierInterval="60s")
    first = query.start["barrier"]["number"]
    log.last = 20
    query.go_on()
    assert (query.start["barrier"]["number"], query.start["barrierRows"]) == (first, True)
    assert query.ask() is None
    query.clock.advance(61)
    assert query.go_on() == []
    assert (query.start["barrier"]["number"], query.start["barrierRows"]) == (first + 1, False)


def test_available_now_ends_at_its_target_with_a_barrier() -> None:
    query = Query(brokers_of(t=[Log(0, 10)]), maxOffsetsPerTrigger="4", barrierInterval="1h")
    query.reader.prepareForTriggerAvailableNow()
    query.brokers.topics["t"] = {0: Log(0, 20), 1: Log(0, 5)}
    assert [query.go_on() for _ in range(3)] == [[("t-0", 0, 4)], [("t-0", 4, 8)], [("t-0", 8, 10)]]
    assert query.start["barrier"] is not None
    assert query.start["barrierRows"] is False
    assert query.ask() is None
    assert query.run().go_on(ReadAllAvailable()) == [("t-0", 10, 20), ("t-1", 0, 5)], "the next run's"


def test_available_now_does_not_go_back_to_a_target_behind_its_position() -> None:
    query, log = begun()
    log.last = 5
    query.run(failOnDataLoss="false").reader.prepareForTriggerAvailableNow()
    log.last = 20
    end = query.ask()
    assert end is not None
    assert (end["topics"], end.get("lost")) == ({"t": {"0": 10}}, None)


def test_rows_that_expire_between_two_questions_are_a_loss_like_any_other() -> None:
    query = Query(brokers_of(t=[Log(0, 10)]), maxOffsetsPerTrigger="2", failOnDataLoss="false")
    query.go_on()
    log = query.brokers.topics["t"][0]

    def expire() -> None:
        log.first, log.last = 12, 15

    query.brokers.lies = [*[lambda: None] * 2, expire]  # the topics, the ends (once more), then where they begin
    end = query.ask()
    assert end is not None
    assert (end["topics"], end["lost"]) == ({"t": {"0": 12}}, {"t": {"0": {"from": 2, "to": 12, "why": "expired"}}})


def test_partitions_and_topics_that_come_are_read_from_their_first_row() -> None:
    query = Query(brokers_of(in_a=[Log(0, 2)]), subscribePattern="in_.*")
    assert query.go_on() == [("in_a-0", 0, 2)]
    query.brokers.topics["in_a"][1] = Log(0, 3)
    query.brokers.topics["in_b"] = {0: Log(0, 4)}
    query.brokers.topics["other"] = {0: Log(0, 9)}
    assert query.go_on() == [("in_a-1", 0, 3), ("in_b-0", 0, 4)]
    assert query.start["ids"] == {"in_a": "id-of-in_a", "in_b": "id-of-in_b"}


def test_a_partition_that_is_new_and_does_not_begin_at_0_has_lost_rows() -> None:
    query, _ = begun()
    query.brokers.topics["t"][1] = Log(3, 5)
    with pytest.raises(StoreError, match=r"DATA_LOST.*t-1 begins at 3"):
        query.ask()
    query.run(failOnDataLoss="false")
    assert query.go_on() == [("t-1", 3, 5)]
    assert query.start["lost"] == {"t": {"1": {"from": 0, "to": 3, "why": "expired"}}}


def test_planned_ends_come_first_as_they_are() -> None:
    query, log = begun()
    query.run(maxOffsetsPerTrigger="1")
    at = SourceOffset.from_json(query.start)
    ends = [
        SourceOffset(topics={Partition("t", 0): end}, start={Partition("t", 0): end - 5}, ids=at.ids)
        for end in (15, 20)
    ]
    query.start = through_text({**query.start, "planned": [end.to_json() for end in ends]})
    log.last = 30
    assert query.go_on() == [("t-0", 10, 15)]
    assert query.go_on() == [("t-0", 15, 20)]
    assert query.go_on() == [("t-0", 20, 21)]


def test_partitions_of_ends_that_do_not_follow_each_other_are_refused() -> None:
    query, log = begun()
    log.last = 20
    end = query.ask()
    query.start["topics"]["t"]["0"] = 9
    assert end is not None
    with pytest.raises(LocationError, match="OFFSETS_DISAGREE"):
        query.ranges(end)
    assert query.reader.partitions(end, end) == [], "a micro-batch without data repeats the end"


def test_an_end_of_a_topic_that_was_re_created_with_as_many_rows_is_another_end() -> None:
    query, _ = begun(failOnDataLoss="false")
    query.brokers.ids["t"] = "another"
    before = SourceOffset.from_json(query.start)
    assert query.go_on() == [("t-0", 0, 10)], "the positions are equal, the rows are not"
    after = SourceOffset.from_json(query.start)
    assert before.topics == after.topics
    assert not before.same_end(after)
    assert not SourceOffset(before.topics, before.topics, ids=before.ids).same_end(
        SourceOffset(before.topics, before.topics, ids=after.ids)
    ), "the topic's id alone tells them apart"


# -- the group's offsets ----------------------------------------------------------------------------------------------


def test_offsets_are_committed_for_monitoring_when_a_checkpoint_is_complete() -> None:
    query, log = begun()
    query.reader.commit(query.start)
    assert query.brokers.committed == [{Partition("t", 0): 10}]
    query.run(barrierInterval="1h")
    log.last = 12
    query.go_on()
    query.reader.commit(query.start)
    assert len(query.brokers.committed) == 1, "rows behind a barrier are no checkpoint yet"


def test_a_group_to_which_another_application_has_committed_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    at = Partition("t", 0)
    query, log = begun(10, **{"kafka.group.id": "theirs"})
    query.brokers.group[at] = (5, "")
    query.reader.commit(query.start)
    assert query.brokers.group == {at: (5, "")}
    assert "another application" in caplog.text
    query.run(**{"kafka.group.id": "ours"})
    query.brokers.group.clear()
    query.reader.commit(query.start)
    assert query.brokers.group == {at: (10, "barrier-kafka")}
    log.last = 12
    query.go_on()
    query.run(**{"kafka.group.id": "ours"})
    query.reader.commit(query.start)
    assert query.brokers.group[at] == (12, "barrier-kafka"), "the next run knows its own offsets"


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_a_stream_splits_a_partition_only_if_the_user_gives_up_the_order(option: str) -> None:
    with pytest.raises(OptionError, match=rf"FORBIDDEN_OPTION.*{option}.*set allowReordering to true"):
        begun(10, **{option: "2"})
    query = Query(brokers_of(t=[Log(0, 4)]), None, **{option: "2", "allowReordering": "true"})
    assert query.go_on() == [("t-0", 0, 2), ("t-0", 2, 4)]
    assert query.start["reordered"] is True
    assert "reordered" not in begun()[0].start


def test_a_task_reads_several_partitions_and_a_replay_has_the_same_tasks_whatever_the_options_are() -> None:
    query = Query(brokers_of(t=[Log(0, 4), Log(0, 3), Log(0, 2)]), None, maxPartitions="2")
    end = query.ask()
    assert end is not None
    assert end["tasks"] == {"maxPartitions": 2}
    packed = [[("t-0", 0, 4)], [("t-1", 0, 3), ("t-2", 0, 2)]]
    assert query.tasks(end) == packed
    for changed in ({"maxPartitions": "1"}, {"maxRecordsPerPartition": "1", "allowReordering": "true"}):
        assert query.run(**changed).tasks(end) == packed
    query.brokers.topics["t"][1].first = 3
    query.run(failOnDataLoss="false", maxPartitions="3", maxRecordsPerPartition="9")
    assert query.tasks(end) == [[("t-0", 0, 4)], [("t-1", 3, 3), ("t-2", 0, 2)]], "an empty range keeps its place"


def test_an_offset_of_an_older_release_is_planned_by_the_options_and_packs_nothing() -> None:
    query = Query(brokers_of(t=[Log(0, 4), Log(0, 3)]), None)
    end = query.ask()
    assert end is not None
    assert end.pop("tasks") == {}
    query.run(maxPartitions="1", maxRecordsPerPartition="3", allowReordering="true")
    assert query.tasks(end) == [[("t-0", 0, 2)], [("t-0", 2, 4)], [("t-1", 0, 3)]]


def test_the_session_s_slots_limit_the_tasks_and_the_user_s_limit_wins() -> None:
    logs = [Log(0, 1) for _ in range(6)]
    query = Query(brokers_of(t=logs), None, sessionslots="3")
    end = query.ask()
    assert end is not None
    assert [len(task) for task in query.tasks(end)] == [2, 2, 2]
    query.run(maxPartitions="4")
    end = query.ask()
    assert end is not None
    assert len(query.tasks(end)) == 4
    long = Query(brokers_of(t=[Log(0, 60_000) for _ in range(6)]), None, sessionslots="3")
    end = long.ask()
    assert end is not None
    assert end["tasks"] == {"maxPartitions": 4}, "no task has over 100,000 offsets only to be one of three"
    assert [len(task) for task in long.tasks(end)] == [2, 2, 1, 1]
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*sessionSlots.*whole number"):
        query.run(sessionslots="many")


@pytest.mark.parametrize("how", ["raises", "answers", "in a partition"])
def test_a_commit_for_monitoring_that_fails_is_logged_and_stops_nothing(
    how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, log = begun()
    if how == "raises":
        query.brokers.refuses = "_TRANSPORT"
    elif how == "answers":
        answer = failed("GROUP_AUTHORIZATION_FAILED")
        monkeypatch.setattr(query.brokers, "alter_consumer_group_offsets", lambda _: {"g": answer})
    else:
        from types import SimpleNamespace

        from tests.connector.kafka.source.fake_brokers import done

        parts = SimpleNamespace(topic_partitions=[SimpleNamespace(error="UNKNOWN_MEMBER")])
        monkeypatch.setattr(query.brokers, "alter_consumer_group_offsets", lambda _: {"g": done(parts)})
    query.reader.commit(query.start)
    assert "monitoring only" in caplog.text
    query.brokers.refuses = ""
    log.last = 11
    assert query.go_on() == [("t-0", 10, 11)]


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_a_reader_travels_to_executors_without_its_client() -> None:
    query, _ = begun()
    copy = pickle.loads(pickle.dumps(BarrierKafkaStreamReader(parse_read_options(query.options, "stream"))))
    assert copy._backlog._admin is None
    query.reader.stop()
    assert query.reader._backlog._admin is None


def test_a_task_reads_its_range_and_an_empty_one_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeConsumer] = []

    def make(settings: dict[str, Any]) -> FakeConsumer:
        made.append(FakeConsumer(range(10)))
        return made[-1]

    monkeypatch.setattr("confluent_kafka.Consumer", make)
    monkeypatch.setattr("connector.kafka.source.reading.consumers._idle", {})
    monkeypatch.setattr("connector.kafka.source.reading.consumers.native_library", lambda: None)
    query, _ = begun()
    at, ids = Partition("t", 0), {"t": "id-of-t"}
    monkeypatch.setattr("connector.kafka.source.reading.range_loss.check_brokers", query.brokers.connect)
    monkeypatch.setattr("connector.kafka.source.reading.range_loss.ask_each_broker", query.brokers.ask_each)
    monkeypatch.setattr("connector.kafka.source.reading.range_loss._askers", {})
    assert list(query.reader.read(KafkaInputPartition([OffsetRange(at, 4, 4)], ids))) == []
    assert made == []
    batches = list(query.reader.read(KafkaInputPartition([OffsetRange(at, 4, 8)], ids)))
    assert [row for batch in batches for row in batch.column("offset").to_pylist()] == [4, 5, 6, 7]
    assert [str(field.name) for field in batches[0].schema][-1] == "timestampType"
    reading = query.reader.read(KafkaInputPartition([OffsetRange(at, 4, 8)], ids))
    next(reading)
    query.brokers.ids["t"] = "another"
    with pytest.raises(StoreError, match=r"TOPIC_CHANGED.*were deleted or re-created.*: t\."):
        list(reading)
    with pytest.raises(StoreError, match="TOPIC_CHANGED"):
        next(query.reader.read(KafkaInputPartition([OffsetRange(at, 4, 8)], ids)))


@pytest.mark.parametrize("again", ["t", "u", "v"])
def test_each_topic_of_a_task_has_to_be_the_planned_one(again: str, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = brokers_of(t=[Log()], u=[Log()], v=[Log()])
    monkeypatch.setattr("connector.kafka.source.reading.range_loss.ask_each_broker", brokers.ask_each)
    ids = {topic: f"id-of-{topic}" for topic in "tuv"}
    config = parse_read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"}).config
    check_planned_topics(config, ids, FakeClock(), brokers.connect)
    brokers.ids[again] = "another"
    with pytest.raises(StoreError, match=rf"TOPIC_CHANGED.*were deleted or re-created.*: {again}\."):
        check_planned_topics(config, ids, FakeClock(), brokers.connect)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_task_is_tolerant_only_if_the_user_says_so(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("confluent_kafka.Consumer", lambda settings: FakeConsumer(range(3)))
    monkeypatch.setattr("connector.kafka.source.reading.consumers._idle", {})
    monkeypatch.setattr("connector.kafka.source.reading.consumers.native_library", lambda: None)

    def note(*_: Any, **more: Any) -> Any:
        seen.append(more)
        return iter(())

    monkeypatch.setattr("connector.kafka.source.reading.fetch.fetch", note)
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": "b:1",
            "subscribe": "t",
            "failOnDataLoss": fails,
            "kafkaConsumer.pollTimeoutMs": "700",
        },
        "stream",
    )
    monkeypatch.setattr("connector.kafka.source.reading.fetch.check_planned_topics", lambda *_: None)
    assert list(read_ranges(options, [OffsetRange(Partition("t", 0), 0, 3)], {"t": "one"})) == []
    [more] = seen
    assert more["stall_seconds"] == 0.7
    assert (more["tolerance"] is None) == (fails == "true")
    assert fails == "true" or more["tolerance"].topic_ids == {"t": "one"}


def test_brokers_that_stay_away_are_an_error_of_ours() -> None:
    query, _ = begun()
    query.brokers.refuses = "INVALID_REQUEST"
    with pytest.raises(StoreError, match="KAFKA_REFUSED"):
        query.ask()
    assert not isinstance(KafkaException, StoreError)
