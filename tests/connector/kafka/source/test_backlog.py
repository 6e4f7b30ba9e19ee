"""What a stream finds lost: by several answers, in a running micro-batch, in a replay; and how it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connector.kafka.client.agreement import TopicView
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log
from tests.connector.kafka.source.fake_query import LOG, Query, begun, brokers_of
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
    with pytest.raises(StoreError, match=r"DATA_LOST.*can no longer be found"):
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
    query.brokers.lies = [lambda: None] * 2
    query.brokers.lies += [lambda: setattr(log, "first", 25), lambda: setattr(log, "first", 0)]
    waited = query.clock.passed
    assert query.go_on() == [("t-0", 10, 30)]
    assert query.clock.passed > waited
    assert "lost" not in query.start


@pytest.mark.parametrize("retries", ["0", "2"])
def test_a_log_is_truncated_by_two_answers(retries: str) -> None:
    query, log = begun(10, failOnDataLoss="false")
    query.run(**{"fetchOffset.numRetries": retries})
    query.brokers.lies = [lambda: None]
    query.brokers.lies += [lambda: setattr(log, "last", 5), lambda: None, lambda: setattr(log, "last", 10)]
    assert query.ask() is None
    log.last = 5
    assert query.go_on() == []
    assert query.start["lost"] == {"t": {"0": {"from": 10, "to": 5, "why": "truncated"}}}


# -- what goes after the planning -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_planning_asks_for_the_topics_and_their_ends_and_begins(fails: str) -> None:
    query, log = begun(failOnDataLoss=fails)
    log.last, before = 30, len(query.brokers.asked)
    query.go_on()
    asked = query.brokers.asked[before:]
    log.first = log.last
    assert query.ask() is None
    assert asked == ["topics", "offsets", "offsets"]


def test_what_a_replay_does_not_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
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
    told = [record.getMessage().partition("false: ")[2] for record in caplog.records if record.name == LOG]
    again = "were removed after the micro-batch was planned. The query now runs this micro-batch again, and reads"
    assert told == [
        f"up to 10 rows of t-0 [0, 10) {again} none of them.",
        f"up to 2 rows of t-0 [10, 20) {again} t-0 [12, 20).",
        f"up to 5 rows of t-1 [10, 20) {again} t-1 [10, 15).",
        f"up to 10 rows of u-0 [0, 10) {again} none of them.",
        f"up to 10 rows of u-0 [10, 20) {again} none of them.",
    ]
    query.start = end
    query.brokers.topics["t"][0].first = 14
    query.go_on()
    assert set(query.start["lost"]) == {"t", "u"}, "where the next micro-batch begins is another matter"


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
