"""The reader of batch reads: ``spark.read.format("barrier-kafka")``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import SHOWN
from connector.kafka.source.alignment.alignment import Alignment
from connector.kafka.source.bounds import OffsetBound, check_partitions
from connector.kafka.source.offsets import Positions
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.planning.tasks import divide
from connector.kafka.source.read_options import ReadOptions
from connector.kafka.source.reading.fetch import KafkaInputPartition, read_ranges
from connector.kafka.source.subscription import wrong_partitions
from connector.kafka.source.topic_reader import TopicReader
from transactional.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger(__name__)


class BarrierKafkaBatchReader(DataSourceReader):
    """Reads offset ranges that are fixed when the scan is planned. Rows that arrive later are not read."""

    def __init__(
        self,
        options: ReadOptions,
        clock: Clock | None = None,
        brokers: Callable[[ClientConfig], AdminClient] = check_brokers,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._brokers = brokers  # Makes the client that asks the brokers.
        self.fail_on_data_loss = options.fail_on_data_loss

    def partitions(self) -> Sequence[InputPartition]:
        """Find the offsets to read, and divide them among tasks. Spark calls this on the driver, once per scan."""
        options = self._options
        admin = self._brokers(options.config)
        topics = TopicReader(admin, options.config, options.retries, clock=self._clock)
        there = topics.partitions(options.subscription)
        options.subscription.check(there)
        for bound in (options.starting, options.ending):
            check_partitions(bound, there)
        # The start first, then the end: if both are `latest`, the start must not lie after the end.
        start = topics.resolve(options.starting, there, strict=self.fail_on_data_loss)
        if options.align is not None:
            newest = Alignment(options, options.align, self._clock).newest(admin, topics.ids, topics.latest(there))
            whole = newest[0] if newest is not None else {}
            end: Positions = {partition: max(start[partition], whole.get(partition, 0)) for partition in there}
        else:
            end = self._readable_end(topics, topics.resolve(options.ending, there, strict=self.fail_on_data_loss))
        ranges = [part for part in self._ranges(start, end) if len(part)]
        limits = options.tasks.with_slots(options.slots, sum(map(len, ranges)))
        return [KafkaInputPartition(task, topics.ids) for task in divide(ranges, limits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows. Spark calls this on an executor, once per task.

        If a scan has nothing to read, Spark passes a partition of its own, which has no rows.
        """
        if not isinstance(partition, KafkaInputPartition):
            return iter(())
        return read_ranges(self._options, partition.ranges, partition.topic_ids)

    def _readable_end(self, topics: TopicReader, end: Positions) -> Positions:
        """Limit the end to offsets that can be read now. If data loss is not allowed, raise instead.

        The user's ending offsets may lie after the last row, or after an open transaction.
        """
        ending = self._options.ending
        if not isinstance(ending, OffsetBound) or ending.at == "latest":
            return end
        latest = topics.surely_latest([*end], end)
        beyond = [partition for partition in end if end[partition] > latest[partition]]
        if beyond:
            shown = ", ".join(f"{p}: {end[p]}" for p in beyond[:SHOWN])
            readable = ", ".join(f"{p}: {latest[p]}" for p in beyond[:SHOWN])
            if self.fail_on_data_loss:
                raise wrong_partitions(
                    ending.option,
                    shown,
                    f"at most the offset that can be read now ({readable}): an open transaction blocks later rows. Wait for "
                    "the transaction to end, use -1, or set failOnDataLoss=false",
                    beyond,
                )
            _log.warning(
                "barrier-kafka: %s is after the last readable offset, so the read ends at %s, not at %s",
                ending.option,
                readable,
                shown,
            )
        return {partition: min(offset, latest[partition]) for partition, offset in end.items()}

    def _ranges(self, start: Positions, end: Positions) -> list[OffsetRange]:
        back = [partition for partition in start if end[partition] < start[partition]]
        if back:
            shown = ", ".join(f"{p}: from {start[p]} to {end[p]}" for p in back[:SHOWN])
            if self.fail_on_data_loss:
                expected = f"an end at or after {self._options.starting.option}"
                raise wrong_partitions(self._options.ending.option, shown, expected, back)
            _log.warning(
                "barrier-kafka: these partitions end before they begin, so none of their rows is read: %s", shown
            )
        return [OffsetRange(p, start[p], max(start[p], end[p])) for p in sorted(start)]
