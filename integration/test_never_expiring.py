"""A query that is down for longer than any timeout: a broker whose clock goes a month ahead, and two kinds of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from connector.kafka.sink.write_options import LONGEST_TIMEOUT_MS
from integration.broker import Cluster
from integration.debian import is_debian, unpacked
from integration.engine import MortalSink
from integration.engine_query import KafkaQuery
from integration.node import Broker
from transactional import faults
from transactional.entry import EntryKind

DAYS = 30
WEEK_MS = 7 * 24 * 3600 * 1000

PROPERTIES = {
    "transaction.max.timeout.ms": str(LONGEST_TIMEOUT_MS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.retention.ms": "-1",
}


class LateCluster(Cluster):
    """A cluster whose clock may go ahead."""

    days = 0

    def pass_days(self, days: int) -> None:
        """Start the brokers again, with a clock that is some days ahead."""
        self.days = days
        self.restart()

    def _broker(self, index: int) -> Broker:
        broker = super()._broker(index)
        if self.days:
            (library,) = unpacked("libfaketime").root.glob("**/libfaketime.so.1")
            # Without the last two, all timed waits of the JVM's threads end at once, and they spin.
            clock = (f"FAKETIME=+{self.days}d", "DONT_FAKE_MONOTONIC=1", "FAKETIME_FORCE_MONOTONIC_FIX=0")
            broker._entrance = ("env", f"LD_PRELOAD={library}", *clock)
        return broker


@pytest.fixture
def broker() -> Iterator[LateCluster]:
    if not is_debian():
        pytest.skip("libfaketime comes from Debian's package")
    with LateCluster(properties=PROPERTIES) as cluster:
        assert isinstance(cluster, LateCluster)
        yield cluster


@pytest.mark.matrix
@pytest.mark.parametrize("timeout", [WEEK_MS, LONGEST_TIMEOUT_MS])
def test_a_month_later_only_transactions_without_an_end_are_there(
    broker: LateCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: int
) -> None:
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))
    query = KafkaQuery(broker, tmp_path)
    options = {**query.work.options, "kafka.transaction.timeout.ms": str(timeout)}
    query.work = replace(query.work, options=options)
    try:
        query.die("decision.written")
        broker.pass_days(DAYS)
        if timeout != LONGEST_TIMEOUT_MS:
            query.wait_expired(query.known())
        query.finish()
        if timeout == LONGEST_TIMEOUT_MS:
            query.check_nothing_lost()
        else:
            assert EntryKind.VOID in query.place.kinds(), "its rows were written again"
    finally:
        query.close()
        MortalSink.bury()
