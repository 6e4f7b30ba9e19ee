"""The garbage collector in Spark's workers."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from connector.spark import collector
from connector.spark.collector import PATIENCE, collector_patient


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_it_is_patient_in_the_block_and_as_before_behind_it() -> None:
    before = gc.get_threshold()
    with collector_patient():
        assert gc.isenabled()
        assert gc.get_threshold() == (PATIENCE, *before[1:])
        with collector_patient():
            pass
        assert gc.get_threshold()[0] == PATIENCE
    assert gc.get_threshold() == before


def test_a_failure_leaves_it_as_before() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), collector_patient():
        raise KeyError
    assert gc.get_threshold() == before


def test_who_has_switched_it_off_or_is_more_patient_is_left_alone() -> None:
    before = gc.get_threshold()
    try:
        for own in (0, 10 * PATIENCE):
            gc.set_threshold(own)
            with collector_patient():
                assert gc.get_threshold()[0] == own
    finally:
        gc.set_threshold(*before)


def test_cycles_are_collected_within_a_block() -> None:
    alive = 0

    class Cycle:
        def __init__(self) -> None:
            nonlocal alive
            alive += 1
            self.own = self

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    highest = 0
    with collector_patient():
        for _ in range(2 * PATIENCE):
            Cycle()
            highest = max(highest, alive)
    assert highest < 1.5 * PATIENCE


def test_the_heap_is_frozen_when_modules_came_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_modules", 0)
    with collector_patient():
        pass
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    kept: list[list[int]] = [[] for _ in range(1000)]
    with collector_patient():
        pass
    assert gc.get_freeze_count() <= frozen
    assert len(kept) == 1000
