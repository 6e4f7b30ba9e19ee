"""The Kafka sink keeps the contract of every sink, on a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from connector.kafka.sink.kafka_sink import KafkaSink
from integration.broker import Cluster
from integration.every_line import EveryLine
from integration.topic_output import TopicOutput, nothing_is_ending
from transactional.sink import Options
from transactional.testing import SinkConformance, StoreMatrix
from transactional.testing.store_matrix import MOMENTS

QUICK = [("ahead", "run begins"), ("replaced", "run begins")]
"""The cells that `make test` has; the others are in the matrix."""

CELLS = [
    pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.matrix, id="-".join(cell))
    for cell in itertools.product(("gone", "replaced", "ahead"), MOMENTS)
    if cell != ("ahead", "commit")  # the prepared transaction has taken the id that was the evidence
]
"""A topic can't be put back from a copy, so there is no older one, and its log is the brokers' own."""


class TestKafkaSink(EveryLine, StoreMatrix, SinkConformance):
    comesBack = False
    cannot = (("ahead", "driver lives"), ("ahead", "batch write"), ("older copy", "another prefix"))
    sink_type = KafkaSink
    golden_handles = Path(__file__).parent / "golden" / "2pc-kafka"
    keyed_by_data = ("topics", "written")
    ordered = False  # the rows of a task are in two partitions
    deaths = 4  # at every line: in the matrix

    @pytest.fixture
    def sink_options(self, kafka: Cluster, topic_name: str) -> Mapping[str, str]:
        self.kafka = kafka
        kafka.create_topic(topic_name, partitions=2)
        return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic_name}

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        return sorted(output_of(options).rows().elements())

    def takeCopy(self, options: Mapping[str, str]) -> None:
        """Nothing: what is deleted is not put back."""

    def putBack(self, options: Mapping[str, str], copy: None) -> None:
        """Nothing: the location is put back, the topic was not touched."""

    def remove(self, options: Mapping[str, str]) -> None:
        self.kafka.delete_topic(options["topic"])

    def replace(self, options: Mapping[str, str]) -> None:
        self.remove(options)
        self.kafka.create_topic(options["topic"], partitions=2)

    @pytest.mark.parametrize(("damage", "moment"), CELLS)
    def test_a_store_that_is_not_the_journal_s_is_never_written_into(
        self, sink_options: Mapping[str, str], damage: str, moment: str
    ) -> None:
        """As every sink, on the real broker."""
        super().test_a_store_that_is_not_the_journal_s_is_never_written_into(sink_options, damage, moment)

    def unfinished(self, options: Mapping[str, str]) -> int:
        return len(output_of(options).open_transactions())

    def quiet(self, options: Mapping[str, str]) -> bool:
        return nothing_is_ending(output_of(options).servers)


def output_of(options: Mapping[str, str]) -> TopicOutput:
    given = Options(options)
    return TopicOutput(given["kafka.bootstrap.servers"], given["topic"], given["transactionalIdPrefix"])
