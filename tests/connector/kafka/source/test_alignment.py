"""A query that follows other queries' barriers, on brokers that answer at once: where its micro-batches end."""

from __future__ import annotations

import json
import logging
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.kafka.source.alignment.alignment import LOG_NAME, Alignment
from tests.connector.kafka.source.fake_brokers import FakeBrokers, Log
from tests.connector.kafka.source.fake_marks import FakeReaders, Upstream
from tests.connector.kafka.source.fake_query import Query
from transactional.barrier import SourceLine, cut_of
from transactional.errors import StoreError
from transactional.testing import FakeClock


def pair(**options: str) -> tuple[Upstream, Upstream, Query]:
    """Two queries that read one topic, and one that reads what both write."""
    brokers = FakeBrokers({})
    a, b = Upstream(brokers, "a"), Upstream(brokers, "b")
    given = {"subscribe": "a,b", "alignOn": "a-marks,b-marks", **options}
    return a, b, Query(brokers, FakeReaders(a, b), **given)


def single(**options: str) -> tuple[Upstream, Query]:
    """A query that reads what another one writes."""
    a = Upstream(FakeBrokers({}), "a")
    return a, Query(a.brokers, FakeReaders(a), subscribe="a", alignOn="a-marks", **options)


def origin(number: int) -> dict[str, int]:
    return {"s/1": number}


def cut(query: Query) -> tuple[dict[str, int], bool]:
    """Checkpoints of the marks that it stands at; whether nothing is behind."""
    value: dict[str, Any] = query.start["cut"]
    return {name.removesuffix("-marks"): mark["checkpoint"] for name, mark in value["marks"].items()}, value["exact"]


# -- exactly-once ----------------------------------------------------------------------------------------------------


def test_a_micro_batch_ends_where_both_channels_are_at_the_same_barrier() -> None:
    a, b, query = pair()
    assert query.ask() is None, "no mark is there"
    a.rows(3)
    b.rows(2)
    assert query.ask() is None
    a.mark(origin(1)).rows(5)
    assert query.ask() is None, "b is at no barrier yet"
    b.mark(origin(1)).rows(7)
    assert query.go_on() == [("a-0", 0, 3), ("b-0", 0, 2)]
    assert cut(query) == ({"a": 1, "b": 1}, True)
    assert query.start["barrier"]["number"] == 1
    assert query.ask() is None, "rows behind the barrier are there, and not read"
    found = cut_of([SourceLine.parse(json.dumps(query.start))])
    assert found is not None
    assert (found["exact"], found["lineage"]) == (True, {"query-a": 1, "query-b": 1, "s/1": 1})


def test_each_barrier_is_a_stop_also_without_rows() -> None:
    a, b, query = pair()
    for number in (1, 2, 3):
        a.rows(2).mark(origin(number))
        b.mark(origin(number))
    assert [query.go_on() for _ in range(3)] == [[("a-0", 0, 2)], [("a-0", 2, 4)], [("a-0", 4, 6)]]
    a.mark(origin(4))
    b.mark(origin(4))
    assert query.go_on() == []
    assert (cut(query), query.start["barrier"]["number"]) == (({"a": 4, "b": 4}, True), 4)
    assert query.ask() is None


def test_a_barrier_that_one_of_them_has_left_out_is_no_stop() -> None:
    a, b, query = pair()
    a.rows(1).mark(origin(1)).rows(1).mark(origin(2)).rows(1).mark(origin(3))
    b.rows(1).mark(origin(3))
    assert query.go_on() == [("a-0", 0, 3), ("b-0", 0, 1)]
    assert cut(query) == ({"a": 3, "b": 1}, True)


def test_a_cut_is_read_in_several_steps_and_only_its_end_has_a_barrier() -> None:
    a, b, query = pair(maxOffsetsPerTrigger="4")
    a.rows(6).mark(origin(1))
    b.rows(3).mark(origin(1)).rows(5)
    ends = []
    while (end := query.ask()) is not None:
        query.ranges(end)
        query.start = end
        ends.append((end["topics"], end["cut"]["exact"], end["barrier"] is not None, end["cut"].get("toward")))
    toward = {"a-marks": 1, "b-marks": 1}
    assert [(exact, barrier, to) for _, exact, barrier, to in ends] == [
        (False, False, toward),
        (False, False, toward),
        (True, True, None),
    ]
    assert ends[-1][0] == {"a": {"0": 6}, "b": {"0": 3}}


