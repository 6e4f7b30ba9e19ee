"""What the coordinator is told of the query's own logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transactional.barrier import offset_of_line, sources_digest

__all__ = ["WAY_OUT_ADOPT", "WAY_OUT_RESOLVE", "WAY_OUT_REWIND", "SparkView", "topics_of"]

WAY_OUT_ADOPT = (
    "If the location was moved or Spark's logs were changed on purpose, stop every query on it and run "
    "`barrier adopt LOCATION --claim` (this place goes on as the query) or `--no-claim` (a copy, with "
    "an identity of its own)."
)
WAY_OUT_RESOLVE = "`barrier resolve LOCATION` lists what can be accepted, and with what consequence."


WAY_OUT_REWIND = (
    "Stop the query and run `barrier rewind LOCATION`: it goes back to where nothing is written twice, and the query that "
    "is started then writes the lost rows again."
)


@dataclass(frozen=True)
class SparkView:
    """What Spark's own logs say, read at planning and at commit.

    Parameters
    ----------
    queryId : str
        From ``<checkpointLocation>/metadata``.
    location : str
        Canonical checkpoint location.
    batch : int
        The micro-batch at work: the highest of ``offsets/``.
    committed : int
        The highest of ``commits/``; -1 where there is none.
    lines : Sequence[str]
        Source lines of ``offsets/<batch>``; empty where Spark has not begun it: the query has stopped.
    previous : Sequence[str] or None
        Those of ``offsets/<batch - 1>``.
    gaps : bool
        Whether numbers of batches may be left out: the versions of batch writes. Then `committed` says nothing.
    oldest : int
        The lowest of ``offsets/``: what is below was purged, and no rewind gets there.
    repartitions : Callable[[], Sequence[int]]
        The micro-batches directly before `batch`, in order, that Spark's repartition of a stopped query has added: they
        have the sources of the one before them, were written by no sink, and are committed.
    text : str
        The whole of ``offsets/<batch>``, for the journal; empty where there is none to keep.
    """

    queryId: str
    location: str
    batch: int
    committed: int
    lines: Sequence[str]
    previous: Sequence[str] | None
    gaps: bool = False
    oldest: int = 0
    repartitions: Callable[[], Sequence[int]] = tuple
    text: str = ""

    @property
    def sources(self) -> str:
        """Digest of the micro-batch's source lines."""
        return sources_digest(self.lines)


def topics_of(lines: Sequence[str]) -> set[str]:
    """The topics whose positions our sources' lines hold."""
    return {topic for line in lines for topic in (offset_of_line(line) or {}).get("topics", {})}
