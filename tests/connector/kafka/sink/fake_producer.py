"""A producer for tests without a broker: a queue that can be full, refuse rows, take part of a batch, or fail for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from transactional.testing import FakeClock

Report = Callable[[Any, Any], None]


class FakeProducer:
    """What a row writer and a sink use of `confluent_kafka.Producer`.

    Parameters
    ----------
    limit : int
        Rows that its queue holds; `flush` empties it, and a `poll` that waits.
    delivers : int, optional
        The rows that each of them delivers instead of all.
    on_delivery : Callable, optional
        Called inside `poll` and `flush` with what was refused.

    Attributes
    ----------
    takes : int or None
        Rows that the next `produce_batch` takes; the others get `refuses`, or no error at all.
    refuses : str
        Name of the error of rows that are not queued.
    rejected : list[tuple[str, bytes, int]]
        Errors of rows that were queued: name, value, partition; reported at the next `poll`.
    fails : list[str]
        What the next calls of `produce`, `poll`, `flush` and the transaction raise, in order.
    stays : int
        Rows that nothing delivers; waiting for them moves `clock`.
    """

    def __init__(self, limit: int = 100_000, on_delivery: Report | None = None, delivers: int | None = None) -> None:
        self.rows: list[tuple[str, Any]] = []
        self.calls: list[str] = []
        self.most = 0
        self.takes: int | None = None
        self.refuses = "_QUEUE_FULL"
        self.rejected: list[tuple[str, bytes, int]] = []
        self.fails: list[str] = []
        self.full = 0
        self.stays = 0
        self.closed = False
        self.clock = FakeClock()
        self.on_delivery = on_delivery
        self.settings: dict[str, Any] = {}
        self._limit, self._queued = limit, 0
        self._delivers = delivers

    def __len__(self) -> int:
        return max(self._queued, self.stays)

    def poll(self, timeout: float) -> int:
        self._fail()
        if self.stays:
            self.clock.advance(timeout)
        if timeout:  # a broker takes time
            self._queued = 0 if self._delivers is None else max(0, self._queued - self._delivers)
        rejected, self.rejected = self.rejected, []
        for name, value, partition in rejected:
            message = Message(topic="out", partition=partition, value=value)
            assert self.on_delivery is not None
            self.on_delivery(KafkaError(getattr(KafkaError, name)), message)
        return len(rejected)

    def flush(self, timeout: float) -> int:
        self.calls.append("flush")
        self.poll(timeout)
        return len(self)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]]) -> int:
        self.calls.append("produce_batch")
        taken = len(messages) if self.takes is None else self.takes
        self.takes = None
        self._take(taken)
        self.rows += [(topic, message) for message in messages[:taken]]
        if self.refuses:
            for message in messages[taken:]:
                message["_error"] = KafkaError(getattr(KafkaError, self.refuses))
        return taken

    def produce(self, topic: str, **row: Any) -> None:
        self.calls.append("produce")
        if self.full:
            self.full -= 1
            raise BufferError("Local: Queue full")
        self._fail()
        self._take(1)
        self.rows.append((topic, row))

    def purge(self, **how: Any) -> None:
        self.calls.append("purge")

    def close(self) -> None:
        self.closed = True

    def list_topics(self, topic: str, timeout: float) -> None:
        self.calls.append(f"list_topics {topic}")

    def init_transactions(self, timeout: float) -> None:
        self.calls.append("init")
        self._fail()

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def abort_transaction(self, timeout: float) -> None:
        self.calls.append("abort")
        self._fail()

    def _take(self, rows: int) -> None:
        self._queued += rows
        self.most = max(self.most, self._queued)
        assert self._queued <= self._limit

    def _fail(self) -> None:
        if self.fails and (name := self.fails.pop(0)):
            raise KafkaException(KafkaError(getattr(KafkaError, name)))