def test_a_new_run_goes_on_to_the_cut_that_was_begun() -> None:
    a, b, query = pair(maxOffsetsPerTrigger="4")
    a.rows(6).mark(origin(1))
    b.rows(3).mark(origin(1))
    query.go_on()
    a.rows(9).mark(origin(2))
    b.rows(9).mark(origin(2))
    query.run(maxOffsetsPerTrigger="100")
    query.go_on()
    assert query.start["topics"] == {"a": {"0": 6}, "b": {"0": 3}}
    assert cut(query) == ({"a": 1, "b": 1}, True)


def test_a_barrier_waits_for_the_interval_and_then_stands_at_a_cut() -> None:
    a, query = single(barrierInterval="60s")
    a.rows(1).mark()
    query.go_on()
    first = query.start["barrier"]["number"]
    a.rows(1).mark().mark()
    assert query.go_on() == [("a-0", 1, 2)]
    assert query.go_on() == [], "the cut without rows is passed"
    assert (query.start["barrier"]["number"], cut(query)) == (first, ({"a": 3}, True))
    query.clock.advance(61)
    a.rows(1)
    assert query.ask() is not None, "what was read has its barrier"
    query.go_on()
    assert query.start["barrier"]["number"] == first + 1
    assert query.ask() is None, "the row is behind the last mark"


