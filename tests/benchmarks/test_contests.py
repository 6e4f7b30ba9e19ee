"""All contestants of a contest move the same rows."""

from __future__ import annotations

import json

import pytest

from integration.benchmarks.contests import CONTESTS, FLINK, TUNED_PRODUCER, Contestant
from integration.benchmarks.queries import Query, rows_per_second


def asked(contestant: Contestant) -> Query:
    """Return what an engine gets: the query has travelled as JSON."""
    return Query(**json.loads(json.dumps(contestant.query("brokers", "input", "output", "/checkpoint", 20, 5))))


@pytest.mark.parametrize("what", CONTESTS)
def test_contestants_differ_in_formats_and_in_what_their_names_say(what: str) -> None:
    queries = [asked(each) for each in CONTESTS[what] if not (each.is_flink or each.is_floor)]
    read = [{**query.read} for query in queries]
    write = [{key: text for key, text in query.write.items() if key not in TUNED_PRODUCER} for query in queries]
    for options in read:
        options.pop("columns", None)
    assert all(options == read[0] for options in read)
    assert all(options == write[0] for options in write)
    assert len({tuple(query.columns) for query in queries}) == 1


def test_flink_is_asked_for_the_same_topics() -> None:
    query = FLINK.query("brokers", "input", "output", "/checkpoint", 20, 5)
    assert query == {"servers": "brokers", "source": "input", "target": "output"}


def test_a_contest_names_each_contestant_once() -> None:
    assert all(len({each.name for each in contest}) == len(contest) for contest in CONTESTS.values())


def test_a_rate_counts_the_time_of_triggers_without_rows() -> None:
    triggers = [
        {"numInputRows": rows, "durationMs": {"triggerExecution": taken}}
        for rows, taken in ((900, 400), (100, 50), (0, 50))
    ]
    assert rows_per_second(triggers) == 2000
