"""The ways out that errors name: ``python -m connector.cli adopt | resolve LOCATION``.

Stop every query on the location first. Each command says what it will do, and what may be lost or doubled, before it
does it; without ``--yes`` it asks. Exit status: 0 done (or nothing to do), 1 refused, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from connector.spark.location import CheckpointLocation
from connector.spark.offset_log import newest, source_lines
from transactional.barrier import sources_digest
from transactional.errors import LocationError, TwoPhaseCommitError
from transactional.journal import Journal
from transactional.ledger import Ledger, PartRecord
from transactional.metadata import EntryKind

__all__ = ["main"]

DECISIONS = {
    "accept-loss": "the part counts as committed: its rows are LOST if they were not",
    "accept-duplicates": "the part is written again: its rows are DOUBLED if they were committed",
    "accept-difference": "the part is written again with whatever rows its replay has, without comparing them",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``barrier``."""
    options = _parser().parse_args(arguments)
    try:
        location = CheckpointLocation(options.location)
        journal = location.journal()
        if not journal.load().position and options.run is not _adopt:
            raise LocationError(
                "NO_JOURNAL", f"{location.path} holds no journal: nothing to resolve", path=location.path
            )
        return int(options.run(location, journal, options))
    except TwoPhaseCommitError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="barrier", description=__doc__.split("\n\n", maxsplit=1)[1] if __doc__ else None
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adopt = commands.add_parser("adopt", help="accept a moved, restored or copied checkpoint location")
    which = adopt.add_mutually_exclusive_group(required=True)
    which.add_argument("--claim", action="store_true", help="this place goes on as the query; the other is gone")
    which.add_argument("--no-claim", action="store_true", help="this is a copy: it gets an identity of its own")
    adopt.set_defaults(run=_adopt)
    resolve = commands.add_parser("resolve", help="settle by decision what can't be settled by evidence")
    resolve.add_argument("--checkpoint", type=int)
    resolve.add_argument("--part", metavar="BATCH/PARTITION")
    resolve.add_argument("--as", dest="decision", choices=sorted(DECISIONS))
    resolve.set_defaults(run=_resolve)
    for command in (adopt, resolve):
        command.add_argument("location", metavar="LOCATION")
        command.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _adopt(location: CheckpointLocation, journal: Journal, options: argparse.Namespace) -> int:
    ledger = journal.ledger
    location.query_id()  # refused where Spark has no metadata: nothing ever ran here
    committed = newest(location, "commits")
    if committed > newest(location, "offsets"):
        raise LocationError(
            "SPARK_LOGS_INCONSISTENT",
            f"commits/{committed} exists without its offsets/{committed}: nobody knows where it ended. Restore offsets/ from "
            "a backup, or start the query on a new checkpoint location",
            committed=committed,
        )
    agrees = _agrees(location, ledger, committed)
    drop = options.no_claim or not agrees
    suffix = f"-{os.urandom(4).hex()}" if options.no_claim else ledger.identity_suffix
    base = committed if drop else ledger.base
    if not ledger.position:
        print(f"{location.path} holds no journal: the query had another sink so far, or the journal was deleted.")
        print("Rows of a micro-batch that another sink, or a lost journal, had only half done may be DOUBLED or LOST.")
    else:
        print(
            f"{location.path}: the journal (of {ledger.location}) accounts for micro-batches up to {ledger.accounted},"
        )
    print(f"Spark has committed micro-batches up to {committed}.")
    if options.no_claim:
        print(
            f"The copy gets transactional ids of its own (suffix {suffix}; a transactionalIdPrefix that the query sets must "
            f"be a new one) and goes on after micro-batch {committed}."
        )
    for checkpoint in ledger.unsettled() if drop else ():
        print(
            f"Checkpoint {checkpoint.id} (micro-batches {checkpoint.batches}, {checkpoint.rows} rows) is decided, not settled:"
        )
        print(
            "  the original commits it; the copy does not."
            if options.no_claim
            else "  what is not committed of it is LOST."
        )
    for record in ledger.undecided() if drop else ():
        rows = sum(part.rows for part in record.parts)
        print(f"Micro-batch {record.batch} ({rows} rows) is prepared, and in no checkpoint yet:")
        if options.no_claim and record.batch <= committed:
            print("  the original commits it; the copy does not.")
        else:
            print(
                "  what was prepared of it is aborted, and LOST."
                if record.batch <= committed
                else "  it is written anew."
            )
    if drop and ledger.accounted > committed:
        print(
            f"Micro-batches {committed + 1} to {ledger.accounted} were handled before, and are written AGAIN: DOUBLED there."
        )
    if drop and not options.no_claim and ledger.accounted < committed:
        print(f"Micro-batches {ledger.accounted + 1} to {committed} count as handled; the journal can't show it.")
    if not _confirmed(options):
        return 1
    body = {"location": location.path, "suffix": suffix, "base": base, "drop": drop}
    journal.append(EntryKind.ADOPT, body, lambda found: _unchanged(found, ledger.position))
    print("adopted: start the query")
    return 0


