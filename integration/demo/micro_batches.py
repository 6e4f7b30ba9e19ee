"""A query's micro-batches as its checkpoint location shows them from outside."""

from __future__ import annotations

from pathlib import Path

from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest

__all__ = ["MicroBatches"]


class MicroBatches:
    """Reads Spark's logs and the journal; writes nothing."""

    def __init__(self, location: Path) -> None:
        self._location = location  # The query's checkpoint location; need not exist yet.

    def running(self) -> int | None:
        """Return the micro-batch whose offsets are written and whose commit is not, if there is one."""
        batch = newest(CheckpointLocation(str(self._location)), "offsets")
        return None if batch < 0 or self.committed(batch) else batch

    def committed(self, batch: int) -> bool:
        """Whether Spark has written the micro-batch's commit."""
        return (self._location / "commits" / str(batch)).exists()

    def count(self) -> int:
        """Return how many micro-batches Spark has committed."""
        return newest(CheckpointLocation(str(self._location)), "commits") + 1

    def reached(self, batch: int) -> str:
        """Say how far the micro-batch got, in the words of the journal. The driver must be dead."""
        ledger = CheckpointLocation(str(self._location)).journal().load()
        record = ledger.batches.get(batch)
        if record is None:
            return "before its decision: its rows are aborted and written again"
        if record.checkpoint is None:
            return "prepared and not decided"
        if not ledger.checkpoints[record.checkpoint].settled:
            return "after its decision: recovery finishes its commit"
        return "after its commit, before Spark's: it is not written again"