def test_too_few_rows_wait_and_the_cut_is_not_passed() -> None:
    a, query = single(minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    a.rows(3).mark()
    query.go_on()
    a.rows(3).mark()
    assert query.ask() is None
    a.rows(3).mark()
    query.clock.advance(61)
    assert query.go_on() == [("a-0", 3, 6)]


def test_the_newest_checkpoint_of_a_query_that_reads_past_barriers_is_no_stop() -> None:
    a, query = single()
    a.rows(1).mark(exact=False).rows(1).mark()
    assert query.go_on() == [("a-0", 0, 2)]
    a.rows(1).mark(exact=False)
    assert query.ask() is None


def test_many_marks_of_one_channel_are_passed_at_once_at_round_numbers() -> None:
    a, query = single()
    for _ in range(1000):
        a.rows(1).mark()
    stops = []
    while query.ask() is not None:
        query.go_on()
        stops.append(cut(query)[0]["a"])
    assert stops[:4] == [512, 768, 896, 960]
    assert stops[-1] == 1000
    assert len(stops) < 20


def test_many_marks_are_passed_as_far_as_a_micro_batch_may_go() -> None:
    a, query = single(maxOffsetsPerTrigger="100")
    for _ in range(1000):
        a.rows(1).mark()
    query.go_on()
    assert (cut(query), query.start["topics"]) == (({"a": 64}, True), {"a": {"0": 64}})


def test_queries_that_are_behind_differently_stop_at_the_same_barriers() -> None:
    a = Upstream(FakeBrokers({}), "a")
    given = {"subscribe": "a", "alignOn": "a-marks"}
    slow, fast = Query(a.brokers, FakeReaders(a), **given), Query(a.brokers, FakeReaders(a), **given)
    stops: tuple[set[int], set[int]] = (set(), set())
    for number in range(1, 2001):
        a.rows(1).mark()
        for query, every, seen in ((slow, 97, stops[0]), (fast, 13, stops[1])):
            if number % every == 0 and query.ask() is not None:
                query.go_on()
                seen.add(cut(query)[0]["a"])
    common = sorted(stops[0] & stops[1])
    assert len(common) > len(stops[0]) // 2, "a third query that joins them has cuts"


def test_channels_that_nothing_has_to_agree_with_pass_many_marks_each() -> None:
    a, b, query = pair()
    for _ in range(100):
        a.rows(1).mark()
    b.rows(1).mark()
    query.go_on()
    assert cut(query) == ({"a": 64, "b": 1}, True)


def test_a_join_that_is_far_behind_stops_where_others_do_and_then_at_each_barrier() -> None:
    a, b, query = pair()
    for number in range(1, 41):
        a.rows(1).mark(origin(number))
        b.rows(1).mark(origin(number))
    stops = []
    while query.ask() is not None:
        query.go_on()
        at, exact = cut(query)
        assert exact
        assert at["a"] == at["b"]
        stops.append(at["a"])
    assert stops == [32, *range(33, 41)]


def test_a_query_with_two_origins_meets_its_siblings_of_either() -> None:
    """If it counted one of them, and a sibling the other, a third query that joins them would never move."""
    brokers = FakeBrokers({})
    p, w = Upstream(brokers, "p"), Upstream(brokers, "w")
    both = Query(brokers, FakeReaders(p), subscribe="p", alignOn="p-marks")
    one = Query(brokers, FakeReaders(w), subscribe="w", alignOn="w-marks")
    seen: tuple[set[int], set[int]] = (set(), set())
    for number in range(1, 601):
        p.rows(1).mark({"s/1": number, "t/1": number + 1})
        w.rows(1).mark({"t/1": number + 1})
        if number % 12 == 0:
            for query, stops in zip((both, one), seen, strict=True):
                if query.ask() is not None:
                    query.go_on()
                    stops.add(query.start["cut"]["lineage"]["t/1"])
    assert {stop for stop in seen[1] if stop <= max(seen[0])} <= seen[0]


def test_a_cut_lies_behind_more_marks_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.kafka.source.alignment.alignment.MOST", 10)
    monkeypatch.setattr("connector.kafka.source.alignment.alignment.AT_ONCE", 5)
    a, b, query = pair()
    for number in range(1, 101):
        a.rows(1).mark(origin(number))
    b.rows(1).mark(origin(90))
    assert query.go_on() == [("a-0", 0, 90), ("b-0", 0, 1)]


def test_a_barrier_that_is_due_does_not_wait_for_rows() -> None:
    a, query = single(barrierInterval="60s", minOffsetsPerTrigger="5", maxTriggerDelay="900s")
    a.rows(5).mark()
    query.go_on()
    query.clock.advance(10)
    a.rows(5).mark()
    query.go_on()
    a.rows(1).mark()
    assert query.ask() is None
    query.clock.advance(51)
    assert query.go_on() == []
    assert (cut(query), query.start["barrier"]["number"]) == (({"a": 2}, True), 2)


def test_why_nothing_is_read_is_logged_also_without_marks(caplog: pytest.LogCaptureFixture) -> None:
    a, b, query = pair()
    a.rows(5).mark(origin(1))
    with caplog.at_level(logging.WARNING, LOG_NAME):
        for _ in range(3):
            assert query.ask() is None
            query.clock.advance(31)
        b.rows(5).mark(origin(1), exact=False)
        for _ in range(3):
            assert query.ask() is None
            query.clock.advance(31)
    first, second = [record.getMessage() for record in caplog.records]
    assert "b-marks has no mark" in first
    assert (
        "b-marks is at checkpoint 1 with the barriers {'query-b': 1, 's/1': 1}, where this query can't stop: "
        "the checkpoint has rows after these barriers" in second
    )


def test_how_long_marks_have_waited_is_recorded() -> None:
    a, b, query = pair()
    a.rows(1).mark(origin(1))
    assert query.ask() is None
    query.clock.advance(7)
    b.rows(1).mark(origin(1))
    query.go_on()
    assert query.start["cut"]["waited"] == {"a-marks": 7000}
    assert query.ask() is None, "what informs people makes no micro-batch"


def test_who_waits_for_whom_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    a, b, query = pair()
    a.rows(1).mark(origin(1))
    b.rows(1).mark(origin(1))
    query.go_on()
    a.rows(1).mark(origin(2))
    with caplog.at_level(logging.WARNING, LOG_NAME):
        for _ in range(4):
            if query.ask() is not None:
                assert query.go_on() == [], "an empty checkpoint of a quiet query"
            query.clock.advance(31)
    said = (
        "barrier-kafka: rows are available, but none has been read for 62 s, because the query waits for newer marks in its "
        "barrier topics: a-marks is at checkpoint 2 "
        "with the barriers {'query-a': 2, 's/1': 2}, b-marks is at checkpoint 1 with the barriers {'query-b': 1, 's/1': 1}"
    )
    assert [record.getMessage() for record in caplog.records] == [said]


def test_partitions_that_came_later_belong_to_the_marks_that_have_them() -> None:
    a, query = single()
    a.rows(2).mark()
    query.go_on()
    a.brokers.topics["a"][1] = Log(0, 4)
    assert query.ask() is None
    a.rows(1).mark()
    assert query.go_on() == [("a-0", 2, 3), ("a-1", 0, 4)]


def test_a_mark_of_a_partition_that_is_not_found_yet_is_not_reached() -> None:
    a, query = single()
    a.rows(2).mark(ends={0: 2, 1: 3})
    assert query.go_on() == [("a-0", 0, 2)]
    assert cut(query) == ({}, False)


# -- where a query begins and ends -----------------------------------------------------------------------------------


def test_latest_is_the_end_of_whole_checkpoints() -> None:
    brokers = FakeBrokers({})
    a, b = Upstream(brokers, "a"), Upstream(brokers, "b")
    a.rows(3).mark(origin(1)).rows(2).mark(origin(2)).rows(9)
    b.rows(1).mark(origin(1)).rows(4)
    given = {"subscribe": "a,b", "alignOn": "a-marks,b-marks", "startingOffsets": "latest"}
    query = Query(brokers, FakeReaders(a, b), **given)
    assert query.start["topics"] == {"a": {"0": 3}, "b": {"0": 1}}
    assert cut(query) == ({"a": 1, "b": 1}, True)
    b.mark(origin(2))
    assert query.go_on() == [("a-0", 3, 5), ("b-0", 1, 5)]


def test_latest_is_found_among_many_marks() -> None:
    a = Upstream(FakeBrokers({}), "a")
    for number in range(500):
        a.rows(1).mark(exact=number == 3)
    query = Query(a.brokers, FakeReaders(a), subscribe="a", alignOn="a-marks", startingOffsets="latest")
    assert query.start["topics"] == {"a": {"0": 4}}


def test_latest_begins_behind_what_a_reader_from_the_begin_would_refuse() -> None:
    a = Upstream(FakeBrokers({}), "a")
    a.rows(3).mark().rows(3).mark(restarted=True).rows(1).mark(checkpoint=9, after=8).rows(2)
    query = Query(a.brokers, FakeReaders(a), subscribe="a", alignOn="a-marks", startingOffsets="latest")
    assert query.start["topics"] == {"a": {"0": 7}}
    a.mark()
    assert query.go_on() == [("a-0", 7, 9)]


def test_without_a_mark_latest_is_where_the_topics_end() -> None:
    a = Upstream(FakeBrokers({}), "a").rows(5)
    query = Query(a.brokers, FakeReaders(a), subscribe="a", alignOn="a-marks", startingOffsets="latest")
    assert query.start["topics"] == {"a": {"0": 5}}
    a.rows(2).mark()
    assert query.go_on() == [("a-0", 5, 7)]


def test_marks_before_the_first_row_are_passed_over() -> None:
    a = Upstream(FakeBrokers({}), "a")
    a.rows(3).mark().rows(3).mark(restarted=True).rows(3).mark()
    query = Query(a.brokers, FakeReaders(a), subscribe="a", alignOn="a-marks", startingOffsets='{"a": {"0": 7}}')
    assert query.go_on() == [("a-0", 7, 9)]
    assert cut(query) == ({"a": 3}, True)


def test_available_now_ends_at_the_newest_cut_that_it_found() -> None:
    a, b, query = pair()
    for number in (1, 2):
        a.rows(1).mark(origin(number))
        b.rows(1).mark(origin(number))
    a.rows(1).mark(origin(3))
    query.reader.prepareForTriggerAvailableNow()
    query.go_on()
    assert query.start["barrier"]["kind"] == "checkpoint"
    b.rows(1).mark(origin(3))
    query.go_on()
    assert (query.start["barrier"]["kind"], cut(query)) == ("final", ({"a": 2, "b": 2}, True))
    assert query.ask() is None


def test_available_now_without_a_cut_reads_nothing() -> None:
    a, _, query = pair()
    a.rows(1).mark(origin(1))
    query.reader.prepareForTriggerAvailableNow()
    assert query.ask() is None


def test_a_mark_that_came_behind_the_target_is_the_next_run_s() -> None:
    """Else the run would read a part of its cut, and end with micro-batches that no checkpoint closes."""
    a, query = single()
    a.rows(3).mark().rows(2)
    query.reader.prepareForTriggerAvailableNow()
    a.rows(3).mark()
    assert query.go_on() == [("a-0", 0, 3)]
    assert (query.start["barrier"]["kind"], cut(query)) == ("final", ({"a": 1}, True))
    assert query.ask() is None
    query.run().reader.prepareForTriggerAvailableNow()
    assert query.go_on() == [("a-0", 3, 8)]


def test_once_leaves_out_a_mark_that_comes_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    a, query = single()
    a.rows(3).mark().rows(1)
    aim = Alignment.aim

    def late(*given: Any, **more: Any) -> Any:
        a.rows(4).mark()
        return aim(*given, **more)

    monkeypatch.setattr(Alignment, "aim", late)
    assert query.go_on(ReadAllAvailable()) == [("a-0", 0, 3)]
    assert (query.start["barrier"]["kind"], cut(query)) == ("final", ({"a": 1}, True))


def test_a_mark_of_a_partition_that_the_brokers_do_not_show_yet_is_not_the_newest() -> None:
    a = Upstream(FakeBrokers({}), "a")
    a.rows(2).mark().rows(2).mark(ends={0: 4, 1: 3})
    query = Query(a.brokers, FakeReaders(a), subscribe="a", alignOn="a-marks", startingOffsets="latest")
    assert query.start["topics"] == {"a": {"0": 2}}
    a.brokers.topics["a"][1] = Log(0, 3)
    assert query.go_on() == [("a-0", 2, 4), ("a-1", 0, 3)]


def test_once_reads_to_the_newest_cut_in_one_micro_batch() -> None:
    a, b, query = pair()
    for number in (1, 2, 3):
        a.rows(1).mark(origin(number))
    b.rows(1).mark(origin(1)).rows(1).mark(origin(2)).rows(1)
    assert query.go_on(ReadAllAvailable()) == [("a-0", 0, 2), ("b-0", 0, 2)]
    assert (query.start["barrier"]["kind"], cut(query)) == ("final", ({"a": 2, "b": 2}, True))


# -- at-least-once ---------------------------------------------------------------------------------------------------


def test_tracked_barriers_hold_nothing_back_and_are_complete_when_all_have_passed_them() -> None:
    a, b, query = pair(alignment="at-least-once")
    a.rows(3).mark(origin(1)).rows(2)
    b.rows(2)
    assert query.ask() is None, "b has no mark: whose rows these are is not known"
    b.mark(origin(1)).rows(1)
    assert query.go_on() == [("a-0", 0, 5), ("b-0", 0, 3)]
    assert cut(query) == ({"a": 1, "b": 1}, False)
    a.mark(origin(2))
    assert query.ask() is None
    b.mark(origin(2))
    assert query.go_on() == [], "the barrier is complete, and its checkpoint says so"
    assert cut(query) == ({"a": 2, "b": 2}, True)


def test_a_barrier_is_not_complete_before_all_of_its_partitions_are_found() -> None:
    a, query = single(alignment="at-least-once")
    a.rows(2).mark(ends={0: 2, 1: 3})
    assert query.go_on() == [("a-0", 0, 2)]
    assert cut(query) == ({}, False)
    a.brokers.topics["a"][1] = Log(0, 3)
    assert query.go_on() == [("a-1", 0, 3)]
    assert cut(query) == ({"a": 1}, True)


def test_a_query_that_was_past_barriers_is_aligned_at_the_next_cut_behind_its_rows() -> None:
    a, b, query = pair(alignment="at-least-once")
    a.rows(3).mark(origin(1)).rows(2)
    b.rows(2).mark(origin(1)).rows(1)
    query.go_on()
    a.rows(1).mark(origin(2)).rows(1).mark(origin(3))
    b.mark(origin(2)).rows(4).mark(origin(3))
    query.run(alignment="exactly-once")
    assert query.go_on() == [("a-0", 5, 6)]
    assert cut(query) == ({"a": 2, "b": 2}, True)


@pytest.mark.parametrize("limit", [None, ReadAllAvailable()], ids=["always", "once"])
def test_a_barrier_that_one_channel_is_past_is_no_stop(limit: ReadAllAvailable | None) -> None:
    """A checkpoint there would hold rows that are behind the barrier."""
    a, b, query = pair(alignment="at-least-once")
    a.rows(3).mark(origin(1)).rows(2).mark(origin(2)).rows(1)
    b.rows(2).mark(origin(1)).rows(1)
    assert query.go_on() == [("a-0", 0, 6), ("b-0", 0, 3)]
    assert cut(query) == ({"a": 1, "b": 1}, False)
    b.mark(origin(2)).rows(4)
    assert query.run(alignment="exactly-once").ask(limit) is None
    a.rows(1).mark(origin(3))
    b.mark(origin(3))
    assert query.run().go_on(limit) == [("a-0", 6, 7), ("b-0", 3, 7)]
    assert cut(query) == ({"a": 3, "b": 3}, True)


# -- unaligned -------------------------------------------------------------------------------------------------------


def test_an_unaligned_checkpoint_is_taken_at_the_first_mark_and_records_what_is_late() -> None:
    a, b, query = pair(alignment="unaligned", maxOffsetsPerTrigger="10")
    a.rows(1).mark(origin(1))
    b.rows(1).mark(origin(1))
    query.go_on()
    a.rows(4).mark(origin(2)).rows(6)
    b.rows(20)
    assert query.go_on() == [("a-0", 1, 3), ("b-0", 1, 9)], "nothing behind a's mark"
    assert query.start["cut"]["late"] == {"a-marks": 2, "b-marks": None}
    assert query.start["cut"]["taken"]["s/1"] == 2
    assert (cut(query), query.start["barrier"]["number"]) == (({"a": 1, "b": 1}, False), 2)
    query.go_on()
    assert query.start["topics"]["a"]["0"] > 5, "the barrier is taken: nothing waits for b"


def with_something_late(rows: int) -> Query:
    """A query that has taken its second barrier, of which so many rows of b are late."""
    a, b, query = pair(alignment="unaligned", maxOffsetsPerTrigger="10")
    a.rows(1).mark(origin(1))
    b.rows(1).mark(origin(1))
    query.go_on()
    a.rows(4).mark(origin(2)).rows(6)
    b.rows(rows)
    query.go_on()
    b.mark(origin(2)).rows(3)
    return query


def test_what_is_late_is_read_first_by_a_new_run() -> None:
    query = with_something_late(20)
    query.run()
    late = []
    while "late" in query.start["cut"]:
        late += query.go_on()
    assert late == [("a-0", 3, 5), ("b-0", 9, 17), ("b-0", 17, 21)]
    assert cut(query) == ({"a": 2, "b": 2}, True)


def test_a_run_that_goes_on_does_not_wait_for_what_is_late() -> None:
    query = with_something_late(40)
    query.go_on()
    query.go_on()
    assert query.start["topics"]["a"]["0"] > 5


def test_a_channel_that_is_past_its_mark_in_one_partition_does_not_go_back() -> None:
    brokers = FakeBrokers({})
    a, b, c = Upstream(brokers, "a", partitions=2), Upstream(brokers, "b"), Upstream(brokers, "c")
    options = {"subscribe": "a,b,c", "alignOn": "a-marks,b-marks,c-marks", "alignment": "unaligned"}
    query = Query(brokers, FakeReaders(a, b, c), **options, maxOffsetsPerTrigger="12")
    a.rows(1, 1).mark(origin(1))
    b.rows(1).mark(origin(1))
    c.rows(1).mark(origin(1))
    query.go_on()
    a.rows(1, 60).mark(origin(2)).rows(5, 5)
    b.mark(origin(2))
    while query.start["topics"]["a"]["0"] <= 2:
        query.go_on()
    before = query.start["topics"]["a"]
    assert before["1"] < 61
    query.run()
    assert [name for name, _, _ in query.go_on()] == ["a-1"], "the rest of what is late"
    assert query.start["topics"]["a"]["0"] == before["0"]


def test_barriers_of_two_origins_that_overtake_each_other_are_taken_once() -> None:
    a, b, query = pair(alignment="unaligned")
    a.rows(1).mark({"s/1": 1, "t/1": 1})
    b.rows(1).mark({"s/1": 1, "t/1": 1})
    query.go_on()
    a.rows(1).mark({"s/1": 2, "t/1": 1})
    b.rows(1).mark({"s/1": 1, "t/1": 2})
    query.go_on()
    assert [query.ask() and query.go_on() for _ in range(3)][1:] == [None, None], "nothing new, no micro-batch"
    assert query.start["cut"]["taken"].items() >= {("s/1", 2), ("t/1", 2)}


def test_barriers_that_come_in_time_are_aligned() -> None:
    a, b, query = pair(alignment="unaligned", alignedTimeout="8s")
    a.rows(4).mark(origin(1)).rows(6)
    b.rows(3)
    assert query.ask() is None
    b.mark(origin(1))
    assert query.go_on() == [("a-0", 0, 4), ("b-0", 0, 3)]
    assert cut(query) == ({"a": 1, "b": 1}, True)
    a.mark(origin(2))
    b.rows(5)
    assert query.ask() is None
    query.clock.advance(7)
    assert query.ask() is None
    query.clock.advance(2)
    assert query.go_on() == [("a-0", 4, 10), ("b-0", 3, 8)]
    assert (cut(query)[1], query.start["cut"]["late"]) == (False, {"b-marks": None})
    b.mark(origin(2))
    assert query.go_on() == []
    assert cut(query) == ({"a": 2, "b": 2}, True)


def test_barriers_that_come_in_time_are_aligned_in_several_steps_too() -> None:
    a, b, query = pair(alignment="unaligned", alignedTimeout="8s", maxOffsetsPerTrigger="4")
    a.rows(6).mark(origin(1))
    b.rows(2).mark(origin(1))
    query.go_on()
    assert not {"taken", "late"} & query.start["cut"].keys(), "no checkpoint of the barrier is taken on the way to it"
    query.go_on()
    assert (cut(query), query.start["cut"]["taken"]["s/1"]) == (({"a": 1, "b": 1}, True), 1)
    assert "late" not in query.start["cut"]


class Ticking(FakeClock):
    """Each look at it is later than the one before."""

    def now(self) -> float:
        self.advance(0.001)
        return super().now()


def test_a_mark_waits_for_the_others_although_time_passes_while_it_is_read() -> None:
    a, b, query = pair(alignment="unaligned", alignedTimeout="8s")
    query.clock = Ticking()
    query.run()
    b.rows(3).mark(origin(1))
    a.rows(4).mark(origin(1))
    query.go_on()
    a.rows(1).mark(origin(2))
    assert query.ask() is None


# -- what is refused -------------------------------------------------------------------------------------------------


def refused(query: Query, said: str) -> None:
    with pytest.raises(StoreError, match=rf"(?s)MARKS_DISAGREE.*{said}"):
        query.ask()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "a"}, "it has marks of the topic b, which this query does not read"),
        ({"alignOn": "a-marks"}, "no mark names the topic b, which this query reads"),
    ],
)
def test_topics_and_channels_belong_together(options: dict[str, str], said: str) -> None:
    a, b, _ = pair()
    a.rows(1).mark(origin(1))
    b.rows(1).mark(origin(1))
    given = {"subscribe": "a,b", "alignOn": "a-marks,b-marks", **options}
    refused(Query(a.brokers, FakeReaders(a, b), **given), said)


