"""The engine's own logs of a query: the coordinator's only knowledge of it beside the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transactional.barrier import SourceLine, sources_digest

__all__ = ["QueryView"]


@dataclass(frozen=True)
class QueryView:
    """The content of the query's own logs, read at planning and at commit.

    Parameters
    ----------
    queryId : str
        From ``<checkpointLocation>/metadata``.
    location : str
        Canonical checkpoint location.
    batch : int
        The current micro-batch: the highest of ``offsets/``.
    committed : int
        The highest of ``commits/``; -1 if there is none.
    lines : Sequence[SourceLine]
        Of ``offsets/<batch>``; empty if the query has stopped and not begun it.
    previous : Sequence[SourceLine] or None
        Those of ``offsets/<batch - 1>``.
    gaps : bool
        Whether numbers of batches may be left out: the versions of batch writes. Then `committed` means nothing.
    oldest : int
        The lowest of ``offsets/``: what is below was purged, and no rewind gets there.
    repartitions : Callable[[], Sequence[int]]
        The micro-batches directly before `batch`, in order, that a repartition of the stopped query has added: they
        have the sources of the one before them, were written by no sink, and are committed.
    text : str
        The whole of ``offsets/<batch>``, for the journal; empty if there is none to keep.
    """

    queryId: str
    location: str
    batch: int
    committed: int
    lines: Sequence[SourceLine]
    previous: Sequence[SourceLine] | None
    gaps: bool = False
    oldest: int = 0
    repartitions: Callable[[], Sequence[int]] = tuple
    text: str = ""

    @property
    def sources(self) -> str:
        """Digest of the micro-batch's source lines."""
        return sources_digest(self.lines)
