"""The stream reader on brokers that answer at once: ends, limits, barriers, replays, and what is taken for lost."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from connector.kafka.client.agreement import TopicView
from connector.kafka.client.topics import Partition
from connector.kafka.source.fetch import KafkaInputPartition, read_range
from connector.kafka.source.offsets import Loss, Reason, SourceOffset
from connector.kafka.source.ranges import OffsetRange
from connector.kafka.source.read_options import parse_read_options
from connector.kafka.source.stream_reader import BarrierKafkaStreamReader
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log, failed
from tests.connector.kafka.source.fake_consumer import FakeConsumer
from transactional.errors import LocationError, StoreError
from transactional.failure import Remedy, failure_of
from transactional.testing import FakeClock

LOG = "connector.kafka.data_loss"
Offset = dict[str, Any]


class Query:
    """A reader as Spark drives it: through text, one micro-batch after the other."""

    def __init__(self, brokers: FakeBrokers, **options: str) -> None:
        self.brokers = brokers
        self.clock = FakeClock()
        given = {"kafka.bootstrap.servers": "b:9092", "startingOffsets": "earliest", **options}
        if not {"subscribePattern", "assign"} & set(given):
            given.setdefault("subscribe", "t")
        self.options = given
        self.start: Offset = {}
        self.run()
        self.start = through_text(self.reader.initialOffset())

    def run(self, **options: str) -> Query:
        """Start the query again: another process, the same offsets."""
        self.options = {**self.options, **options}
        parsed = parse_read_options(self.options, "stream")
        self.reader = BarrierKafkaStreamReader(parsed, self.clock, self.brokers.connect, self.brokers.ask_each)
        return self

    def ask(self, limit: Any = None) -> Offset | None:
        """The next end; None if it is the one before."""
        end = through_text(self.reader.latestOffset(self.start, limit or self.reader.getDefaultReadLimit()))
        return None if end == self.start else end

    def ranges(self, end: Offset) -> list[tuple[str, int, int]]:
        """Of the tasks between the position and an end."""
        found = [
            each.range for each in self.reader.partitions(self.start, end) if isinstance(each, KafkaInputPartition)
        ]
        return [(str(each.partition), each.start, each.end) for each in found]

    def go_on(self, limit: Any = None) -> list[tuple[str, int, int]]:
        """Run a micro-batch that must be there; returns its tasks' ranges."""
        end = self.ask(limit)
        assert end is not None
        ranges = self.ranges(end)
        self.start = end
        return ranges


