"""Read Spark's own logs, ``offsets/`` and ``commits/``. `connector.location.log_rewind` changes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from connector.location.location import CheckpointLocation
from connector.location.spark_files import DamagedFileError, read_text
from connector.location.state_files import SHUFFLE_PARTITIONS, metadata_line, partitions_of
from transactional.barrier import SourceLine
from transactional.entry import UNFIT
from transactional.errors import LocationError
from transactional.recovery import QueryView


class TornOffsetsError(LocationError):
    """A file in ``offsets/`` is damaged: its content is not what Spark wrote."""


class UnknownOffsetsError(LocationError):
    """A file in ``offsets/`` has a version that this release does not know."""


def _named(line: str) -> tuple[str, str]:
    name, _, offset = line.partition(":")
    return name, offset


VERSIONS: Final[Mapping[str, Callable[[str], tuple[str, str]]]] = {"v1": lambda line: ("", line), "v2": _named}
"""Maps each version of Spark's offset log to a function that divides a line into the source's name and its offset.

Version 1 identifies sources by position, so the name is empty. Version 2, with which sources can be added to a query
and removed from it (``spark.sql.streaming.queryEvolution.enableSourceEvolution``), writes ``name:offset``. The offset
``-`` means that there is no offset.
"""


def text_of_line(version: str, name: str, offset: str) -> str:
    """Return the line of one source, as Spark writes it in this version of the offset log."""
    return offset if version == "v1" else f"{name}:{offset}"


def newest(location: CheckpointLocation, log: str) -> int:
    """Return the highest micro-batch in a log (``offsets`` or ``commits``); -1 if the log is empty."""
    return max((int(name) for name in location.files.names(log) if name.isdigit()), default=-1)


def source_lines(location: CheckpointLocation, batch: int) -> Sequence[SourceLine]:
    """Return the source lines of ``offsets/<batch>``, in Spark's order."""
    return lines_of(location, batch, offsets_text(location, batch))


def offsets_text(location: CheckpointLocation, batch: int) -> str:
    """Return the text of ``offsets/<batch>``."""
    path = location.files.shown(f"offsets/{batch}")
    try:
        return read_text(location.files, f"offsets/{batch}")
    except DamagedFileError as error:
        raise _torn(location, path, str(error)) from error
    except OSError as error:
        raise LocationError("LOGS_INCONSISTENT", reason=f"{path} can't be read ({error})", path=path) from error


def lines_of(location: CheckpointLocation, batch: int, text: str) -> Sequence[SourceLine]:
    """Return the source lines in `text`, the text of ``offsets/<batch>``."""
    lines = text.splitlines()
    path = location.files.shown(f"offsets/{batch}")
    if _ends_early(text):
        raise _torn(location, path, f"it ends after {len(text)} characters")
    if lines[0] not in VERSIONS:
        known = f"it supports {' and '.join(VERSIONS)}"
        raise UnknownOffsetsError("SPARK_OFFSETS_UNKNOWN", path=path, version=repr(lines[0]), reason=known)
    try:
        return [SourceLine.parse(offset, name) for name, offset in map(VERSIONS[lines[0]], lines[2:])]
    except UNFIT as error:
        raise _torn(location, path, f"its offset can't be read, {error!r}") from error


def is_torn(location: CheckpointLocation, batch: int) -> bool:
    """Return whether ``offsets/<batch>`` is damaged. A file with an unknown version does not count as damaged."""
    try:
        source_lines(location, batch)
    except TornOffsetsError:
        return True
    except UnknownOffsetsError:
        return False
    return False


def _torn(location: CheckpointLocation, path: str, why: str) -> TornOffsetsError:
    return TornOffsetsError("SPARK_OFFSETS_TORN", path=path, location=location.path, reason=why)


def _ends_early(text: str) -> bool:
    """Return whether an offset file is empty or ends too early, for example after a power failure or on a full disk.

    In a file of an unknown version, only the first line is checked. If a file ends between the lines of two sources,
    this function returns False. Other code detects that: it compares the number of sources with the journal.
    """
    version, _, rest = text.partition("\n")
    if not re.fullmatch(r"v\d+", version) or not rest:
        return True
    metadata, *lines = rest.splitlines()
    if version not in VERSIONS:
        return False
    named = [VERSIONS[version](line) for line in lines]
    complete = all(name and offset for name, offset in named) if version == "v2" else True
    return not lines or not complete or not all(map(_is_whole, [metadata, *(offset for _, offset in named)]))


def _is_whole(line: str) -> bool:
    """Return False if a line is an incomplete JSON object. Any other text is accepted, because other sources may write it."""
    try:
        return not line.startswith("{") or isinstance(json.loads(line), dict)
    except ValueError:
        return False


def spark_view(location: CheckpointLocation, batch: int | None = None) -> QueryView:
    """Read Spark's logs at a micro-batch (by default, the newest one), and return them as a `QueryView`."""
    # Skip temporary files (.13.UUID.tmp): another driver may be writing one at this moment.
    known = [int(name) for name in location.files.names("offsets") if name.isdigit()]
    at_work = max(known, default=-1) if batch is None else batch
    if at_work < 0:
        path = location.files.shown("offsets")
        raise LocationError("LOGS_INCONSISTENT", reason=f"{path} contains no micro-batch", path=path)
    previous = source_lines(location, at_work - 1) if has_offsets(location, at_work - 1) else None
    text = offsets_text(location, at_work)
    return QueryView(
        queryId=location.query_id(),
        location=location.path,
        batch=at_work,
        committed=newest(location, "commits"),
        lines=lines_of(location, at_work, text),
        previous=previous,
        oldest=min(known, default=0),
        repartitions=partial(repartitions_before, location, at_work),
        text=text,
    )


def repartitions_before(location: CheckpointLocation, batch: int) -> list[int]:
    """Return the micro-batches directly before `batch` that Spark's repartition of a stopped query has added, in order.

    The repartition copies the offset file of the previous micro-batch, and changes only ``spark.sql.shuffle.partitions`` in
    the metadata's ``conf``. A query never writes such a file: it keeps the number of partitions that it finds, and each of
    its micro-batches has a new ``batchTimestampMs``, even without data. If the file in ``commits/`` is missing, the
    repartition is not finished, and its micro-batch does not count.
    """
    found: list[int] = []
    for number in range(batch - 1, 0, -1):
        now, before = metadata_line(location, number), metadata_line(location, number - 1)
        if now is None or before is None or partitions_of(now) in (None, partitions_of(before)):
            break
        bare = [{**each, "conf": {**each["conf"], SHUFFLE_PARTITIONS: ""}} for each in (now, before)]
        same = bare[0] == bare[1] and source_lines(location, number) == source_lines(location, number - 1)
        if not same or not location.files.exists(f"commits/{number}"):
            break
        found.insert(0, number)
    return found


def stopped_view(location: CheckpointLocation) -> QueryView:
    """Read a stopped query's logs, and return them as a `QueryView`.

    The view is at the newest micro-batch or, if Spark has committed this micro-batch, at the next one.
    """
    view = spark_view(location)
    if view.batch > view.committed:
        return view
    following = view.committed + 1
    repartitions = partial(repartitions_before, location, following)
    return replace(view, batch=following, lines=(), previous=view.lines, repartitions=repartitions)


def has_offsets(location: CheckpointLocation, batch: int) -> bool:
    """Return whether Spark has started a micro-batch, that is, whether ``offsets/<batch>`` exists."""
    return batch >= 0 and location.files.exists(f"offsets/{batch}")
