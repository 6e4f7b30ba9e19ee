"""How far a query is behind, told by its progress."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

import connector
from connector.kafka.client.topics import Partition
from connector.kafka.source.lag import LagListener, QueryLag, lag_of
from connector.kafka.source.offsets import SourceOffset, positions_to_json


def offset(*at: int) -> dict[str, Any]:
    positions = {Partition("t", number): each for number, each in enumerate(at)}
    return SourceOffset(topics=positions, start=positions).to_json()


def latest(*at: int) -> dict[str, Any]:
    return positions_to_json({Partition("t", number): each for number, each in enumerate(at)})


def progress(*sources: tuple[Any, Any]) -> dict[str, Any]:
    told = [{"startOffset": None, "endOffset": end, "latestOffset": newest} for end, newest in sources]
    return {
        "id": "q",
        "runId": "r",
        "name": "orders",
        "batchId": 4,
        "timestamp": "2026-01-01T00:00:00Z",
        "sources": told,
    }


def test_the_figures_have_the_names_and_the_form_of_sparks_own_kafka_source() -> None:
    lag = lag_of(progress((offset(10, 4, 7), latest(10, 9, 8))))
    assert lag is not None
    assert lag.sources[0].metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "5",
        "avgOffsetsBehindLatest": "2.0",
    }
    assert (lag.sources[0].total, lag.sources[0].by_partition[Partition("t", 1)]) == (6, 5)
    told = json.loads(json.dumps(lag.to_dict()))
    assert (told["batchId"], told["sources"][0]["source"]) == (4, 0)
    assert told["sources"][0]["partitions"] == {"t-0": 0, "t-1": 5, "t-2": 1}
    assert str(lag) == (
        "query orders micro-batch 4: source 0: minOffsetsBehindLatest=0 maxOffsetsBehindLatest=5 avgOffsetsBehindLatest=2.0"
    )


def test_texts_and_parsed_json_are_the_same() -> None:
    parsed = progress((offset(1), latest(3)))
    text = progress((json.dumps(offset(1)), json.dumps(latest(3))))
    objects = SimpleNamespace(**{**text, "sources": [SimpleNamespace(**each) for each in text["sources"]]})
    assert lag_of(parsed) == lag_of(text) == lag_of(objects)


@pytest.mark.parametrize(
    "source",
    [
        (None, None),
        ("12", "13"),
        ('{"t":{"0":1}}', '{"t":{"0":2}}'),  # Spark's own, which has metrics of its own
        (offset(1), None),
        ("-", latest(2)),
    ],
)
def test_sources_that_are_not_ours_or_tell_nothing_are_left_out(source: tuple[Any, Any]) -> None:
    assert lag_of(progress(source)) is None
    lag = lag_of(progress(source, (offset(1), latest(3))))
    assert lag is not None
    assert [each.number for each in lag.sources] == [1]


def test_partitions_that_come_or_go_meanwhile_do_not_count_and_no_lag_is_negative() -> None:
    lag = lag_of(progress((offset(10, 5), latest(8))))
    assert lag is not None
    assert dict(lag.sources[0].by_partition) == {Partition("t", 0): 0}
    none = lag_of(progress((offset(), latest(8))))
    assert none is not None
    assert (none.sources[0].metrics, none.sources[0].total) == ({}, 0)
    assert "no partitions" in str(none)


def test_a_listener_logs_and_tells_and_survives_its_callback(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[QueryLag] = []

    def callback(lag: QueryLag) -> None:
        heard.append(lag)
        raise RuntimeError("the gauge is gone")

    event: Any = SimpleNamespace(progress=progress((offset(1), latest(3))))
    with caplog.at_level(logging.INFO):
        LagListener(callback).onQueryProgress(event)
        LagListener().onQueryProgress(event)
    assert [lag.sources[0].total for lag in heard] == [2]
    assert caplog.text.count("maxOffsetsBehindLatest=2") == 2
    assert "RuntimeError: the gauge is gone" in caplog.text


def test_progress_that_can_not_be_read_hurts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broken = SimpleNamespace(
        id="q", sources=[SimpleNamespace(endOffset='{"source": "barrier-kafka"}', latestOffset="{}")]
    )
    event: Any = SimpleNamespace(progress=broken)
    LagListener().onQueryProgress(event)
    assert "the lag of query q could not be computed" in caplog.text


def test_the_package_ships_it() -> None:
    assert connector.LagListener is LagListener
    with pytest.raises(AttributeError, match="no attribute 'Lag'"):
        _ = connector.Lag