def test_a_topic_with_two_writers_is_refused() -> None:
    a, b, query = pair()
    a.rows(1).mark(origin(1))
    b.mark(origin(1), ends={0: 1}, ids={"b": b.identity, "a": a.identity})
    refused(query, "it has marks of the topic a, but a-marks has marks of that topic as well")


def test_a_barrier_topic_with_marks_of_two_queries_is_refused() -> None:
    a, query = single()
    a.rows(1).mark().rows(1).mark(query="another")
    refused(query, "marks of two queries, query-a and another")


def test_a_channel_that_comes_while_a_cut_is_read_waits_for_the_cut() -> None:
    brokers = FakeBrokers({})
    a, b, d = (Upstream(brokers, name) for name in "abd")
    given = {"subscribe": "a,b", "alignOn": "a-marks,b-marks", "maxOffsetsPerTrigger": "4"}
    query = Query(brokers, FakeReaders(a, b, d), **given)
    a.rows(6).mark(origin(1))
    b.rows(3).mark(origin(1))
    d.rows(5).mark(origin(1))
    query.go_on()
    more = {"subscribe": "a,b,d", "alignOn": "a-marks,b-marks,d-marks"}
    refused(query.run(**more), "d-marks.*is still reading up to a barrier that was chosen before this topic")
    query.run(**given)
    while query.ask() is not None:
        query.go_on()
    query.run(**more)
    assert query.go_on() == [("d-0", 0, 4)]
    assert not cut(query)[1], "it does not contain what d has of the barrier"
    assert query.go_on() == [("d-0", 4, 5)]
    assert cut(query) == ({"a": 1, "b": 1, "d": 1}, True)


