"""A plain reader of an output topic finds the rows in the order of the input, though transactions of a checkpoint were lost."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from connector.kafka.client.topics import Partition
from connector.kafka.sink.kafka_sink import KafkaHandle, KafkaSink
from connector.kafka.source.offsets import SourceOffset
from integration.broker import Cluster
from integration.driver_process import Place
from integration.engine import SCHEMA, Engine, MortalSink, Work
from integration.test_rewind import recovered
from integration.topic_output import TopicOutput
from transactional import faults
from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.entry import EntryKind
from transactional.errors import RetriableError, RewindRequiredError
from transactional.sink import Options

BATCHES = 4


@dataclass(frozen=True)
class OneCheckpoint(Work):
    """Micro-batch 0 closes a checkpoint, and the last one closes another over all that follow."""

    def offset(self, batch: int) -> str:
        source = Partition("input", 0)
        barrier = CheckpointBarrier(2 if batch == BATCHES - 1 else 1, BarrierKind.CHECKPOINT, 0)
        return json.dumps(SourceOffset({source: (batch + 1) * self.rows}, {source: 0}, barrier).to_json())


@pytest.mark.parametrize(
    "lost", [1, pytest.param(2, marks=pytest.mark.matrix), pytest.param(3, marks=pytest.mark.matrix)]
)
def test_a_topic_has_its_rows_in_order_after_a_micro_batch_of_a_checkpoint_was_lost(
    kafka: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Of micro-batches 1, 2, 3 one transaction ends between the decision and the commit; the others are alive."""
    topic = f"order-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic, "transactionalIdPrefix": topic}
    work = OneCheckpoint(str(tmp_path / "location"), options, batches=BATCHES, rows=3, writers=1)
    output = TopicOutput(kafka.bootstrap_servers, topic, topic)
    place = Place(Path(work.location), output)
    Engine(work).run(BATCHES - 1)

    def reach(point: str) -> None:
        if point == "decision.written":
            monkeypatch.undo()
            [part] = place.ledger().batches[lost].parts
            sink = KafkaSink(Options(options), SCHEMA)
            assert not sink.abort(cast("list[KafkaHandle]", part.handles))
            sink.close()

    monkeypatch.setattr(faults, "reach", reach)
    with pytest.raises(RetriableError, match="LOST_AFTER_DECISION"):
        Engine(work).run(error=True)
    behind = [value for value in output.rows() if value >= (lost + 1) * work.rows]
    assert behind == [], "nothing is committed over the gap"
    if lost < BATCHES - 1:
        with pytest.raises(RewindRequiredError, match="PREPARED_LOST"):
            Engine(work).run(error=True)
        recovered(place)
    Engine(work).run(error=True)
    assert list(output.rows()) == list(range(work.expected))
    assert set(output.rows().values()) == {1}
    assert output.open_transactions() == []
    assert (EntryKind.REPAIR in place.kinds()) is (lost > 1)
    MortalSink.bury()
