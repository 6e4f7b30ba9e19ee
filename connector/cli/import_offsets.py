"""``barrier import-offsets``: let ``barrier-kafka`` continue where Spark's own Kafka source stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from connector.cli.arguments import Yes
from connector.cli.place import find_location
from connector.cli.report import Report
from connector.kafka.source.offsets import positions_to_json
from connector.kafka.source.old_query import (
    OldKafkaSource,
    OldQuery,
    make_location,
    read_old_query,
    refuse_unless_empty,
)
from connector.location.location import CheckpointLocation
from connector.views.words import time_text
from transactional.errors import LocationError, OptionError


def import_offsets(
    report: Report,
    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD_LOCATION", help="The checkpointLocation of the old, stopped query.", show_default=False
        ),
    ],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW_LOCATION",
            help="The checkpointLocation of the new query. It must not exist yet, or must be empty.",
            show_default=False,
        ),
    ],
    source: Annotated[
        int | None,
        typer.Option(
            help="The number of the source to import, counted from 0 in the query plan. By default, all sources are imported.",
            show_default=False,
        ),
    ] = None,
    drop_state: Annotated[
        bool,
        typer.Option("--drop-state", help="Start without the old query's state (aggregations, joins, deduplication)."),
    ] = False,
    take_uncommitted: Annotated[
        bool,
        typer.Option(
            "--take-uncommitted",
            help="If the last micro-batch was not committed, treat its rows as written. Rows that were not written are LOST.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """To replace format("kafka") with barrier-kafka: create a location for a new query that continues from the old offsets.

    Stop the old query first, and do not start it again. The command only reads OLD_LOCATION. Start the new query with the same
    topics and with NEW_LOCATION as its checkpointLocation.
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
        offsets=[positions_to_json(each.positions) for each in chosen],
        consequences=consequences,
    )
    report.confirm(yes)
    report.facts["query"] = make_location(location, found, chosen)
    report.say(f'imported: start the new query with .option("checkpointLocation", {json.dumps(location.path)})')


def _chosen(old: OldQuery, source: int | None) -> Sequence[OldKafkaSource]:
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
                expectation=f"the number of a source of the query, 0 to {len(old.sources) - 1}",
            )
    kafka = [each for each in chosen if isinstance(each, OldKafkaSource)]
    foreign = [each for each in chosen if not isinstance(each, OldKafkaSource)]
    if foreign:
        raise LocationError(
            "NOT_A_KAFKA_SOURCE",
            path=old.path,
            foreign=[str(each) for each in foreign],
            sources=[each.number for each in foreign],
            kafka=[each.number for each in old.sources if isinstance(each, OldKafkaSource)],
        )
    return kafka


def _consequences(old: OldQuery, chosen: Sequence[OldKafkaSource]) -> Iterator[str]:
    yield f"{old.path}: query {old.query}."
    if old.batch < 0:
        yield "No micro-batch was committed: the new query begins where the old query began."
    else:
        counts = "which is treated as written" if old.batch == old.uncommitted else "the last committed micro-batch"
        yield f"The new query begins where micro-batch {old.batch} ended, {counts}."
    for each in chosen:
        yield f"  source {each.number}: {json.dumps(positions_to_json(each.positions))}"
    if old.uncommitted is not None:
        if old.batch == old.uncommitted:
            yield f"Rows of micro-batch {old.uncommitted} that the old query had not written yet are LOST."
        else:
            yield (
                f"Micro-batch {old.uncommitted} was started but not committed, so the new query reads its rows again. Rows "
                "that an at-least-once sink has already written are DUPLICATED, as after a restart of the old query."
            )
    if old.has_state:
        yield "The old query's state is not imported: aggregations start empty, and the old query's open windows are LOST."
    if old.watermark:
        yield f"The watermark continues from {time_text(old.watermark)}."
    left = [str(each) for each in old.sources if each not in chosen]
    if left:
        yield f"Sources that are not imported: {', '.join(left)}."
    yield "This command can't see whether the old query has stopped: stop the old query first, and never start it again."
