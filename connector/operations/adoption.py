"""A checkpoint location that was moved, copied or put back: what becomes of its rows if it is accepted as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator

from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest, source_lines
from connector.spark.location_owner import refuse_batch_writes
from transactional.barrier import sources_digest
from transactional.entries import Adopt
from transactional.errors import LocationError
from transactional.ownership import moved_on, must_be_at, unfinished

__all__ = ["Adoption"]


class Adoption:
    """The acceptance of a location as it is. Nothing is changed before `run`.

    Parameters
    ----------
    location : CheckpointLocation
    claim : bool
        The query goes on here; else this is a copy, and gets an identity of its own.

    Attributes
    ----------
    ledger : Ledger
    committed : int
        The last micro-batch that Spark has committed.
    drop : bool
        The open transactions of the journal are dropped, and the query goes on after `committed`.
    suffix : str
        What distinguishes the transactional ids of a copy from those of the original.
    """

    def __init__(self, location: CheckpointLocation, claim: bool) -> None:
        self._location, self._claim = location, claim
        self._journal = location.journal()
        self.ledger = ledger = self._journal.load()
        if ledger.moved is not None:
            raise moved_on(ledger.moved)
        if ledger.restoring is not None:
            raise unfinished(ledger.restoring)
        refuse_batch_writes(
            location, "go on with a new checkpointLocation, from the first version that the target lacks"
        )
        location.query_id()  # refused if Spark has no metadata: nothing ever ran here
        if ledger.rewinding is not None and not claim:
            raise LocationError("REWIND_NOT_DONE", rewind=ledger.rewinding.token)
        self.committed = committed = newest(location, "commits")
        if committed > newest(location, "offsets"):
            reason = f"commits/{committed} exists without its offsets/{committed}"
            raise LocationError("LOGS_INCONSISTENT", reason=reason, committed=committed)
        self.drop = not claim or not self._agrees()
        self.suffix = ledger.identity_suffix if claim else f"-{os.urandom(4).hex()}"

    def run(self) -> None:
        """Journal that the location is accepted, unless the journal has grown since it was read."""
        ledger, sources = self.ledger, None
        if self.drop and self.committed in ledger.batches:  # the next start compares this file
            sources = sources_digest(source_lines(self._location, self.committed))
        fact = Adopt(
            location=self._location.path,
            suffix=self.suffix,
            base=self.committed if self.drop else ledger.base,
            drop=self.drop,
            sources=sources,
        )
        self._journal.append(fact, must_be_at(ledger.position))

    def consequences(self) -> Iterator[str]:
        """Say what becomes of the rows."""
        path, ledger, committed, claim, drop = self._location.path, self.ledger, self.committed, self._claim, self.drop
        if not ledger.position:
            yield f"{path} holds no journal: the query had another sink so far, or the journal was deleted."
            yield "Rows of a micro-batch that another sink, or a lost journal, had only half done may be DOUBLED or LOST."
        else:
            yield f"{path}: the journal (of {ledger.location}) accounts for micro-batches up to {ledger.accounted},"
        yield f"Spark has committed micro-batches up to {committed}."
        if claim and ledger.position:
            yield "If this is an older copy, what was committed after it was made is written AGAIN: DOUBLED."
            yield "If the store is an older copy, what was committed after it was made is LOST: rewind before you accept it."
        if not claim:
            yield (
                f"The copy gets transactional ids of its own (suffix {self.suffix}; a transactionalIdPrefix that the query "
                f"sets must be a new one) and goes on after micro-batch {committed}."
            )
        for checkpoint in ledger.unsettled() if drop else ():
            batches, rows = checkpoint.batches, checkpoint.rows
            yield f"Checkpoint {checkpoint.id} (micro-batches {batches}, {rows} rows) is decided, not settled:"
            yield (
                "  what is not committed of it is LOST." if claim else "  the original commits it; the copy does not."
            )
        for record in ledger.undecided() if drop else ():
            rows = sum(part.rows for part in record.parts)
            yield f"Micro-batch {record.batch} ({rows} rows) is prepared, and in no checkpoint yet:"
            if record.batch > committed:
                yield "  it is written again."
            elif claim:
                yield "  what was prepared of it is aborted, and LOST."
            else:
                yield "  the original commits it; the copy does not."
        if drop and ledger.accounted > committed:
            again = f"{committed + 1} to {ledger.accounted}"
            yield f"Micro-batches {again} were handled before, and are written AGAIN: DOUBLED there."
        if drop and ledger.accounted == committed and not self._same_sources():
            back = " `barrier recover LOCATION` puts the recorded one back instead." if committed in ledger.logs else ""
            yield f"offsets/{committed} is not the one that the journal recorded: rows in between are LOST, or DOUBLED.{back}"
        if drop and claim and ledger.accounted < committed:
            yield (f"Micro-batches {ledger.accounted + 1} to {committed} count as handled; the journal can't show it.")

    def _agrees(self) -> bool:
        """Return whether the journal and Spark's logs agree."""
        return self.committed <= self.ledger.accounted <= self.committed + 1 and self._same_sources()

    def _same_sources(self) -> bool:
        """Return whether Spark's file of the journal's last micro-batch is the one that the journal recorded."""
        last = self.ledger.accounted
        record = self.ledger.batches.get(last)
        try:
            return record is None or sources_digest(source_lines(self._location, last)) == record.sources
        except LocationError:
            return False
