"""The Kafka sink keeps the contract of every sink, on a real broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from connector.kafka.sink.kafka_sink import KafkaSink
from integration.broker import Cluster
from integration.topic_output import TopicOutput, nothing_is_ending
from transactional.sink import Options
from transactional.testing import SinkConformance


class TestKafkaSink(SinkConformance):
    sink_type = KafkaSink
    golden_handles = Path(__file__).parent / "golden" / "2pc-kafka"
    keyed_by_data = ("topics", "written")

    @pytest.fixture
    def sink_options(self, kafka: Cluster, topic_name: str) -> Mapping[str, str]:
        kafka.create_topic(topic_name, partitions=2)
        return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic_name}

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        return sorted(output_of(options).rows().elements())

    def unfinished(self, options: Mapping[str, str]) -> int:
        return len(output_of(options).open_transactions())

    def quiet(self, options: Mapping[str, str]) -> bool:
        return nothing_is_ending(output_of(options).servers)


def output_of(options: Mapping[str, str]) -> TopicOutput:
    given = Options(options)
    return TopicOutput(given["kafka.bootstrap.servers"], given["topic"], given["transactionalIdPrefix"])
