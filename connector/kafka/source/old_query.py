"""Reads where a stopped query with Spark's own Kafka source ended, and makes a new checkpoint location that continues there.

The old query's files, as Spark 3 and 4 write them: ``offsets/N`` has a version line, a line of metadata, and one line per
source in the order of the plan (the Kafka source writes ``{"topic": {"0": 23}}``). In version 2 of the log, a line begins with
the source's name. ``commits/N`` exists when micro-batch N is done. ``sources/<i>/0`` has the offsets at which source i (a
number or a name) began: a zero byte, a version line, and the same JSON.

The new location looks like the location of a query that found no new rows at its start and died in its first
micro-batch before it wrote anything. It has Spark's ``metadata``, and an ``offsets/0`` of our source that begins and
ends where the old query ended. Spark runs micro-batch 0 again, without rows, and continues. So new partitions begin at
their first row, ``startingOffsets`` has no effect, the job needs no extra option, and the sink writes its journal
itself. Micro-batch 0 is not committed, because Spark would then reject a query with state: "the state directory is
empty or missing". The metadata line is copied from the old query: it has the watermark, and the settings that Spark
keeps with a query.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.client.topics import is_topic_name
from connector.kafka.source.offsets import Positions, SourceOffset, positions_from_json
from connector.location.files import read_file
from connector.location.location import CheckpointLocation
from connector.location.offset_log import lines_of, newest, offsets_text, text_of_line
from transactional.barrier import BarrierKind, CheckpointBarrier, SourceLine
from transactional.clock import Clock, SystemClock
from transactional.errors import LocationError

_VOID: Final = "-"
"""The text that the offset log has for a source without an offset."""

SHOWN: Final = 80
"""Maximum number of characters of a source's line that an error shows."""


@dataclass(frozen=True)
class OldSource:
    """A source of the query whose offsets are imported, with its line in the offset log."""

    number: int  # The number of the source, from 0, in the order of the offset log.
    name: str  # The source's name; empty if the query identified its sources by position.
    line: str  # The source's line in the offset log.

    def __str__(self) -> str:
        return f"source {self.number} ({self.line[:SHOWN]}{'...' if len(self.line) > SHOWN else ''})"


@dataclass(frozen=True)
class OldKafkaSource(OldSource):
    """One of Spark's Kafka sources in the old query."""

    positions: Positions  # Where the new query begins.


@dataclass(frozen=True)
class OldQuery:
    """A stopped query: its sources and their positions, and the metadata that the new query keeps."""

    path: str  # The query's checkpointLocation.
    query: str  # Spark's id of the query.
    batch: int  # The last micro-batch that counts as written; -1 if there is none.
    uncommitted: int | None  # The micro-batch that was started but not committed; None if there is none.
    sources: Sequence[OldSource]
    version: str  # The version of its offset log, which the new query keeps.
    metadata: str  # The metadata line for the new offset log. Its watermark is `watermark`.
    watermark: int  # The watermark for the next micro-batch, in milliseconds since 1970; 0 if there is none.
    has_state: bool  # Whether the query has state: aggregations, joins or the like.


def read_old_query(path: str, *, take_uncommitted: bool = False) -> OldQuery:
    """Read where a stopped query ended. If `take_uncommitted`, count an uncommitted micro-batch as written."""
    location = CheckpointLocation(path)
    query = location.query_id()
    begun, committed = newest(location, "offsets"), newest(location, "commits")
    if begun < 0:
        raise LocationError("NOTHING_TO_IMPORT", path=location.path)
    if committed not in (begun, begun - 1):
        raise LocationError(
            "LOGS_INCONSISTENT",
            reason=f"{location.path} has offsets/{begun}, but the newest file in commits/ is "
            f"{committed if committed >= 0 else 'none'}",
            offsets=begun,
            commits=committed,
        )
    uncommitted = begun if committed < begun else None
    batch = begun if take_uncommitted else committed
    text, watermark = offsets_text(location, max(batch, 0)), _watermark(location, batch, uncommitted)
    lines = lines_of(location, max(batch, 0), text)
    return OldQuery(
        path=location.path,
        query=query,
        batch=batch,
        uncommitted=uncommitted,
        sources=[_source(location, number, line, batch >= 0) for number, line in enumerate(lines)],
        version=text.splitlines()[0],
        metadata=_with_watermark(text.splitlines()[1], watermark),
        watermark=watermark,
        has_state=location.files.exists("state"),
    )