def test_no_empty_checkpoint_calls_a_cut_exact_that_a_new_channel_is_not_part_of() -> None:
    brokers = FakeBrokers({})
    a, d = (Upstream(brokers, name) for name in "ad")
    query = Query(brokers, FakeReaders(a, d), subscribe="a", alignOn="a-marks")
    a.rows(6).mark(origin(1))
    d.rows(5)
    query.go_on()
    query.run(subscribe="a,d", alignOn="a-marks,d-marks")
    query.clock.advance(30)
    assert query.ask() is None
    d.mark(origin(2))
    query.clock.advance(30)
    assert query.ask() is None
    a.mark(origin(2))
    assert query.go_on() == [("d-0", 0, 5)]
    assert cut(query) == ({"a": 2, "d": 1}, True)


def test_older_numbers_than_those_before_are_refused() -> None:
    a, query = single()
    for _ in range(5):
        a.rows(1).mark()
    query.go_on()
    a.rows(1).mark(checkpoint=2, after=0)
    refused(query, "the mark of checkpoint 2 of query-a comes after the mark of checkpoint 5")


def test_a_gap_is_refused() -> None:
    a, query = single()
    a.rows(1).mark()
    query.go_on()
    a.rows(1).mark(checkpoint=3, after=2)
    refused(query, "follows checkpoint 2, but the mark before it is of checkpoint 1: marks are missing")


