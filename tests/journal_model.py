"""Exhaustive search of the journal protocol: every interleaving of several drivers, each of which may stop at any step.

Run it as ``python -m tests.journal_model [--scenario NAME] [--break NAME] [--big]``.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import NamedTuple

from tests.model_engine import Result, search
from tests.model_ledger import Entry
from tests.model_marks import MARK_BREAKS, MarksModel
from tests.model_move import CLAIM, MoveModel
from tests.model_put_back import PutBackModel
from tests.model_rewind import RewindModel
from tests.model_steps import ABORTED, COMMITTED, PREPARED, Model, Scenario
from tests.model_store_back import STORE_BREAKS, StoreBackModel

__all__ = ["BREAKS", "HARMLESS", "SCENARIOS", "Found", "run"]

BREAKS = {
    "rename": "put replaces an entry instead of failing",
    "commit-first": "handles are committed before the decision is written",
    "abort-ignores-decision": "abort neither looks for a decision nor asks whose run is the newest",
    "no-list": "after a create nobody lists the journal for a snapshot",
    "snapshot-deletes-newest": "a snapshot deletes every snapshot, its own too",
    "repair-first": "a repair is committed before its handles are journalled",
    "void-no-proof": "void is journalled as soon as one handle is lost, without an answer to the others' aborts",
    "sweep-first": "planning sweeps before it claims its run",
    "memory": "planning takes its run from its process's memory",
    "drain-writes": "the replay of a prepared micro-batch writes again, and its messages are decided too",
    "repair-judge": "a repair whose number was taken is journalled without judging its parts anew",
    "verdict-first": "a verdict of a hurt transaction is journalled before it is aborted",
    "over-the-gap": "C8 goes on with the next micro-batch when a handle is lost",
    "gap-kept": "what lives behind a lost micro-batch of a checkpoint is not given up",
    "verdict-judge": "a verdict whose number was taken is journalled without judging that it meets the same handles",
    "void-judge": "a void whose number was taken is journalled without judging that it meets the same prepared micro-batch",
    "void-decided": "a void whose number was taken is journalled though the micro-batch was decided meanwhile",
    "void-account": "a void whose number was taken is journalled though a later micro-batch was prepared meanwhile",
    "decide-account": "C7 does not judge that all micro-batches before N are in the journal still",
    "decide-unsettled": "C7 does not judge that no decision is unsettled still",
    "abort-first": "a rewind aborts what is prepared before it journals that it was begun",
    "begun-ignored": "a driver does not mind that a rewind was begun",
    "begun-judge": "a rewind whose number was taken is begun without judging that the journal has not grown",
    "done-forgets": "`rewind done` leaves entries about later micro-batches as they were",
    "done-keeps-nothing": "`rewind done` does not name the part-committed checkpoint whose micro-batches run again",
    "logs-last": "`rewind done` is journalled before Spark's logs go back",
    "logs-once": "a rewind does not look at Spark's logs a second time",
    "ids-counted": "the id of a checkpoint is how many the ledger holds, not its entry's number",
    "resume-as-begun": "who finishes a rewind does not journal that it was begun anew, so that a `rewind done` of the process "
    "that was killed can take place under it",
    "replay-settled": "a rewind in the middle of a replay, which settles the checkpoint that runs again, takes Spark's logs to "
    "the end of it, where they have not come",
    "stop-judge": "`stopped` whose number was taken is journalled without judging that nothing is left open still",
    "stop-forever": "a stop that was asked of a run is minded by the runs after it, too",
    "moved-ignored": "a driver at the origin does not mind that the query was moved",
    "moved-unsettled": "`moved` is journalled where a later checkpoint is decided and not settled",
    "moved-prepared": "`moved` is journalled where something is prepared and nobody settles it",
    "claim-judge": "`moved` is journalled without judging that the origin is still at the savepoint's checkpoint",
    "opened-first": "the new location is opened before the origin is closed",
    "moved-first": "the origin is closed before the files are copied",
    "no-first-entry": "the files are copied before the new journal has an entry",
    "starts-between": "a query that starts at the new location does not mind that the restore is unfinished",
    "second-restore": "a restore to a location that was restored before copies the files and opens it again",
    "numbers-again": "the new location's numbers are not above the origin's: the old driver's sweep takes them for its own",
    "put-back-unseen": "a claim does not ask the store for what the journal does not know",
    "stamps-unseen": "a claim compares the epoch of the prefix, and not what was committed",
    "unmarked-judged": "a claim compares the epoch though a run has not recorded one: it may have died before",
    "guarded-twice": "a planning takes a run of its driver that has no mark, and guards the prefix for it once more",
    "overtaken-kept": "a planning keeps its driver's run though an earlier run has recorded a mark since",
    "taken-at-once": "a planning that finds another epoch stops, without a look at whether the journal has grown",
    "unsettled-unknown": "a claim forgets that what was decided may have been committed",
    "void-forgotten": "the ledger forgets that a prepared or decided micro-batch was voided, and Spark may have its commits/N",
}

BREAKS |= MARK_BREAKS | STORE_BREAKS

SEEN_BY_EXITS = (
    *("void-forgotten", "done-forgets", "logs-last", "logs-once", "resume-as-begun", "replay-settled"),
    *("stop-forever", "moved-first"),
    "guarded-twice",
)
"""Breaks after which no invariant is broken, but a query that starts may not go on."""

# These break nothing that the search can see. (Nor does C8 as it is, which does not read the journal again after C7.)
HARMLESS = {
    "no-look": "C5 is left out: what is decided is lost more often, and voided or repaired",
    "plan-looks-not": "a planning does not look whether a rewind was begun: its `mark` is judged",
    "snapshot-deletes-own": "a snapshot deletes entries up to its own number (listings are atomic here)",
}


def repair_start(committed: int) -> Scenario:
    """One driver decided, committed the first part and died; the second was lost."""
    return Scenario(
        "BC",
        journal=(("run", "A"), ("decided", 0, ((0, 0), (1, 1)))),
        handles=((0, 0, COMMITTED), (0, 1, committed)),
    )


def spans_start() -> Scenario:
    """Two micro-batches were decided together; before anything was committed, a part of the second was lost."""
    return Scenario(
        "BC",
        closes=(False, True),
        journal=(("run", "A"), ("prepared", 0, ((0, 0), (1, 1))), ("decided", 1, ((0, 2), (1, 3)))),
        handles=((0, 0, PREPARED), (0, 1, PREPARED), (1, 0, PREPARED), (1, 1, ABORTED)),
        committed=1,
    )


def start_of(
    drivers: str, closes: tuple[bool, ...], journal: tuple[Entry, ...], *states: int, committed: int = 0
) -> Scenario:
    """Micro-batches of one part, their handles in these states; processes may outlive their query."""
    return Scenario(
        drivers,
        parts=1,
        closes=closes,
        zombie=True,
        tolerant=True,
        journal=(("run", "A"), *journal),
        handles=tuple((batch, 0, state) for batch, state in enumerate(states)),
        committed=committed,
    )


FIRST_PREPARED: Entry = ("prepared", 0, ((0, 0),))
FIRST_COMMITTED: tuple[Entry, ...] = (("decided", 0, ((0, 0),)), ("settled", 2))


def prepared_start(*closes: bool) -> Scenario:
    """One driver prepared the first micro-batch; then two plannings of one run look at it."""
    return start_of("AA", closes, (FIRST_PREPARED,), PREPARED)


def rewind_start(drivers: str, *closes: bool) -> Scenario:
    """One driver prepared the first micro-batch, and goes on with the second."""
    return start_of(drivers, closes, (FIRST_PREPARED,), PREPARED, committed=1)


def kept_start(drivers: str, *closes: bool) -> Scenario:
    """A checkpoint over two micro-batches was committed in part: the first is lost, which Spark has moved past.

    Only an older version commits the second before the first.
    """
    journal = (FIRST_PREPARED, ("decided", 1, ((0, 1),)))
    return replace(start_of(drivers, closes, journal, ABORTED, COMMITTED, committed=1), ordered=False)


def gap_start(drivers: str, *states: int) -> Scenario:
    """A checkpoint over some micro-batches was decided; these are their transactions."""
    last = len(states) - 1
    journal: tuple[Entry, ...] = tuple(("prepared", batch, ((0, batch),)) for batch in range(last))
    closes = (False,) * last + (True,)
    return start_of(drivers, closes, (*journal, ("decided", last, ((0, last),))), *states, committed=last)


def repaired_start(drivers: str, *more: bool) -> Scenario:
    """A rewind kept a checkpoint; its first micro-batch ran again, and the driver died when its repair was journalled."""
    kept = kept_start(drivers, False, True, *more)
    past = (("begun", 0, ()), ("verdict", 3, ((0, 0, "lost"), (1, 0, "committed"))), ("done", -1, 3))
    present = (("run", "B"), ("repair", 3, ((0, 0, 2),)))
    return replace(
        kept, journal=(*kept.journal, *past, *present), handles=(*kept.handles, (0, 0, PREPARED)), committed=0, sent=1
    )


def named_start(drivers: str, *closes: bool) -> Scenario:
    """Two checkpoints are committed; the rewind is told to go back to the first."""
    journal = (*FIRST_COMMITTED, ("decided", 1, ((0, 1),)), ("settled", 4))
    return replace(start_of(drivers, closes, journal, COMMITTED, COMMITTED, committed=2), expiries=0, target=2)


def claim_start(drivers: str, *closes: bool) -> Scenario:
    """The first micro-batch is committed, and saved; the second is prepared."""
    journal = (*FIRST_COMMITTED, ("prepared", 1, ((0, 1),)))
    return replace(start_of(drivers, closes, journal, COMMITTED, PREPARED, committed=2), expiries=0, saved=2)


def stopped_start(drivers: str, *closes: bool) -> Scenario:
    """The first micro-batch is committed, and saved, and the query has stopped."""
    journal = (*FIRST_COMMITTED, ("stopped", 1))
    return replace(start_of(drivers, closes, journal, COMMITTED, committed=1), expiries=0, saved=2)


SCENARIOS: dict[str, tuple[Scenario, Scenario]] = {  # in make test, and bigger
    "drivers": (Scenario("AB", expiries=1), Scenario("ABC", expiries=1)),
    "three-drivers": (Scenario("ABC", parts=1, expiries=1), Scenario("ABC", parts=1, expiries=2)),
    "prepared": (
        Scenario("AB", closes=(False, True), expiries=1),
        Scenario("ABC", parts=1, closes=(False, True), expiries=1),
    ),
    "fail": (Scenario("AB", fail=True, expiries=0), Scenario("ABC", parts=1, fail=True, expiries=1)),
    "repair": (
        replace(repair_start(ABORTED), expiries=1),
        replace(repair_start(ABORTED), drivers="BCD", expiries=1),
    ),
    "hurt": (
        replace(repair_start(PREPARED), hurts=True),
        replace(repair_start(PREPARED), drivers="BCD", hurts=True, expiries=2),
    ),
    "hurt-void": (Scenario("AB", hurts=True), Scenario("ABC", parts=1, hurts=True, expiries=2)),
    "repair-spans": (spans_start(), replace(spans_start(), drivers="BBC", zombie=True, tolerant=True)),
    "restart": (
        replace(repair_start(ABORTED), drivers="BB", zombie=True, tolerant=True, expiries=1),
        replace(repair_start(ABORTED), drivers="BBC", zombie=True, tolerant=True, expiries=1),
    ),
    "restart-write": (
        Scenario("AA", zombie=True, tolerant=True, fail=True, expiries=1),
        Scenario("AAB", zombie=True, tolerant=True, fail=True, parts=1, expiries=1),
    ),
    "restart-prepared": (prepared_start(False, True), replace(prepared_start(False, True), drivers="AAB")),
    "restart-moved-on": (
        prepared_start(False, False, True),
        replace(prepared_start(False, False, True), drivers="BBB"),
    ),
    "snapshots": (
        Scenario("ABC", parts=1, snapshots=1, expiries=0),
        Scenario("ABC", parts=1, snapshots=2, expiries=1, closes=(True, True)),
    ),
    "rewind": (rewind_start("A-B+", False, True), rewind_start("A-B+-", False, False, True)),
    "rewind-kept": (kept_start("B-C+", False, True), kept_start("B-C-D", False, True, True)),
    "rewind-gap": (
        replace(gap_start("B-C", COMMITTED, ABORTED, PREPARED), expiries=0),
        gap_start("B-C", COMMITTED, ABORTED, PREPARED),
    ),
    "over": (gap_start("B-C", PREPARED, PREPARED), gap_start("B-C-", PREPARED, PREPARED, PREPARED)),
    "rewind-named": (
        named_start("A-B+", True, True, True),
        replace(named_start("A-B+C", True, True, True), expiries=1),
    ),
    "rewind-restore": (
        replace(named_start("A-B+", True, True, True), restore=True),
        replace(named_start("A-B+C", True, True, True), restore=True, expiries=1),
    ),
    "rewind-again": (replace(repaired_start("-+C"), expiries=0), repaired_start("B-C+D", True)),
    "rewind-late": (
        replace(rewind_start("A-+B", False, True), lates=1, expiries=0),
        replace(rewind_start("A-B+", False, True), lates=2),
    ),
    "rewind-living": (
        replace(rewind_start("A-B", False, True), living=True),
        replace(rewind_start("A-B+", False, True), living=True),
    ),
    "rewind-named-living": (
        replace(named_start("A-B", True, True, True), living=True),
        replace(named_start("A-B+", True, True, True), living=True, expiries=1),
    ),
    "stop": (
        Scenario("AA", parts=1, closes=(False, True), zombie=True, tolerant=True, expiries=0, stops=1),
        Scenario("AAB", parts=1, closes=(False, True), zombie=True, tolerant=True, fail=True, expiries=0, stops=1),
    ),
    "claim": (
        replace(stopped_start(">B>b", True, True), expiries=1),
        replace(stopped_start(">B>b-", True, False, True), expiries=1),
    ),
    "claim-disposed": (
        replace(stopped_start(">B>b", True, True), disposes=True),
        replace(stopped_start(">B>b", True, False, True), disposes=True, expiries=1),
    ),
    "claim-rewound": (
        replace(claim_start("A->Bb", True, False, True), expiries=1),
        replace(claim_start("A->B>b", True, False, True), expiries=1),
    ),
    "claim-living": (
        replace(claim_start("A->b", True, False, True), living=True),
        replace(claim_start("A->Bb", True, False, True), living=True),
    ),
    "claim-named": (
        replace(named_start("-B>b", True, True), saved=2),
        replace(named_start("A-B>+b", True, True, True), saved=2),
    ),
    "claim-late": (
        replace(stopped_start(">B>b", True, True), lates=1),
        replace(stopped_start(">B>b", True, False, True), lates=2),
    ),
    "put-back": (
        Scenario("AB", parts=1, closes=(True, True), copied=True, expiries=0),
        Scenario("ABC", parts=1, copied=True, expiries=0),
    ),
    "put-back-restart": (
        Scenario("AA", parts=1, closes=(True, True), copied=True, expiries=0, zombie=True, tolerant=True),
        Scenario("AAB", parts=1, closes=(True, True), copied=True, expiries=0, zombie=True, tolerant=True),
    ),
    "store-back": (
        Scenario("AB", parts=1, closes=(True, True), store_copied=True, expiries=0),
        Scenario("AB", parts=1, closes=(True, True, True), store_copied=True, expiries=0),
    ),
    "marks": (
        Scenario("AB", closes=(True, True), marks=True),
        Scenario("ABC", parts=1, closes=(True, True), marks=True),
    ),
    "marks-restart": (
        replace(
            repair_start(ABORTED), drivers="BB", closes=(True, True), zombie=True, tolerant=True, expiries=0, marks=True
        ),
        replace(repair_start(ABORTED), drivers="BBC", closes=(True, True), zombie=True, tolerant=True, marks=True),
    ),
    "lone": (
        Scenario("A", closes=(True, False, True, True), expiries=0, lone=True, snapshots=2),
        Scenario("A", closes=(True, False, False, True, True), expiries=0, lone=True, snapshots=1),
    ),
}


class Found(NamedTuple):
    """What the search of a scenario found."""

    result: Result
    tried: int = 0  # States from which a driver alone was started; where nothing was broken.
    stuck: str = ""  # The first of them from which it does not end well.
    finished: frozenset[tuple[Entry, ...]] = frozenset()  # Journals with which all went well.
    by_hand: int = 0  # States in which somebody has to put Spark's logs right.


def run(name: str, broken: str = "", big: bool = False, most: int = 20_000_000) -> Found:
    """Search one scenario."""
    scenario = SCENARIOS[name][big]
    rewinds = (MoveModel if CLAIM in scenario.drivers else RewindModel)(scenario, broken)
    model = rewinds if {"-", CLAIM} & {*scenario.drivers} else _model(scenario, broken)
    result = search(model.initial(), model.moves, most)
    if result.violation or broken not in ("", *SEEN_BY_EXITS):
        return Found(result)
    tried, stuck = model.exits(result.seen)
    return Found(result, tried, stuck, model.finished(result.seen), rewinds.by_hand)


def _model(scenario: Scenario, broken: str) -> Model:
    if scenario.marks:
        return MarksModel(scenario, broken)
    if scenario.store_copied:
        return StoreBackModel(scenario, broken)
    return PutBackModel(scenario, broken) if scenario.copied else Model(scenario, broken)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append")
    parser.add_argument("--break", dest="broken", choices=[*BREAKS, *HARMLESS], default="")
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--most", type=int, default=20_000_000)
    arguments = parser.parse_args()
    bad = False
    for name in arguments.scenario or SCENARIOS:
        found = run(name, arguments.broken, arguments.big, arguments.most)
        bad = bad or bool(found.result.violation or found.stuck)
        print(
            f"{name}: {found.result}"
            + (f"; {found.tried} exits tried, {found.by_hand} by hand {found.stuck}" if found.tried else ""),
            flush=True,
        )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
