"""The journal protocol holds in every interleaving of small scenarios, and every way of breaking it is found."""

from __future__ import annotations

import itertools

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
    "verdict-first": "hurt",
    "over-the-gap": "over",
    "gap-kept": "rewind-gap",
    "verdict-judge": "restart",
    "void-judge": "restart-prepared",
    "void-decided": "restart-prepared",
    "void-account": "restart-moved-on",
    "decide-account": "restart-prepared",
    "decide-unsettled": "restart-prepared",
    "abort-first": "rewind",
    "begun-ignored": "rewind",
    "begun-judge": "rewind-named",
    "done-forgets": "rewind-named",
    "done-keeps-nothing": "rewind-kept",
    "logs-last": "rewind-named",
    "logs-once": "rewind-named",
    "ids-counted": "rewind-named",
    "resume-as-begun": "rewind-late",
    "replay-settled": "rewind-again",
    "moved-ignored": "claim",
    "moved-unsettled": "claim",
    "moved-prepared": "claim-rewound",
    "claim-judge": "claim",
    "opened-first": "claim",
    "moved-first": "claim-disposed",
    "no-first-entry": "claim",
    "starts-between": "claim",
    "second-restore": "claim-late",
    "numbers-again": "claim",
    "put-back-unseen": "put-back",
    "stamps-unseen": "put-back",
    "unmarked-judged": "put-back",
    "guarded-twice": "put-back-restart",
    "overtaken-kept": "put-back-restart",
    "taken-at-once": "put-back",
    "unsettled-unknown": "put-back",
    "store-unasked": "store-back",
    "commit-compares-not": "store-back",
    "note-apart": "store-back",
    "void-forgotten": "prepared",
    "mark-none": "marks",
    "mark-first": "marks",
    "mark-after": "marks",
    "mark-unconfirmed": "marks",
    "mark-hidden": "marks",
    "stop-judge": "stop",
    "stop-forever": "stop",
}

LIVING = ("rewind-living", "rewind-named-living", "claim-living")
"""Spark that was not stopped may leave logs after a rewind that somebody has to put right."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_keeps_the_invariants_and_has_an_exit(name: str) -> None:
    found = run(name)
    must_hold(found)
    assert bool(found.by_hand) == (name in LIVING)


def test_a_part_lost_before_its_checkpoint_was_committed_is_repaired_if_it_is_of_the_micro_batch_at_work() -> None:
    ways = [[entry[0] for entry in journal[3:]] for journal in run("repair-spans").finished]
    assert ["run", "verdict", "verdict", "repair", "settled"] in ways  # what is lost; what was committed beside it


def test_every_break_has_a_scenario_that_finds_it() -> None:
    assert set(FOUND_BY) == set(BREAKS)


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_protocol_is_found(broken: str) -> None:
    found = run(FOUND_BY[broken], broken)
    assert found.result.violation or found.stuck, str(found.result)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        *itertools.product(["drivers", "prepared", "repair", "snapshots"], sorted({*HARMLESS} - {"plan-looks-not"})),
        *itertools.product(["rewind", "rewind-kept", "rewind-named"], ["plan-looks-not"]),
    ],
)
def test_what_is_not_needed_for_safety_is_known(name: str, changed: str) -> None:
    result = run(name, changed).result
    assert result.complete
    assert not result.violation, str(result)


def test_a_rewind_keeps_a_part_committed_checkpoint_and_only_its_lost_part_is_written_again() -> None:
    ways = [[entry[0] for entry in journal[3:]] for journal in run("rewind-kept").finished]
    assert ["begun", "verdict", "done", "run", "mark", "repair", "settled"] in ways


def test_a_rewind_that_is_killed_after_any_step_is_finished_and_the_query_goes_on() -> None:
    kinds = [[entry[0] for entry in journal] for journal in run("rewind-late").finished]
    assert any(found.count("begun") == 2 and found[-1] == "settled" for found in kinds)


def test_what_a_rewind_is_told_to_write_again_is_written_again_once() -> None:
    ways = [[entry[:2] for entry in journal[5:]] for journal in run("rewind-named").finished]
    assert any([kind for kind, _ in way].count("done") == 1 and ("decided", 1) in way for way in ways)


def test_a_run_that_was_asked_to_stop_ends_with_nothing_open_and_the_next_one_goes_on() -> None:
    ways = [[entry[0] for entry in journal] for journal in run("stop").finished]
    assert any("run" in way[way.index("stopped") :] for way in ways if "stopped" in way)


def test_a_claim_that_was_rewound_to_its_checkpoint_goes_on_at_the_new_location() -> None:
    ways = [[entry[0] for entry in journal] for journal in run("claim-rewound").finished]
    after = [way[way.index("begun") :] for way in ways if "opened" in way]
    assert any(way[:5] == ["begun", "done", "away", "restoring", "opened"] and way[-1] == "settled" for way in after)


def test_a_claim_that_is_given_up_leaves_the_origin_to_its_query() -> None:
    ways = [[entry[0] for entry in journal] for journal in run("claim").finished]
    assert any(way[-1] == "restoring" and "away" not in way and "settled" in way[5:] for way in ways)


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
