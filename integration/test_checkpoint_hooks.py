"""Checkpoint hooks under real Spark: their states are the decisions', and come back in the next run."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.driver_process import Faults
from integration.jobs import Job
from integration.live_query import LiveQuery
from integration.outside_hook import OUTSIDE, OutsideHook, hook_calls, hook_fails

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDENTIFIER = f"{OutsideHook.__module__}:{OutsideHook.__qualname__}"


@pytest.mark.slow
def test_a_hook_s_states_are_those_of_the_decisions_and_come_back_after_a_kill(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    """The commit worker is killed when the hook has given a state, and nothing is decided by it."""
    folder = tmp_path / "output"
    with LiveQuery(spark, tmp_path, Job("", "", sink={"checkpointHooks": OUTSIDE})) as query:
        query.start()
        query.wait_committed(0)
        faults.arm("hooks.triggered", "kill")
        query.wait_failed()
        assert faults.fired("hooks.triggered")
        newest = query.place.ledger().completed
        assert newest is not None
        lost = hook_calls(folder)[-1]
        assert lost["call"] == "trigger"
        assert lost["batches"][0] > max(newest.batches)
        query.finish()
        first, *later = [call for call in hook_calls(folder) if call["call"] == "restore"]
        assert (first["checkpoint"], first["state"]) == (None, None)
        kept = base64.b64decode(newest.hooks[IDENTIFIER]).decode()
        assert [(each["checkpoint"], each["state"]) for each in later] == [(newest.id, kept)]
        given = {call["state"]: call["batches"] for call in hook_calls(folder) if call["call"] == "trigger"}
        decided = query.place.ledger().checkpoints.values()
        states = [base64.b64decode(each.hooks[IDENTIFIER]).decode() for each in decided]
        assert [given[state] for state in states] == [list(each.batches) for each in decided]
        assert lost["state"] not in states
        assert len(set(states)) == len(states)


def test_a_hook_that_raises_stops_a_query_that_cannot_wait_for_its_next_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its source carries no barriers: whether another micro-batch comes is not known."""
    sink = {"checkpointHooks": OUTSIDE, "commitTimeoutMs": "1000"}
    folder = tmp_path / "output"
    folder.mkdir()
    hook_fails(folder).touch()
    with LiveQuery(spark, tmp_path, Job("", "", sink=sink)) as query:
        query.start()
        problem = query.wait_failed()
        assert "HOOK_FAILED" in problem
        assert "the outside system is away" in problem
        assert query.place.output.rows() == {}
        assert "decided" not in query.place.kinds()
        hook_fails(folder).unlink()
        query.finish()
