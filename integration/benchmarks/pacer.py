"""A producer that writes rows at an even pace, each with the time at which it was written.

``python -m integration.benchmarks.pacer SERVERS TOPIC RATE FIRST ROWS`` prints ``{"latest_ms": ...}`` in the end: how late the
latest row was written, by its plan. A row's value begins with 19 digits, nanoseconds after 1970, and 10 digits, its number.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from integration import ROOT

__all__ = ["lateness", "pace", "parse"]

DIGITS = 19
ROW = 100
TICK = 0.001


def main() -> int:
    """Write all rows."""
    servers, topic, *numbers = sys.argv[1:]
    rate, first, rows = map(int, numbers)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000})
    producer.list_topics(topic, timeout=30)  # or the first rows would wait for the connection
    print(json.dumps({"latest_ms": _write(producer, topic, rate, first, rows)}))
    if producer.flush(60):
        raise RuntimeError("not all rows were delivered")
    return 0


def _write(producer: Producer, topic: str, rate: int, first: int, rows: int) -> float:
    padding = b"x" * (ROW - DIGITS - 10)
    begin, written, latest = time.monotonic(), 0, 0.0
    while written < rows:
        passed = time.monotonic() - begin
        due = min(rows, int(passed * rate) + 1)
        if written < due:
            latest = max(latest, passed - written / rate)
        for number in range(first + written, first + due):
            value = b"%019d%010d" % (time.time_ns(), number) + padding
            producer.produce(topic, value=value, key=b"%08d" % (number % 100_000_000))
        written = due
        producer.poll(0)
        time.sleep(max(0.0, min(TICK, written / rate - (time.monotonic() - begin))))
    return 1000 * latest


@contextmanager
def pace(servers: str, topic: str, rate: int, first: int, rows: int) -> Iterator[subprocess.Popen[str]]:
    """Run such a producer beside a ``with`` block, which kills it at its end.

    Parameters
    ----------
    servers, topic : str
    rate : int
        Rows a second.
    first : int
        The number of the first row.
    rows : int
        After which it ends.
    """
    command = [sys.executable, "-m", "integration.benchmarks.pacer", servers, topic, *map(str, (rate, first, rows))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as producer:
        try:
            yield producer
        finally:
            producer.kill()


def lateness(producer: subprocess.Popen[str]) -> float:
    """Wait for the producer's end, and return by how many milliseconds it missed its plan at most.

    Raises
    ------
    RuntimeError
        If it could not deliver its rows.
    """
    answer, _ = producer.communicate(timeout=90)
    if producer.returncode:
        raise RuntimeError("the producer could not deliver its rows")
    return float(json.loads(answer)["latest_ms"])


def parse(value: bytes) -> tuple[int, int]:
    """Return a row's time in nanoseconds after 1970, and its number."""
    return int(value[:DIGITS]), int(value[DIGITS : DIGITS + 10])


if __name__ == "__main__":
    sys.exit(main())
