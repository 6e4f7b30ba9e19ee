"""``barrier resolve``: record an operator's decision about rows whose outcome the sink's store can't show."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from connector.cli.arguments import Location, Yes
from connector.cli.place import open_journal
from connector.cli.report import Report
from connector.location.location import CheckpointLocation
from connector.spark.recorded_sink import naming_secrets, recorded_run, recorded_sink
from transactional.entries import Resolve
from transactional.errors import ProtocolError
from transactional.ledger import Ledger, PartRecord
from transactional.ownership import must_be_at
from transactional.sink import Outcome


class Decision(str, enum.Enum):
    """The decisions that an operator can make about an unsettled part. `CONSEQUENCES` explains each."""

    LOSS = "accept-loss"
    DUPLICATES = "accept-duplicates"
    DIFFERENCE = "accept-difference"


CONSEQUENCES = {
    Decision.LOSS: "the part counts as committed: if its rows were not committed, they are LOST",
    Decision.DUPLICATES: "the part is written again: if its rows were committed, they are DUPLICATED",
    Decision.DIFFERENCE: "the part is written again with the rows of the replay, even if they differ from the recorded rows",
}

Key = tuple[int | None, str]
"""The key of a part: its checkpoint's id (None without one), and ``BATCH/PARTITION`` or ``BATCH/PARTITION/SINK``."""


def resolve(
    report: Report,
    location: Location,
    given: Mapping[str, str],
    checkpoint: Annotated[
        int | None,
        typer.Option(help="The id of the part's checkpoint, if the list of parts shows one.", show_default=False),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="BATCH/PARTITION[/SINK]",
            help="The part to resolve. Without --part, the command lists the parts.",
            show_default=False,
        ),
    ] = None,
    decision: Annotated[
        Decision | None,
        typer.Option(
            "--as",
            help="Your decision about the part. Run the command without --part to see what each choice does.",
            show_default=False,
        ),
    ] = None,
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked",
            help="Do not ask the sink's store for the outcome first. Use this only if the store is gone for good.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """When a transaction's outcome is unknown: decide whether its rows count as committed.

    Stop every query on the location first. Without --part, the command lists the parts that you can resolve. A part is the rows
    that one task wrote to one sink in one micro-batch. Before the command records your decision, it asks the sink's store. If
    the store shows the outcome, the command refuses: start the query instead.
    """
    place, journal = open_journal(location, "there is nothing to resolve")
    ledger = journal.ledger
    parts = _parts(ledger)
    if part is None and checkpoint is None:
        _list(place.path, parts, report)
        return
    chosen = parts.get((checkpoint, part or ""))
    if chosen is None or decision is None:
        why = "--checkpoint and --part must identify an unsettled part, and --as must be a decision"
        raise ProtocolError("NOT_RESOLVABLE", reason=why, part=part)
    if decision is Decision.DIFFERENCE and not chosen.lost:
        why = (
            "accept-difference is only for a lost part whose replay differs from the recorded rows. This part is still open, "
            "and might be committed"
        )
        raise ProtocolError("NOT_RESOLVABLE", reason=why, part=part)
    if checkpoint is None and decision is not Decision.DUPLICATES:
        why = (
            "this part belongs to no decided checkpoint, and the rewind repeats its micro-batch: only accept-duplicates is "
            "possible"
        )
        raise ProtocolError("NOT_RESOLVABLE", reason=why, part=part)
    if not unchecked and checkpoint is not None and chosen.open:
        _refuse_what_can_be_seen(place, ledger, chosen, given)
    report.say(f"{_describe(chosen)}: {CONSEQUENCES[decision]}")
    facts = {"location": place.path, "part": _facts(checkpoint, chosen), "decision": decision.value}
    report.facts.update(facts, consequence=CONSEQUENCES[decision])
    report.confirm(yes)
    fact = Resolve(checkpoint=checkpoint, **chosen.named, decision=decision.value)
    journal.append(fact, must_be_at(ledger.position))
    on = "finish the rewind (`barrier recover LOCATION`)" if ledger.rewinding else "start the query"
    report.say(f"resolved: {on}")


def _refuse_what_can_be_seen(
    location: CheckpointLocation, ledger: Ledger, part: PartRecord, given: Mapping[str, str]
) -> None:
    """Ask the store how the part's transaction ended. If the store shows the outcome, refuse any decision."""
    run = recorded_run(ledger)
    sink = recorded_sink(run, location, given)
    try:
        with naming_secrets(run, given):
            (state,) = sink.inspect([part.handles[-1]])
    finally:
        sink.close()
    if state.outcome in (Outcome.COMMITTED, Outcome.PREPARED):
        raise ProtocolError(
            "NOT_RESOLVABLE",
            reason=f"the store shows that the transaction is {state.outcome.value} ({state.evidence}), so there is nothing "
            "to decide: start the query, which settles it",
            part=_place(part),
        )


def _parts(ledger: Ledger) -> dict[Key, PartRecord]:
    """Return the parts that can be resolved. A part without rows is never among them, because it has no handle."""
    found: dict[Key, PartRecord] = {
        (checkpoint.id, _place(part)): part
        for checkpoint in ledger.unsettled()
        for part in ledger.parts_of(checkpoint)
        if part.open or part.lost
    }
    if ledger.rewinding is not None:  # it aborts prepared parts, and stops if another program has committed one
        prepared = [part for record in ledger.undecided() for part in record.parts if part.open]
        found.update({(None, _place(part)): part for part in prepared})
    return found


def _place(part: PartRecord) -> str:
    return "/".join(map(str, part.named.values()))


def _list(path: str, parts: dict[Key, PartRecord], report: Report) -> None:
    for (checkpoint, place), part in parts.items():
        of = f"--checkpoint {checkpoint} " if checkpoint is not None else ""
        report.say(f"{of}--part {place}: {_describe(part)}")
    for decision, consequence in CONSEQUENCES.items() if parts else ():
        report.say(f"  --as {decision.value}: {consequence}")
    report.say(
        f"{len(parts)} parts are not settled. Starting the query settles most of them: resolve only a part that an error names."
    )
    report.status = "done" if parts else "nothing to do"
    report.facts.update(
        location=path,
        parts=[_facts(checkpoint, part) for (checkpoint, _), part in parts.items()],
        decisions={decision.value: consequence for decision, consequence in CONSEQUENCES.items()},
    )


def _facts(checkpoint: int | None, part: PartRecord) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint,
        **part.named,
        "rows": part.rows,
        "state": "lost" if part.lost else "open",
        "handle": part.handles[-1],
    }


def _describe(part: PartRecord) -> str:
    state = "lost, not repaired yet" if part.lost else "open"
    handle = json.dumps(part.handles[-1], sort_keys=True, default=str)
    return f"{part.rows} rows of micro-batch {part.batch}, {part}, {state}, handle {handle}"