def through_text(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    return found


def brokers_of(**topics: Sequence[Log]) -> FakeBrokers:
    return FakeBrokers({topic: dict(enumerate(logs)) for topic, logs in topics.items()})


def begun(rows: int = 10, **options: str) -> tuple[Query, Log]:
    """A query that has read so many rows of a topic of one partition."""
    log = Log(0, rows)
    query = Query(brokers_of(t=[log]), **options)
    assert query.go_on() == ([("t-0", 0, rows)] if rows else [])
    return query, log


# -- ends, limits, barriers -----------------------------------------------------------------------------------------


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
    assert Query(brokers_of(t=[Log(0, 10, stable=6)]), **both).go_on() == [("t-0", 0, 10)]


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


# -- what is lost, by how many answers ----------------------------------------------------------------------------------


def changing(brokers: FakeBrokers, kind: str, *changes: Callable[[], Any]) -> None:
    """Let each of the next answers of a kind come behind a change of the truth."""
    left = list(changes)

    def next_change() -> None:
        if brokers.asked[-1] == kind and left:
            left.pop(0)()

    brokers.lies = [next_change] * 100


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("what", ["gone", "other id", "fewer partitions"])
def test_a_topic_is_given_up_by_the_word_of_every_broker_that_is_asked(what: str, fails: str) -> None:
    logs = [Log(0, 10), Log(0, 10)]
    query = Query(brokers_of(t=logs), failOnDataLoss=fails)
    query.go_on()
    truth = {"t": TopicView("id-of-t", frozenset({0, 1}))}
    stale = {
        "gone": {"t": TopicView()},
        "other id": {"t": TopicView("another", frozenset({0, 1}))},
        "fewer partitions": {"t": TopicView("id-of-t", frozenset({0}))},
    }[what]
    if what == "gone":
        query.brokers.topics.clear()
    elif what == "other id":
        query.brokers.ids["t"] = "another"
    else:
        del query.brokers.topics["t"][1]
    if what != "gone" or fails == "false":  # a topic of `subscribe` that nobody knows is an error before
        for views in ([stale, truth], [truth, stale], [truth]):
            query.brokers.views = [*views]
            with pytest.raises(StoreError, match="TOPIC_CHANGED") as caught:
                query.ask()
            assert failure_of(caught.value).remedy is Remedy.RESTART
    query.brokers.views = [stale, stale]
    waited = query.clock.passed
    if fails == "true":
        expected = {"gone": "PARTITIONS_GONE", "other id": "TOPIC_RECREATED", "fewer partitions": "PARTITIONS_GONE"}[
            what
        ]
        with pytest.raises(StoreError, match=expected):
            query.ask()
    else:
        end = query.ask()
        assert end is not None
        assert end["lost"]
    assert query.clock.passed - waited >= 1.0, "a pause apart"


def test_a_client_whose_broker_is_behind_is_not_asked_again() -> None:
    query, log = begun(failOnDataLoss="false")
    log.last = 12
    truth = dict(query.brokers.topics)
    query.brokers.views = [{"t": TopicView("id-of-t", frozenset({0}))}]
    query.brokers.topics.clear()
    connected = query.brokers.asked.count("connect")
    changing(query.brokers, "connect", lambda: None)
    changing(query.brokers, "topics", lambda: None, lambda: query.brokers.topics.update(truth))
    assert query.go_on() == [("t-0", 10, 12)]
    assert query.brokers.asked.count("connect") == connected + 1


def test_a_topic_that_the_options_leave_out_is_given_up_though_it_is_there() -> None:
    query = Query(brokers_of(t=[Log(0, 3)], u=[Log(0, 4)]), subscribe="t,u")
    query.go_on()
    query.run(subscribe="t")
    with pytest.raises(StoreError, match="PARTITIONS_GONE"):
        query.ask()
    query.run(failOnDataLoss="false")
    assert query.go_on() == []
    assert query.start["lost"] == {"u": {"0": {"from": 4, "to": None, "why": "gone"}}}
    assert "each" not in query.brokers.asked
    query.brokers.topics["u"][0].last = 6
    assert query.run(subscribe="t,u").go_on() == [("u-0", 4, 6)], "it is read on where it was"


def test_assigned_partitions_are_compared_with_the_assigned_ones_of_each_broker() -> None:
    query = Query(brokers_of(t=[Log(0, 3), Log(0, 3)]), assign='{"t":[0,1]}')
    query.go_on()
    query.run(assign='{"t":[0]}', failOnDataLoss="false")
    query.brokers.topics["t"][0].last = 5
    assert query.go_on() == [("t-0", 3, 5)]
    assert query.start["lost"] == {"t": {"1": {"from": 3, "to": None, "why": "gone"}}}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_rows_are_expired_by_two_answers(fails: str) -> None:
    query, log = begun(failOnDataLoss=fails)
    log.last = 30
    # Topics, ends, first rows: the third is false, and the next is asked for again.
    query.brokers.lies = [lambda: None] * (2 if fails == "true" else 3)
    query.brokers.lies += [lambda: setattr(log, "first", 25), lambda: setattr(log, "first", 0)]
    waited = query.clock.passed
    assert query.go_on() == [("t-0", 10, 30)]
    assert query.clock.passed > waited
    assert "lost" not in query.start


@pytest.mark.parametrize("retries", ["0", "2"])
def test_a_log_is_truncated_by_two_answers(retries: str) -> None:
    query, log = begun(10, failOnDataLoss="false")
    query.run(**{"fetchOffset.numRetries": retries})
    query.brokers.lies = [lambda: None] * 2
    query.brokers.lies += [lambda: setattr(log, "last", 5), lambda: None, lambda: setattr(log, "last", 10)]
    assert query.ask() is None
    log.last = 5
    assert query.go_on() == []
    assert query.start["lost"] == {"t": {"0": {"from": 10, "to": 5, "why": "truncated"}}}


# -- what goes behind the planning ----------------------------------------------------------------------------------------


def test_what_expires_while_a_micro_batch_runs_is_logged_and_stands_in_the_next_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query, log = begun(failOnDataLoss="false")
    query.run(minPartitions="4")
    log.last = 30
    assert query.go_on() == [("t-0", 10, 15), ("t-0", 15, 20), ("t-0", 20, 25), ("t-0", 25, 30)]
    log.first = 22
    assert query.go_on() == [], "a micro-batch is made for it"
    assert query.start["missed"] == {"t": {"0": [{"from": 10, "to": 22, "why": "expired"}]}}
    assert "lost" not in query.start
    [warning] = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert "t-0: offsets [10, 22) of a micro-batch, up to 12 rows" in warning
    log.first = 30
    assert query.ask() is None, "what came later was read"
    log.last = 31
    query.go_on()
    assert "missed" not in query.start
    assert SourceOffset.from_json(query.start).missed == {}


def test_with_fail_on_data_loss_nobody_looks_back_because_no_task_passes_over_rows() -> None:
    query, log = begun()
    log.last, before = 30, len(query.brokers.asked)
    query.go_on()
    asked = query.brokers.asked[before:]
    log.first = log.last
    assert query.ask() is None
    assert asked == ["topics", "offsets", "offsets"]


def test_a_first_row_that_only_one_answer_knows_is_not_recorded_as_missed() -> None:
    query, log = begun(failOnDataLoss="false")
    query.brokers.lies = [lambda: None, lambda: setattr(log, "first", 5), lambda: setattr(log, "first", 0)]
    assert query.ask() is None


def test_what_a_replay_does_not_read_is_logged_and_stands_in_the_next_end(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(brokers_of(t=[Log(0, 20), Log(0, 20)], u=[Log(0, 20)]), subscribe="t,u", maxRecordsPerPartition="10")
    end = query.ask()
    assert end is not None
    assert len(query.ranges(end)) == 6
    query.run(failOnDataLoss="false")
    query.brokers.topics["t"] = {0: Log(12, 20), 1: Log(0, 15)}
    del query.brokers.topics["u"]
    assert query.ranges(end) == [
        ("t-0", 10, 10),
        ("t-0", 12, 20),
        ("t-1", 0, 10),
        ("t-1", 10, 15),
        ("u-0", 0, 0),
        ("u-0", 10, 10),
    ]
    told = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert ["offsets [0, 12)" in told[0], "offsets [15, 20)" in told[1], "offsets [0, 20)" in told[2]] == [True] * 3
    query.start = end
    query.brokers.topics["t"][0].first = 14
    query.go_on()
    assert query.start["missed"] == {
        "t": {"0": [{"from": 0, "to": 14, "why": "expired"}], "1": [{"from": 15, "to": 20, "why": "truncated"}]},
        "u": {"0": [{"from": 0, "to": 20, "why": "gone"}]},
    }
    assert set(query.start["lost"]) == {"t", "u"}, "where the next micro-batch begins is another matter"


def test_what_a_replay_does_not_read_is_recorded_once_however_often_spark_plans_it() -> None:
    query = Query(brokers_of(t=[Log(0, 20)]), failOnDataLoss="false")
    end = query.ask()
    assert end is not None
    query.run()
    query.brokers.topics["t"][0].first = 12
    # a source that stands twice in a plan (a self-join, a union with itself) is planned twice
    assert query.ranges(end) == query.ranges(end) == [("t-0", 12, 20)]
    query.start = end
    query.go_on()
    assert query.start["missed"] == {"t": {"0": [{"from": 0, "to": 12, "why": "expired"}]}}


def test_a_replay_with_fail_on_data_loss_names_what_is_gone() -> None:
    query = Query(brokers_of(t=[Log(0, 20)]))
    end = query.ask()
    assert end is not None
    query.brokers.topics["t"][0].first = 12
    with pytest.raises(StoreError, match=r"DATA_LOST.*t-0: offsets \[0, 12\)"):
        query.run().ranges(end)
    query.brokers.topics["t"][0].first = 0
    assert query.ranges(end) == [("t-0", 0, 20)]
    query.brokers.lies = [lambda: None, lambda: setattr(query.brokers.topics["t"][0], "first", 12)]
    query.brokers.lies.append(lambda: setattr(query.brokers.topics["t"][0], "first", 0))
    assert query.ranges(end) == [("t-0", 0, 20)], "by two answers, too"


def test_an_end_that_was_not_used_does_not_lose_the_record() -> None:
    query, log = begun(failOnDataLoss="false")
    log.last = 30
    query.go_on()
    log.first = 22
    one, other = query.ask(), query.ask()
    assert one is not None
    assert other is not None
    assert one["missed"] == other["missed"]


def test_a_micro_batch_of_an_earlier_run_is_looked_at_and_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    query, log = begun(failOnDataLoss="false")
    log.first = 4
    query.run()
    assert query.ask() is None
    assert query.ask() is None
    [warning] = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert "offsets [0, 4)" in warning
    assert "the former run's executors" in warning
    # Tasks of a run that allows no loss pass over nothing: what it has read may expire.
    query, log = begun()
    log.first = 4
    assert query.run(failOnDataLoss="false").ask() is None
    assert len([record for record in caplog.records if record.name == LOG]) == 1


def test_planned_ends_carry_no_record_and_the_one_behind_them_does() -> None:
    query, log = begun(10, failOnDataLoss="false")
    at = SourceOffset.from_json(query.start)
    planned = SourceOffset(
        topics={Partition("t", 0): 15}, start={Partition("t", 0): 10}, ids=at.ids, barrier=at.barrier
    )
    query.start = through_text({**query.start, "planned": [planned.to_json()]})
    log.last = 30
    end = query.ask()
    assert end is not None
    log.first = 12
    assert query.ranges(end) == [("t-0", 12, 15)]
    query.start = end
    assert "missed" not in query.start
    query.go_on()
    assert query.start["missed"] == {"t": {"0": [{"from": 10, "to": 12, "why": "expired"}]}}


def test_what_two_replays_in_a_row_do_not_read_is_recorded_together() -> None:
    query, log = begun(10, failOnDataLoss="false")
    at = SourceOffset.from_json(query.start)
    one, other = Partition("t", 0), Partition("u", 0)
    ids = {**at.ids, "u": "id-of-u"}
    planned = [
        SourceOffset(topics={one: end, other: end}, start={one: end - 5, other: end - 5}, ids=ids) for end in (15, 20)
    ]
    query.run(subscribe="t,u")
    query.brokers.topics["u"] = {0: Log(0, 20)}
    query.start = through_text(
        {**query.start, "ids": ids, "planned": [end.to_json() for end in planned], "barrier": None}
    )
    log.last = 20
    end = query.ask()
    assert end is not None
    log.first = 12
    query.ranges(end)
    query.start = end
    end = query.ask()
    assert end is not None
    query.brokers.topics["u"][0].first = 18
    query.ranges(end)
    query.start = end
    log.last = 25
    query.go_on()
    assert {topic: found["0"] for topic, found in query.start["missed"].items()} == {
        "t": [{"from": 10, "to": 12, "why": "expired"}],
        "u": [{"from": 15, "to": 18, "why": "expired"}],
    }


def test_the_record_reads_back_as_it_was_written() -> None:
    missed = {Partition("t", 2): (Loss(1, 5, Reason.EXPIRED), Loss(7, 9, Reason.TRUNCATED))}
    offset = SourceOffset(topics={}, start={}, missed=missed)
    assert SourceOffset.from_json(through_text(offset.to_json())) == offset
    assert "missed" not in SourceOffset(topics={}, start={}).to_json()


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
    monkeypatch.setattr("connector.kafka.source.fetch._idle", {})
    query, _ = begun()
    at = Partition("t", 0)
    assert list(query.reader.read(KafkaInputPartition(OffsetRange(at, 4, 4), "id-of-t"))) == []
    assert made == []
    batches = list(query.reader.read(KafkaInputPartition(OffsetRange(at, 4, 8), "id-of-t")))
    assert [row for batch in batches for row in batch.column("offset").to_pylist()] == [4, 5, 6, 7]
    assert [str(field.name) for field in batches[0].schema][-1] == "timestampType"


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_task_is_tolerant_only_if_the_user_says_so(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("confluent_kafka.Consumer", lambda settings: FakeConsumer(range(3)))
    monkeypatch.setattr("connector.kafka.source.fetch._idle", {})

    def note(*_: Any, **more: Any) -> Any:
        seen.append(more)
        return iter(())

    monkeypatch.setattr("connector.kafka.source.fetch.fetch", note)
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": "b:1",
            "subscribe": "t",
            "failOnDataLoss": fails,
            "kafkaConsumer.pollTimeoutMs": "700",
        },
        "stream",
    )
    assert list(read_range(options, OffsetRange(Partition("t", 0), 0, 3), "one")) == []
    [more] = seen
    assert more["stall_seconds"] == 0.7
    assert (more["tolerance"] is None) == (fails == "true")
    assert fails == "true" or more["tolerance"].topic_id == "one"


def test_brokers_that_stay_away_are_an_error_of_ours() -> None:
    query, _ = begun()
    query.brokers.refuses = "INVALID_REQUEST"
    with pytest.raises(StoreError, match="KAFKA_REFUSED"):
        query.ask()
    assert not isinstance(KafkaException, StoreError)
