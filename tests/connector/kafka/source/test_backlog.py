"""What a stream finds lost: by several answers, in a running micro-batch, in a replay; and how it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connector.kafka.client.agreement import TopicView
from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import Loss, Reason, SourceOffset
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log
from tests.connector.kafka.source.fake_query import LOG, Query, begun, brokers_of, through_text
from transactional.errors import StoreError
from transactional.failure import Remedy, failure_of


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
        expected = {"gone": "gone", "other id": "recreated", "fewer partitions": "gone"}[what]
        with pytest.raises(StoreError, match="DATA_LOST") as caught:
            query.ask()
        assert caught.value.parameters["kind"] == expected
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
    with pytest.raises(StoreError, match=r"DATA_LOST.*can't be found any more"):
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
    query.run(minPartitions="4", allowReordering="true")
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
    query = Query(
        brokers_of(t=[Log(0, 20), Log(0, 20)], u=[Log(0, 20)]),
        subscribe="t,u",
        maxRecordsPerPartition="10",
        allowReordering="true",
    )
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
