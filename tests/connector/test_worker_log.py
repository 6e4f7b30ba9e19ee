"""The lines that a healthy query prints on the driver's standard error."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def worker() -> Iterator[None]:
    """A Python worker of Spark's, in which nothing configures logging; pytest does, before each test."""
    level = PROTOCOL.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])
        patch.setattr(PROTOCOL, "handlers", [])
        yield
    PROTOCOL.setLevel(level)


def test_a_healthy_query_prints_a_line_for_its_run_and_one_for_each_checkpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Reader()
    with worker():
        for batch in range(2):
            show_progress()
            query.run(batch)
            query.committed = batch
    began, *settled = capsys.readouterr().err.splitlines()
    assert re.search(
        r"INFO transactional\S*: run 1 begins: query q at /place reads events, orders; \S+ writes with the prefix p$",
        began,
    )
    told = [
        re.search(r"checkpoint (\d+): (\d+) rows up to micro-batch (\d) are visible, \d+ ms", line) for line in settled
    ]
    assert [found and found.groups()[1:] for found in told] == [("2", "0"), ("2", "1")]


def test_a_worker_whose_logging_is_configured_is_left_alone() -> None:
    """As by spark.sql.pyspark.worker.logging.enabled."""
    with worker():
        logging.getLogger().addHandler(logging.NullHandler())
        show_progress()
        assert PROTOCOL.handlers == []
