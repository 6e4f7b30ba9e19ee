"""The end of a stopped query with Spark's own Kafka source, and a new checkpoint location that goes on from there.

Spark's own files, as versions 3 and 4 write them: ``offsets/N`` (a version line, a line of metadata, one line per source, in
the order of the plan; Kafka's is ``{"topic": {"0": 23}}``), ``commits/N`` when micro-batch N is done, and
``sources/<i>/0``, where source number i began: a zero byte, a version line, and the same JSON.

The new location is that of a query which died in its first micro-batch, before anything was written, and had found nothing
new at its start: Spark's ``metadata``, and an ``offsets/0`` of our source that begins and ends where the old query ended. Spark
runs micro-batch 0 again, without rows, and goes on. So new partitions begin at their first row, ``startingOffsets`` means
nothing, no option has to stay in the job, and the sink writes its journal itself. (Were 0 committed too, Spark would refuse a
query with state: "the state directory is empty or missing".) The metadata line is the old query's: it holds the watermark,
and the settings that Spark keeps with a query.
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
from connector.location.offset_log import newest, source_lines
from transactional.barrier import BarrierKind, CheckpointBarrier, SourceLine
from transactional.clock import Clock, SystemClock
from transactional.errors import LocationError

__all__ = ["OldQuery", "OldSource", "make_location", "read_old_query", "refuse_unless_empty"]

_VOID: Final = "-"
"""The line of a source that had nothing so far."""

SHOWN: Final = 80
"""Characters of another source's line that an error shows."""


@dataclass(frozen=True)
class OldSource:
    """One source of the old query.

    Parameters
    ----------
    number : int
        From 0, in the order of the plan, as in Spark's folder ``sources/<number>``.
    positions : Positions or None
        Where the new query begins; None if the source is not Kafka's.
    line : str
        As it stands in the offset log.
    """

    number: int
    positions: Positions | None
    line: str

    def __str__(self) -> str:
        return f"source {self.number} ({self.line[:SHOWN]}{'...' if len(self.line) > SHOWN else ''})"


@dataclass(frozen=True)
class OldQuery:
    """The position of a stopped query.

    Parameters
    ----------
    path : str
    query : str
        Spark's id of it.
    batch : int
        The last micro-batch that counts as written; -1 if there is none.
    uncommitted : int or None
        A micro-batch that was begun and not committed.
    sources : Sequence[OldSource]
    metadata : str
        The offset log's metadata line, with this watermark.
    watermark : int
        Milliseconds since 1970; 0 if there is none.
    has_state : bool
        Whether it had aggregations, joins or the like.
    """

    path: str
    query: str
    batch: int
    uncommitted: int | None
    sources: Sequence[OldSource]
    metadata: str
    watermark: int
    has_state: bool


def read_old_query(path: str, *, take_uncommitted: bool = False) -> OldQuery:
    """Read where a query ended."""
    location = CheckpointLocation(path)
    query = location.query_id()
    begun, committed = newest(location, "offsets"), newest(location, "commits")
    if begun < 0:
        raise LocationError("NOTHING_TO_IMPORT", path=location.path)
    if committed not in (begun, begun - 1):
        raise LocationError(
            "LOGS_INCONSISTENT",
            reason=f"{location.path} has offsets/{begun}, and the newest of commits/ is "
            f"{committed if committed >= 0 else 'none'}",
            offsets=begun,
            commits=committed,
        )
    uncommitted = begun if committed < begun else None
    batch = begun if take_uncommitted else committed
    lines, watermark = source_lines(location, max(batch, 0)), _watermark(location, batch, uncommitted)
    texts = [line.text if batch >= 0 else _VOID for line in lines]
    return OldQuery(
        path=location.path,
        query=query,
        batch=batch,
        uncommitted=uncommitted,
        sources=[_source(location, number, line) for number, line in enumerate(texts)],
        metadata=_with_watermark(_line(location, "offsets", max(batch, 0)), watermark),
        watermark=watermark,
        has_state=location.files.exists("state"),
    )


def refuse_unless_empty(location: CheckpointLocation) -> None:
    """Check that the new location is not there yet, or an empty folder."""
    try:
        found = sorted(location.files.names(""))
    except NotADirectoryError:
        found = ["a file"]
    if found:
        raise _not_empty(location, found)


def make_location(
    location: CheckpointLocation, old: OldQuery, sources: Sequence[Positions], clock: Clock | None = None
) -> str:
    """Write the new location; return Spark's id of the new query.

    ``offsets/0`` comes first, and is all that counts: Spark gives a location without ``metadata`` an id of its own.
    """
    query = str(uuid.uuid4())
    barrier = CheckpointBarrier(1, BarrierKind.CHECKPOINT, int((clock or SystemClock()).now() * 1000))
    ends = [SourceOffset(topics=at, start=at, barrier=barrier, barrier_empty=1) for at in sources]
    lines = ["v1", old.metadata, *(json.dumps(end.to_json()) for end in ends)]
    refuse_unless_empty(location)
    location.files.put("offsets/0", "\n".join(lines).encode())
    location.files.put("metadata", json.dumps({"id": query}).encode())
    return query


def _source(location: CheckpointLocation, number: int, line: str) -> OldSource:
    if line == _VOID:
        line = _initial_line(location, number)
    if SourceLine.parse(line).offset is not None:
        raise LocationError("ALREADY_BARRIER_KAFKA", path=location.path)
    return OldSource(number, _kafka_positions(line), line)


def _kafka_positions(line: str) -> Positions | None:
    """Return the offsets in a line of Kafka's source; None if it is another source's."""
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


def _initial_line(location: CheckpointLocation, number: int) -> str:
    """Return where a source began, as Spark's Kafka source keeps it; else the line of a source without offset."""
    try:
        data = read_file(location.files, f"sources/{number}/0")
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
    """Return the metadata line of a micro-batch that begins with this watermark."""
    value: dict[str, Any] = json.loads(metadata)
    # As Spark writes it: in this order, without blanks.
    return json.dumps({**value, "batchWatermarkMs": watermark}, separators=(",", ":"), ensure_ascii=False)


def _number(text: str, key: str) -> int:
    try:
        value: Mapping[str, Any] = json.loads(text)
        return int(value.get(key, 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def _line(location: CheckpointLocation, log: str, batch: int) -> str:
    """Return the line after the version."""
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
        reason=f"it holds {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}",
    )
