"""OpenLineage events, as the package's own client writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport

import barrier_kafka
from connector.location.location import CheckpointLocation
from connector.operations.listener import Listening
from tests.connector.cli_place import CliPlace


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    found = CliPlace(tmp_path)
    found.run()
    return found


def test_each_checkpoint_is_an_event_with_what_was_written_and_a_run_begins_and_ends(
    place: CliPlace, tmp_path: Path
) -> None:
    log = tmp_path / "events"
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(log), append=True)))
    listener = barrier_kafka.LineageListener(str(place), client, "orders")
    listening = Listening(CheckpointLocation(str(place)), listener)
    listener.close()
    assert not log.exists(), "nothing has run"
    place.decided(0, rows=3)
    place.decided(1, rows=4)
    listening.poll()
    listener.close()
    place.run()
    place.decided(2, rows=5)
    listening.poll()
    listener.close(failed=True)
    events: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE", "START", "FAIL"]
    runs = [event["run"]["runId"] for event in events]
    assert len(set(runs[:3])) == len(set(runs[3:])) == 1
    assert runs[0] != runs[3]
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in events} == {("barrier-kafka", "orders")}
    (written,) = events[1]["outputs"]
    assert (written["namespace"], written["name"]) == ("file", str(place.output))
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 4


def test_each_of_several_sinks_is_an_output(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    options = {
        "sinks": "topic, files,table,counts,hidden,theirs",
        "topic.format": "2pc-kafka",
        "topic.kafka.bootstrap.servers": "one:9092,two:9092",
        "files.format": "2pc-delta",
        "files.path": "s3://bucket/events",
        "table.format": "2pc-postgresql",
        "table.url": "jdbc:postgresql://db:6432/shop?user=u",
        "table.dbtable": '"Orders"',
        "counts.format": "2pc-mysql",
        "counts.url": "jdbc:mariadb://db/shop?user=u",
        "counts.dbtable": "`counts`",
        "hidden.format": "2pc-postgresql",
        "hidden.dbtable": "sales.orders",
        "theirs.format": "of-another-program",
    }
    place.run(sink="2pc-multi", setup={"class": "", "options": options, "schema": {}})
    log = tmp_path / "events"
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(log), append=True)))
    listening = Listening(CheckpointLocation(str(place)), barrier_kafka.LineageListener(str(place), client, "orders"))
    place.decided(0, rows=3, output={"topic": {"orders-0": 7, "orders-1": 2}, "files": {"version": 3}})
    listening.poll()
    (event,) = map(json.loads, log.read_text().splitlines())
    assert [(written["namespace"], written["name"]) for written in event["outputs"]] == [
        ("kafka://one:9092", "orders"),
        ("mysql://db:3306", "shop.counts"),
        ("postgres://db:6432", "shop.public.Orders"),
        ("s3://bucket", "events"),
    ]
