"""The journal protocol holds in every interleaving of small scenarios, and every way of breaking it is found."""

from __future__ import annotations

import pytest

from tests.journal_model import BREAKS, HARMLESS, SCENARIOS, Found, run

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
    "void-judge": "restart-prepared",
    "void-decided": "restart-prepared",
    "void-account": "restart-moved-on",
    "decide-account": "restart-prepared",
    "decide-unsettled": "restart-prepared",
    "void-forgotten": "prepared",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_keeps_the_invariants_and_has_an_exit(name: str) -> None:
    must_hold(run(name))


def test_a_part_lost_before_its_checkpoint_was_committed_is_repaired_if_it_is_of_the_micro_batch_at_work() -> None:
    ways = [[entry[0] for entry in journal[3:]] for journal in run("repair-spans").finished]
    assert ["run", "verdict", "repair", "settled"] in ways


def test_every_break_has_a_scenario_that_finds_it() -> None:
    assert set(FOUND_BY) == set(BREAKS)


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_protocol_is_found(broken: str) -> None:
    found = run(FOUND_BY[broken], broken)
    assert found.result.violation or found.stuck, str(found.result)


@pytest.mark.parametrize("changed", HARMLESS)
@pytest.mark.parametrize("name", ["drivers", "prepared", "repair", "snapshots"])
def test_what_is_not_needed_for_safety_is_known(name: str, changed: str) -> None:
    result = run(name, changed).result
    assert result.complete
    assert not result.violation, str(result)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_of_the_big_scenarios(name: str) -> None:
    must_hold(run(name, big=True))


def must_hold(found: Found) -> None:
    assert found.result.complete
    assert not found.result.violation, str(found.result)
    assert found.tried
    assert not found.stuck
    assert found.finished
