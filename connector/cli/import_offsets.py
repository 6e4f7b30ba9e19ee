"""``barrier import-offsets``: a query with Spark's own Kafka source goes on with ``barrier-kafka``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from connector.cli.arguments import Yes
from connector.cli.place import find_location
from connector.cli.report import Report
from connector.kafka.source.offsets import Positions, positions_to_json
from connector.kafka.source.old_query import OldQuery, OldSource, make_location, read_old_query, refuse_unless_empty
from connector.location.location import CheckpointLocation
from connector.views.words import time_text
from transactional.errors import LocationError, OptionError

__all__ = ["import_offsets"]


def import_offsets(
    report: Report,
    old: Annotated[str, typer.Argument(metavar="OLD_LOCATION", help="Of the stopped query.", show_default=False)],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW_LOCATION", help="The checkpointLocation of the new query: not there yet.", show_default=False
        ),
    ],
    source: Annotated[
        int | None,
        typer.Option(help="Take this one of several sources (from 0, in the order of the plan).", show_default=False),
    ] = None,
    drop_state: Annotated[
        bool, typer.Option("--drop-state", help="Leave behind what aggregations, joins and the like have counted.")
    ] = False,
    take_uncommitted: Annotated[
        bool,
        typer.Option(
            "--take-uncommitted", help="A last micro-batch without a commit counts as written: rows may be LOST."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """To replace format("kafka") by barrier-kafka: make a location from which the new query continues where the old one ended.

    Stop the old query first, and do not start it again. OLD_LOCATION is only read. Start the new query with the same topics
    and with NEW_LOCATION as its checkpointLocation.
    """
    find_location(old)
    found = read_old_query(old, take_uncommitted=take_uncommitted)
    location = CheckpointLocation(new)
    refuse_unless_empty(location)
    chosen = _chosen(found, source)
    if found.has_state and not drop_state:
        raise LocationError("STATE_STAYS_BEHIND", path=found.path)
    consequences = list(_consequences(found, chosen))
    report.say(*consequences)
    report.facts.update(
        old=found.path,
        location=location.path,
        batch=found.batch,
        uncommitted=found.uncommitted,
        dropped_state=found.has_state,
        watermark=found.watermark,
        sources=[each.number for each in chosen],
        offsets=[positions_to_json(_positions(each)) for each in chosen],
        consequences=consequences,
    )
    report.confirm(yes)
    report.facts["query"] = make_location(location, found, [_positions(each) for each in chosen])
    report.say(f'imported: start the new query with .option("checkpointLocation", {json.dumps(location.path)})')


def _chosen(old: OldQuery, source: int | None) -> Sequence[OldSource]:
    if source is None:
        chosen = old.sources
    else:
        chosen = [each for each in old.sources if each.number == source]
        if not chosen:
            raise OptionError(
                "INVALID_OPTION",
                owner="barrier import-offsets",
                option="--source",
                value=source,
                expectation=f"a source of the query, 0 to {len(old.sources) - 1}",
            )
    foreign = [each for each in chosen if each.positions is None]
    if foreign:
        kafka = [each.number for each in old.sources if each.positions is not None]
        raise LocationError(
            "NOT_A_KAFKA_SOURCE",
            path=old.path,
            foreign=[str(each) for each in foreign],
            sources=[each.number for each in foreign],
            kafka=kafka,
        )
    return chosen


def _positions(source: OldSource) -> Positions:
    assert source.positions is not None, "checked before"
    return source.positions


def _consequences(old: OldQuery, chosen: Sequence[OldSource]) -> Iterator[str]:
    yield f"{old.path}: query {old.query}."
    if old.batch < 0:
        yield "No micro-batch was committed: the new query begins where this one began."
    else:
        counts = "which counts as written" if old.batch == old.uncommitted else "the last that was committed"
        yield f"The new query begins where micro-batch {old.batch} ended, {counts}."
    for each in chosen:
        yield f"  source {each.number}: {json.dumps(positions_to_json(_positions(each)))}"
    if old.uncommitted is not None:
        if old.batch == old.uncommitted:
            yield f"Rows of micro-batch {old.uncommitted} that the old query had not written yet are LOST."
        else:
            yield (
                f"Micro-batch {old.uncommitted} was begun and not committed: its rows are read again. Those that an "
                "at-least-once sink had written by then are DOUBLED, as after a restart of the old query."
            )
    if old.has_state:
        yield "The state stays behind: rows that were counted in it do not count any more, and windows that are open are LOST."
    if old.watermark:
        yield f"The watermark goes on from {time_text(old.watermark)}."
    left = [str(each) for each in old.sources if each not in chosen]
    if left:
        yield f"Not in the new query: {', '.join(left)}."
    yield "Whether the old query has stopped can't be seen: stop it first, and never start it again."
