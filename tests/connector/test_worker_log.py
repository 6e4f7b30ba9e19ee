"""The lines that a healthy query prints on the driver's standard error."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from connector.spark.worker_log import PROTOCOL, show_progress
from tests.transactional.bodies import lines
from tests.transactional.test_steps import Query
from transactional.recovery import QueryView

LINE = '{"source": "barrier-kafka", "topics": {"orders": {"0": 17}, "events": {"0": 3}}}'


class Reader(Query):
    """Its source is barrier-kafka."""

    def view(self, batch: int) -> QueryView:
        return QueryView("q", "/place", batch, self.committed, lines(LINE), lines(LINE))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Python worker of Spark's, in which nothing configures logging."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(PROTOCOL, "handlers", [])
    level = PROTOCOL.level
    yield
    PROTOCOL.setLevel(level)


@pytest.mark.usefixtures("worker")
def test_a_healthy_query_prints_a_line_for_its_run_and_one_for_each_checkpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Reader()
    for batch in range(2):
        show_progress()
        query.run(batch)
        query.committed = batch
    began, *settled = capsys.readouterr().err.splitlines()
    assert re.search(
        r"INFO transactional\S*: run 1 begins: query q at /place reads events, orders, \S+ writes as p$", began
    )
    told = [
        re.search(r"checkpoint (\d+): (\d+) rows up to micro-batch (\d) are visible, \d+ ms", line) for line in settled
    ]
    assert [found and found.groups()[1:] for found in told] == [("2", "0"), ("2", "1")]


@pytest.mark.usefixtures("worker")
def test_a_worker_whose_logging_is_configured_is_left_alone() -> None:
    """As by spark.sql.pyspark.worker.logging.enabled."""
    logging.getLogger().addHandler(logging.NullHandler())
    show_progress()
    assert PROTOCOL.handlers == []
