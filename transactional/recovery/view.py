"""`QueryView`: the facts about a query that the coordinator reads from Spark's own logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from transactional.barrier import SourceLine, sources_digest


@dataclass(frozen=True)
class QueryView:
    """The content of the query's own logs, read at planning and at commit."""

    queryId: str  # The query's id, from ``<checkpointLocation>/metadata``.
    location: str  # The checkpoint location, as a canonical path.
    # The current micro-batch: the highest number in ``offsets/``, or the next number if the query is stopped and its newest
    # micro-batch is committed. For a batch write, the version.
    batch: int
    committed: int  # The highest number in ``commits/``; -1 if there is none.
    lines: Sequence[SourceLine]  # The source lines of ``offsets/<batch>``; empty if that file does not exist yet.
    # The source lines of ``offsets/<batch - 1>``; None if this file does not exist.
    previous: Sequence[SourceLine] | None
    gaps: bool = False  # True for batch writes, whose versions may skip numbers. Then `committed` has no meaning.
    compare: bool = True  # Of a batch write: the value of ``txnCompareRows``.
    oldest: int = 0  # The lowest number in ``offsets/``. Earlier files were purged, so no rewind can go back further.
    # Returns the micro-batches directly before `batch` that a repartition of the stopped query has added, in order. Each
    # repeats the source lines of the micro-batch before it, and is committed, but no sink wrote it.
    repartitions: Callable[[], Sequence[int]] = tuple
    # The names of the sources with which the query was started; None if they are not known.
    running: Collection[str] | None = None
    text: str = ""  # The whole text of ``offsets/<batch>``, for the journal; empty if the journal need not keep it.

    @property
    def sources(self) -> str:
        """The digest of the micro-batch's source lines."""
        return sources_digest(self.lines)
