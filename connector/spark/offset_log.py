"""Spark's own logs, ``offsets/`` and ``commits/``: read only."""

from __future__ import annotations

import os
from collections.abc import Sequence

from connector.spark.location import CheckpointLocation
from transactional.errors import LocationError
from transactional.recovery import SparkView

__all__ = ["newest", "source_lines", "spark_view"]


def newest(location: CheckpointLocation, log: str) -> int:
    """The highest micro-batch in ``offsets`` or ``commits``; -1 where there is none."""
    try:
        names = os.listdir(os.path.join(location.path, log))
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


def source_lines(location: CheckpointLocation, batch: int) -> Sequence[str]:
    """The source lines of ``offsets/<batch>``, in Spark's order.

    Raises
    ------
    LocationError
        Missing, torn, or of a version that this project has not been tested with.
    """
    path = os.path.join(location.path, "offsets", str(batch))
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise LocationError("NO_SPARK_OFFSETS", f"{path} can't be read: {error}", path=path) from error
    version = lines[0] if lines else ""
    if version == "v1" and len(lines) >= 3:
        return lines[2:]
    raise LocationError(
        "SPARK_OFFSETS_UNKNOWN",
        f"{path} has version line {version!r}; this version reads v1. Start the query with "
        "spark.sql.streaming.queryEvolution.enableSourceEvolution=false on a new checkpoint location",
        path=path,
        version=version,
    )


def spark_view(location: CheckpointLocation, batch: int | None = None) -> SparkView:
    """Spark's logs as they are now.

    Parameters
    ----------
    location : CheckpointLocation
    batch : int, optional
        The micro-batch at work; the newest of ``offsets`` by default.
    """
    at_work = newest(location, "offsets") if batch is None else batch
    previous = source_lines(location, at_work - 1) if _has(location, at_work - 1) else None
    return SparkView(
        queryId=location.query_id(),
        location=location.path,
        batch=at_work,
        committed=newest(location, "commits"),
        lines=source_lines(location, at_work),
        previous=previous,
    )


def _has(location: CheckpointLocation, batch: int) -> bool:
    return os.path.exists(os.path.join(location.path, "offsets", str(batch)))
