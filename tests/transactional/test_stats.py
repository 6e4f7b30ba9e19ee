"""Figures and history, told from ledgers made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.transactional.bodies import fact_of, recorded, run_body, settled
from transactional.checkpoint import CheckpointFailureReason, ClosingReason
from transactional.entry import EntryKind
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import CheckpointState, Ledger
from transactional.ledger.fold import KEPT_FAILURES
from transactional.rewind import output_ranges
from transactional.stats import CheckpointHistory, Restored, counts, figures, history, pending, restored, unsettled
from transactional.testing.clock import FakeClock

START = 1_700_000_000


class Story:
    """A journal in memory, with a clock of its own."""

    def __init__(self) -> None:
        self.clock = FakeClock(float(START))
        self.store = MemoryJournalStore()
        self.journal = Journal(self.store, self.clock)

    def add(self, kind: str, body: Mapping[str, Any], seconds: float = 1.0) -> int:
        self.clock.advance(seconds)
        return self.journal.append(fact_of(kind, body), lambda ledger: None).number

    def ledger(self) -> Ledger:
        """As another process reads it."""
        return Journal(self.store).load()


def part(partition: int = 0, rows: int = 5) -> dict[str, Any]:
    return {"partition": partition, "handle": {"n": partition}, "rows": rows, "bytes": 10, "digest": "1:0"}


def counted(**found: int) -> dict[str, int]:
    names = ("triggered", "completed", "failed", "declined", "restored", "restarts")
    return {**dict.fromkeys(names, 0), **found}


@pytest.fixture
def story() -> Story:
    found = Story()
    found.add(EntryKind.RUN, run_body(lifetime=60.0), seconds=0)
    return found


def test_an_empty_journal_has_figures() -> None:
    found = json.loads(json.dumps(figures(Ledger(), now=0.0)))
    assert found["counts"] == counted()
    assert [found[key] for key in ("completed", "run", "rewinding", "moved", "restored")] == [None] * 5
    assert (found["pending"]["oldest_age"], found["accounted"], found["unsettled"]) == (None, -1, [])
    assert history(Ledger()) == []


def test_a_checkpoint_tells_its_times_and_what_it_is_made_of(story: Story) -> None:
    story.add(EntryKind.PREPARED, recorded(0, [part(0), part(1)]))
    barrier = (START + 1) * 1000
    body = recorded(
        1, [part()], covers=[0], reason="BARRIER", barrier=barrier, began=barrier + 700, hooks={"h": "AA=="}
    )
    decided = story.add(EntryKind.DECIDED, body)
    (open_yet,) = history(story.ledger())
    assert (open_yet.status, open_yet.committed, open_yet.committing_ms) == (CheckpointState.DECIDED, None, None)
    story.add(EntryKind.SETTLED, settled(decided, **{"orders-0": 7}), seconds=0.25)
    assert history(story.ledger()) == [
        CheckpointHistory(
            id=decided,
            status=CheckpointState.SETTLED,
            batches=[0, 1],
            reason="BARRIER",
            sentence=ClosingReason.BARRIER.value,
            barrier=barrier,
            prepared=barrier + 700,
            decided=(START + 2) * 1000,
            committed=(START + 2) * 1000 + 250,
            preparing_ms=700,
            deciding_ms=300,
            committing_ms=250,
            rows=15,
            bytes=30,
            handles=3,
            output={"orders-0": 7},
            hooks=["h"],
        )
    ]
    found = json.loads(json.dumps(history(story.ledger())[0].to_json()))
    assert (found["status"], found["committing_ms"]) == ("settled", 250)


def test_what_is_prepared_ages_against_the_lifetime_of_its_run(story: Story) -> None:
    story.add(EntryKind.PREPARED, recorded(0, [part(0), part(1)]))
    story.add(EntryKind.RUN, run_body(lifetime=900.0, driver="e"), seconds=20)
    story.add(EntryKind.PREPARED, recorded(1, [part()], run=3), seconds=20)
    found = pending(story.ledger(), story.clock.now())
    assert (found.batches, found.rows, found.bytes, found.handles) == ([0, 1], 15, 30, 3)
    assert (found.oldest_age, found.lifetime, found.overdue) == (40.0, 60.0, False)
    assert pending(story.ledger(), story.clock.now() + 20).overdue


def test_a_decision_that_is_not_settled_ages_too(story: Story) -> None:
    decided = story.add(EntryKind.DECIDED, recorded(0, [part(0), part(1), part(2)], covers=[]))
    verdicts = [
        {"batch": 0, "partition": 1, "handle": 0, "verdict": "committed"},
        {"batch": 0, "partition": 2, "handle": 0, "verdict": "lost"},
    ]
    story.add(EntryKind.VERDICT, {"checkpoint": decided, "run": 1, "parts": verdicts})
    found = pending(story.ledger(), story.clock.now() + 9)
    (decision,) = unsettled(story.ledger())
    assert (decision.checkpoint, decision.open, decision.committed, decision.lost) == (decided, 1, 1, 1)
    assert (found.batches, found.oldest_age) == ([], 10.0)


def test_failures_have_their_sentences_and_stand_in_the_order_of_the_journal(story: Story) -> None:
    story.add(EntryKind.ABORTED, {"run": 1, "batch": 0})
    story.add(EntryKind.RUN, run_body())
    story.add(EntryKind.PREPARED, recorded(0, [part()], run=3))
    declined = {"run": 3, "batch": 0, "reason": "HOOK_FAILED", "detail": "[HOOK_FAILED] it is asleep"}
    story.add(EntryKind.DECLINED, declined)
    ledger = story.ledger()
    assert len(ledger.declined) == 1
    assert [each.subsumed_by for each in history(ledger)] == [None, None]
    taken = story.add(EntryKind.DECIDED, recorded(1, [part()], covers=[0], run=3))
    story.add(EntryKind.SETTLED, settled(taken, run=3))
    story.add(EntryKind.DECIDED, recorded(2, [part()], covers=[], run=3))
    story.add(EntryKind.VOID, {"checkpoint": 8, "run": 3, "evidence": []})
    aborted, late, done, void = history(story.ledger())
    assert [each.id for each in (aborted, late, done, void)] == [2, 5, 6, 9]
    assert [each.status.value for each in (aborted, late, done, void)] == ["aborted", "declined", "settled", "void"]
    assert (aborted.reason, aborted.sentence) == ("ABORTED", CheckpointFailureReason.ABORTED.value)
    assert (late.sentence, late.detail) == (CheckpointFailureReason.HOOK_FAILED.value, "[HOOK_FAILED] it is asleep")
    assert (late.subsumed_by, done.subsumes) == (6, [0])
    assert (void.reason, void.batches, void.decided, void.failed) == ("VOID", [2], None, (START + 8) * 1000)
    found = figures(story.ledger(), story.clock.now())
    assert found["counts"] == counted(triggered=4, completed=1, failed=2, declined=1)
    assert (found["voided"], found["declined"]) == ([2], 0)


def test_the_history_is_bounded_and_survives_restarts_and_snapshots(story: Story) -> None:
    story.add(EntryKind.RUN, run_body(retained=3))
    for batch in range(10):
        decided = story.add(EntryKind.DECIDED, recorded(batch, [part()], covers=[], run=2))
        story.add(EntryKind.SETTLED, settled(decided, run=2))
    for _ in range(KEPT_FAILURES + 5):
        story.add(EntryKind.ABORTED, {"run": 2, "batch": 10})
    before = history(story.ledger())
    assert [each.status.value for each in before] == ["settled"] * (3 + 1) + ["aborted"] * KEPT_FAILURES
    story.journal.fold(every=1)
    assert history(story.ledger()) == before
    assert counts(story.ledger())["failed"] == KEPT_FAILURES + 5


def test_restored_are_the_runs_that_found_a_checkpoint(story: Story) -> None:
    decided = story.add(EntryKind.DECIDED, recorded(0, [part()], covers=[]))
    story.add(EntryKind.SETTLED, settled(decided))
    run = story.add(EntryKind.RUN, run_body(driver="e"))
    story.add(EntryKind.RESTORED, {"run": run, "checkpoint": decided})
    assert restored(story.ledger()) == [Restored(run, decided)]
    found = figures(story.ledger(), story.clock.now())
    assert found["counts"]["restored"] == 1
    assert (found["run"]["token"], found["run"]["ended"], found["run"]["restored"]) == (run, None, decided)


def test_a_rewind_in_progress_is_told(story: Story) -> None:
    begun = story.add(EntryKind.REWIND_BEGUN, {"checkpoint": 7, "restoreTables": False, "process": {"pid": 1}})
    found = figures(story.ledger(), story.clock.now())
    assert (found["rewinding"]["token"], found["rewinding"]["checkpoint"]) == (begun, 7)
    assert found["rewinding"]["request"] == {"restoreTables": False, "process": {"pid": 1}}
    assert found["run"]["ended"] == "rewind begun"


def test_output_ranges_go_from_the_last_known_place_to_the_newest() -> None:
    before = [{"t-0": 4, "t-1": 2}, {"t-0": 9}, {}]
    after = [{"t-0": 12, "t-2": 1}, {"t-1": 7, "partitions": 300}]
    assert output_ranges(before, after) == {"t-0": (9, 12), "t-1": (2, 7), "t-2": (None, 1)}
    delta = [{"table": "file:/t", "version": version, "app": "a"} for version in (3, 4, 5)]
    assert output_ranges(delta[:1], delta[1:]) == {"version": (3, 5)}
    several = [
        {"audit": {"version": 3}, "topic": {"t-0": 1, "partitions": 9}},
        {"audit": {"version": 4}, "topic": {"t-0": 2}},
    ]
    assert output_ranges(several[:1], several[1:]) == {"audit.version": (3, 4), "topic.t-0": (1, 2)}
    assert output_ranges([], []) == {}