def test_marks_that_retention_has_removed_are_missed() -> None:
    a, query = single()
    a.rows(1).mark()
    query.go_on()
    a.rows(1).mark().rows(1).mark()
    a.brokers.topics["a-marks"][0].first = 2
    refused(query.run(), "marks are missing, most likely because retention removed them")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ends": {0: 1}}, "has a lower offset in a-0 than the mark before it"),
        ({"lineage": {"s/1": 1}}, "contains only barrier 1"),
        ({"lineage": {}}, "does not name this origin"),
        ({"lineage": {"s/1": 3}, "restarted": True}, "was rewound with --allow-reemit"),
    ],
)
def test_marks_that_went_back_are_refused(changes: dict[str, Any], said: str) -> None:
    a, query = single()
    a.rows(3).mark(origin(2))
    query.go_on()
    a.rows(1).mark(**{"lineage": origin(3), **changes})
    refused(query, said)


def test_marks_of_a_topic_that_was_created_again_are_refused() -> None:
    a, query = single()
    a.rows(1).mark(ids={"a": "00000000-0000-0000-0000-000000000001"})
    refused(query, "the topic a was deleted and created again")


def test_a_barrier_topic_that_was_created_again_is_refused() -> None:
    a, query = single()
    a.rows(1).mark().rows(1).mark()
    query.go_on()
    query.go_on()
    a.records[:] = a.records[:1]
    a.brokers.topics["a-marks"][0].last = 1
    refused(query, "it ends at offset 1, but this query has read a mark at offset 1")
    refused(query.run(), "it ends at offset 1, but this query has read a mark at offset 1")
    a.records[:] = []
    a.checkpoint = 5
    a.mark().mark().mark()
    refused(query.run(), "offset 1 has the mark of checkpoint 7, but it had the mark of checkpoint 2")


def test_what_a_recovery_has_published_again_is_passed_over() -> None:
    a, query = single()
    a.rows(1).mark()
    query.go_on()
    a.rows(1).mark(checkpoint=1, after=0).mark(after=1, checkpoint=2)
    assert query.go_on() == [("a-0", 1, 2)]


def test_tasks_get_no_client() -> None:
    a, query = single()
    a.rows(1).mark()
    query.go_on()
    pickle.loads(pickle.dumps(query.reader))