def refuse_unless_empty(location: CheckpointLocation) -> None:
    """Check that the new location does not exist yet, or is an empty folder."""
    try:
        found = sorted(location.files.names(""))
    except NotADirectoryError:
        found = ["a file"]
    if found:
        raise _not_empty(location, found)


def make_location(
    location: CheckpointLocation, old: OldQuery, sources: Sequence[OldKafkaSource], clock: Clock | None = None
) -> str:
    """Write the new checkpoint location, and return Spark's id of the new query.

    ``offsets/0`` is written first, because this file alone is enough: Spark gives a location without ``metadata`` a new id.
    """
    query = str(uuid.uuid4())
    barrier = CheckpointBarrier(1, BarrierKind.CHECKPOINT, int((clock or SystemClock()).now() * 1000))
    lines = [old.version, old.metadata]
    for source in sources:
        end = SourceOffset(topics=source.positions, start=source.positions, barrier=barrier, barrier_empty=1)
        lines.append(text_of_line(old.version, source.name, json.dumps(end.to_json())))
    refuse_unless_empty(location)
    location.files.put("offsets/0", "\n".join(lines).encode())
    location.files.put("metadata", json.dumps({"id": query}).encode())
    return query


def _source(location: CheckpointLocation, number: int, line: SourceLine, has_begun: bool) -> OldSource:
    text = line.text
    if not has_begun or text == _VOID:
        text = _initial_line(location, line.name or str(number))
    if SourceLine.parse(text).offset is not None:
        raise LocationError("ALREADY_BARRIER_KAFKA", path=location.path)
    positions = _kafka_positions(text)
    if positions is None:
        return OldSource(number, line.name, text)
    return OldKafkaSource(number, line.name, text, positions)


def _kafka_positions(line: str) -> Positions | None:
    """Return the offsets in a source's line; None if the line is not from a Kafka source."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    for topic, offsets in value.items():
        if not is_topic_name(topic) or not isinstance(offsets, dict) or not offsets:
            return None
        if not all(n.isdecimal() and type(at) is int and at >= 0 for n, at in offsets.items()):
            return None
    return positions_from_json(value)


def _initial_line(location: CheckpointLocation, source: str) -> str:
    """Return the offsets at which a source began, as a line of the offset log; "-" if there are none."""
    try:
        data = read_file(location.files, f"sources/{source}/0")
        head, _, text = data.lstrip(b"\0").decode("utf-8").partition("\n")
    except (FileNotFoundError, UnicodeDecodeError):
        return _VOID
    return text.strip() if head == "v1" else _VOID


def _watermark(location: CheckpointLocation, batch: int, uncommitted: int | None) -> int:
    """Return the watermark with which the next micro-batch begins."""
    if batch < 0:
        return 0
    if batch == uncommitted:
        return _number(_line(location, "offsets", batch), "batchWatermarkMs")
    return _number(_line(location, "commits", batch), "nextBatchWatermarkMs")


def _with_watermark(metadata: str, watermark: int) -> str:
    """Return the metadata line of an offset file, with its watermark replaced."""
    value: dict[str, Any] = json.loads(metadata)
    # As Spark writes the line: in this order, without blanks.
    return json.dumps({**value, "batchWatermarkMs": watermark}, separators=(",", ":"), ensure_ascii=False)


def _number(text: str, key: str) -> int:
    try:
        value: Mapping[str, Any] = json.loads(text)
        return int(value.get(key, 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def _line(location: CheckpointLocation, log: str, batch: int) -> str:
    """Return the line after the version line of a file in ``offsets/`` or ``commits/``."""
    path = location.files.shown(f"{log}/{batch}")
    try:
        lines = read_file(location.files, f"{log}/{batch}").decode("utf-8").splitlines()
    except OSError as error:
        raise LocationError("LOGS_INCONSISTENT", reason=f"{path} can't be read ({error})", path=path) from error
    return lines[1] if len(lines) > 1 else "{}"


def _not_empty(location: CheckpointLocation, found: Sequence[str]) -> LocationError:
    return LocationError(
        "LOCATION_NOT_EMPTY",
        path=location.path,
        reason=f"it contains {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}",
    )
