"""The journal protocol holds in every interleaving of small scenarios, and every way of breaking it is found."""

from __future__ import annotations

import pytest

from tests.journal_model import BREAKS, HARMLESS, SCENARIOS, run

FOUND_BY = {
    "rename": "drivers",
    "commit-first": "drivers",
    "abort-ignores-decision": "fail",
    "no-list": "snapshots",
    "snapshot-deletes-newest": "snapshots",
    "repair-first": "repair",
    "void-no-proof": "repair",
    "sweep-first": "drivers",
    "memory": "lone",
    "drain-writes": "prepared",
    "repair-judge": "restart",
    "verdict-judge": "restart",
    "void-forgotten": "prepared",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_keeps_the_invariants_and_has_an_exit(name: str) -> None:
    result, tried, stuck = run(name)
    assert result.complete
    assert not result.violation, str(result)
    assert tried
    assert not stuck


def test_every_break_has_a_scenario_that_finds_it() -> None:
    assert set(FOUND_BY) == set(BREAKS)


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_protocol_is_found(broken: str) -> None:
    result, _, stuck = run(FOUND_BY[broken], broken)
    assert result.violation or stuck, str(result)


@pytest.mark.parametrize("changed", HARMLESS)
@pytest.mark.parametrize("name", ["drivers", "prepared", "repair", "snapshots"])
def test_what_is_not_needed_for_safety_is_known(name: str, changed: str) -> None:
    result, _, _ = run(name, changed)
    assert result.complete
    assert not result.violation, str(result)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_of_the_big_scenarios(name: str) -> None:
    result, tried, stuck = run(name, big=True)
    assert result.complete
    assert not result.violation, str(result)
    assert tried
    assert not stuck