def _agrees(location: CheckpointLocation, ledger: Ledger, committed: int) -> bool:
    """Whether the journal and Spark's logs tell the same story."""
    last = ledger.accounted
    if not committed <= last <= committed + 1:
        return False
    record = ledger.batches.get(last)
    try:
        return record is None or sources_digest(source_lines(location, last)) == record.sources
    except LocationError:
        return False


def _resolve(location: CheckpointLocation, journal: Journal, options: argparse.Namespace) -> int:
    ledger = journal.ledger
    parts = {
        (c.id, f"{p.batch}/{p.partition}"): p
        for c in ledger.unsettled()
        for p in ledger.parts_of(c)
        if p.open or p.lost  # a part without rows has no handle
    }
    if options.checkpoint is None:
        for (checkpoint, part), record in parts.items():
            print(f"--checkpoint {checkpoint} --part {part}: {_describe(record)}")
        for decision, consequence in DECISIONS.items() if parts else ():
            print(f"  --as {decision}: {consequence}")
        print(
            f"{len(parts)} parts are not settled. Most settle when the query is started: resolve only what an error names."
        )
        return 0
    chosen = parts.get((options.checkpoint, options.part))
    if chosen is None or options.decision is None:
        print(
            "refused: name an unsettled part and a decision: --checkpoint N --part BATCH/PARTITION --as ...",
            file=sys.stderr,
        )
        return 1
    if options.decision == "accept-difference" and not chosen.lost:
        print(
            "refused: accept-difference is for a part that was judged lost and whose replay differs; this one is open, and "
            "may be committed: start the query, it judges it",
            file=sys.stderr,
        )
        return 1
    print(f"{_describe(chosen)}: {DECISIONS[options.decision]}")
    if not _confirmed(options):
        return 1
    body = {
        "checkpoint": options.checkpoint,
        "batch": chosen.batch,
        "partition": chosen.partition,
        "decision": options.decision,
    }
    journal.append(EntryKind.RESOLVE, body, lambda found: _unchanged(found, ledger.position))
    print("resolved: start the query")
    return 0


def _describe(part: PartRecord) -> str:
    state = "lost, to be repaired" if part.lost else "open"
    return (
        f"{part.rows} rows of micro-batch {part.batch}, partition {part.partition}, {state}, handle {part.handles[-1]}"
    )


def _unchanged(found: Ledger, position: int) -> None:
    if found.position != position:
        raise LocationError(
            "LOCATION_BUSY",
            "the journal grew meanwhile: a query is at work on this location; stop it first",
            position=position,
        )


def _confirmed(options: argparse.Namespace) -> bool:
    if options.yes:
        return True
    if not sys.stdin.isatty():
        print("refused: say --yes", file=sys.stderr)
        return False
    return input("Go on? [y/N] ").strip().lower() == "y"


if __name__ == "__main__":
    sys.exit(main())
