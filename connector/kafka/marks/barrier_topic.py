"""A barrier topic: a topic with one partition that contains a query's marks, in the order of the query's checkpoints."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.connection import backing_off
from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import Partition, TopicInfo
from connector.kafka.marks.barrier_reader import BarrierReader
from connector.kafka.marks.mark import Mark
from transactional.checkpoint import CheckpointMark
from transactional.clock import Deadline
from transactional.errors import OptionError, RetriableError, StoreError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

SETTINGS: Final[Mapping[str, str]] = {"cleanup.policy": "delete"}
"""The settings of a new barrier topic. The brokers' retention decides how long marks are kept.

The topic is not compacted. If a checkpoint has two records, readers use the first, but compaction would keep only the second.
"""

OPTION: Final = "barrierTopic"

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.002, 0.5

TAIL: Final = 64
"""The search for the newest mark begins this many offsets before the end of the topic. Offsets without a record also count."""

CREATE_SECONDS: Final = 30.0

_lock = threading.Lock()

_kept: dict[tuple[Any, ...], BarrierTopic] = {}
"""The `BarrierTopic` objects of this process, by their settings. They are reused, to save connections."""


class BarrierTopic:
    """Writes a query's marks to its barrier topic.

    Parameters
    ----------
    config : ClientConfig
    name : str
        The name of the barrier topic.
    """

    def __init__(self, config: ClientConfig, name: str) -> None:
        self._config, self.name = config, name
        self._producer: Producer | None = None
        self._newest: Mark | None = None
        self._looked = False

    @classmethod
    def kept(cls, config: ClientConfig, name: str) -> BarrierTopic:
        """Return this process's `BarrierTopic` with these settings. Create it if there is none yet."""
        key = (os.getpid(), name, frozenset(config.settings.items()))
        with _lock:
            return _kept.setdefault(key, cls(config, name))

    # -- before the first row ---------------------------------------------------------------------------------------

    def ensure(self, admin: KafkaAdmin) -> TopicInfo:
        """Create the topic if it does not exist. Check that it has one partition, which this user may read and write."""

        def look() -> TopicInfo | None:
            return admin.topics([self.name]).get(self.name)

        found = look()
        if found is None:
            self._create()
            found = admin.until(look, f"the new topic {self.name}")
        if len(found.leaders) != 1:
            raise self._invalid(f"a topic with one partition, but {self.name} has {len(found.leaders)}")
        found.check_rights(self.name, "WRITE", "READ")
        return found

    def _create(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        client = check_brokers(self._config)
        try:
            client.create_topics([NewTopic(self.name, 1, config=dict(SETTINGS))])[self.name].result(CREATE_SECONDS)
        except KafkaException as problem:
            if problem.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return
            command = (
                f"kafka-topics.sh --bootstrap-server {self._config.bootstrap_servers} --create --topic {self.name} "
                f"--partitions 1 --config cleanup.policy=delete"
            )
            reason = self._config.scrub(problem.args[0].str())
            raise self._invalid(
                f"an existing topic, because this user is not allowed to create it ({reason}). An administrator "
                f"can create it: {command}"
            ) from None

    def _invalid(self, expectation: str) -> OptionError:
        owner = self._config.name
        return OptionError("INVALID_OPTION", owner=owner, option=OPTION, value=self.name, expectation=expectation)

    # -- marks ------------------------------------------------------------------------------------------------------

    def publish(
        self,
        mark: CheckpointMark,
        topic: str,
        rows: Mapping[Partition, int],
        admin: KafkaAdmin,
        confirm: Callable[[], None],
        deadline: Deadline,
    ) -> None:
        """Write a checkpoint's mark. Call this when readers can see the checkpoint's rows, before any later row is written.

        Parameters
        ----------
        mark : CheckpointMark
        topic : str
            The query's output topic.
        rows : Mapping[Partition, int]
            For each partition, an offset that is after all rows of the checkpoint.
        admin : KafkaAdmin
        confirm : Callable[[], None]
            Raises if another process has taken over the query. Called before the mark is written.
        deadline : Deadline
            When to stop waiting for the brokers.
        """
        newest = self._newest_known(mark, confirm)
        ids, ends = stable_ends(topic, admin, newest, deadline, rows)
        confirm()
        self._write(Mark(mark, ends, ids), deadline)

    def _newest_known(self, mark: CheckpointMark, confirm: Callable[[], None]) -> Mark | None:
        if not self._looked:
            self._newest = newest_mark(self._config.for_librdkafka(), self.name)
            self._looked = True
        if self._newest is None:
            return None
        there = self._newest.checkpoint
        if there.query != mark.query:
            raise StoreError("BARRIER_TOPIC_TAKEN", topic=self.name, other=there.query, query=mark.query)
        if there.checkpoint > mark.checkpoint or (there.checkpoint == mark.checkpoint and there.after != mark.after):
            confirm()  # raises if the query continues in another process, and this process is outdated
            raise StoreError(
                "BARRIER_TOPIC_AHEAD", topic=self.name, newest=there.checkpoint, checkpoint=mark.checkpoint
            )
        return self._newest

    def _write(self, mark: Mark, deadline: Deadline) -> None:
        from confluent_kafka import Producer

        if self._producer is None:
            # A duplicate mark does no harm. An idempotent producer would wait half a second for its producer id.
            more = {"enable.idempotence": False, "acks": "all", "linger.ms": 0, "log_level": 0}
            settings = {**self._config.for_librdkafka(), **more}
            self._producer = Producer(settings)
        problems: list[KafkaError] = []

        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                problems.append(error)

        self._producer.produce(self.name, mark.to_json(), mark.key, 0, on_delivery=report)
        waiting = self._producer.flush(max(deadline.left(), 1.0))
        if waiting or problems:
            self._producer, self._looked = None, False  # the next call reads again whether it was written
            if problems and problems[0].name() == "TOPIC_AUTHORIZATION_FAILED":
                raise missing_right("WRITE", f"topic {self.name}")
            reason = self._config.scrub(problems[0].str()) if problems else "no answer"
            raise RetriableError(
                "KAFKA_TIMEOUT",
                reason=f"the mark of checkpoint {mark.checkpoint.checkpoint} was not written to {self.name}: {reason}",
            )
        self._newest = mark


def stable_ends(
    topic: str,
    admin: KafkaAdmin,
    newest: Mark | None,
    deadline: Deadline,
    rows: Mapping[Partition, int] | None = None,
) -> tuple[dict[str, str], dict[Partition, int]]:
    """Return a topic's id, and the last stable offset of each partition.

    Wait until each offset is at least the partition's offset in `newest`, and greater than the partition's offset in `rows`.
    """

    def look() -> tuple[dict[str, str], dict[Partition, int]] | None:
        info = admin.topics([topic]).get(topic)
        if info is None:
            return None
        try:
            found = admin.end_offsets([Partition(topic, n) for n in info.leaders], {topic: info}, committed=True)
        except RetriableError:
            return None
        ends = {partition: offset for partition, (offset, _) in found.items()}
        before = newest.ends if newest is not None and newest.ids.get(topic) == info.topic_id else {}
        if any(ends.get(partition, 0) < end for partition, end in before.items()):
            return None
        if any(ends.get(partition, 0) <= offset for partition, offset in (rows or {}).items()):
            return None
        return {topic: info.topic_id}, ends

    stable = backing_off(deadline, admin.clock, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)(look)
    if stable is None:
        reason = (
            f"the end offsets of {topic} are unknown. Either the brokers do not report them, or report lower offsets than the "
            "newest mark has. Or another writer's open transaction hides rows of the checkpoint from readers"
        )
        raise RetriableError("KAFKA_TIMEOUT", reason=reason)
    return stable


def newest_mark(settings: Mapping[str, Any], topic: str, *, exact: bool = False) -> Mark | None:
    """Return the newest checkpoint's mark in a barrier topic; None if there is none.

    If `exact`, skip marks at which a query that follows the topic can't stop.
    """
    reader = BarrierReader({**settings, "group.id": "barrier-kafka-marks"}, topic)
    try:
        first, end = reader.range()
        length = TAIL
        while end > first:
            begin = max(first, end - length)
            reader.begin(begin)
            found = [mark for mark in _marks_to(reader, topic, end) if mark.checkpoint.exact or not exact]
            if found or begin == first:
                return max(found, key=lambda mark: mark.checkpoint.checkpoint, default=None)
            length *= 16
        return None
    finally:
        reader.close()


def _marks_to(reader: BarrierReader, topic: str, end: int) -> Iterator[Mark]:
    while records := reader.read_to(end, TAIL):
        for offset, value in records:
            yield Mark.from_json(value, f"{topic}, offset {offset}")
