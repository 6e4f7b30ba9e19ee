"""Accept a checkpoint location that was moved, copied or restored from an older copy, and show what happens to its rows."""

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


class Adoption:
    """Accepts a location as it is, for ``barrier restore --as-is``. Only `run` changes anything.

    Parameters
    ----------
    location : CheckpointLocation
    claim : bool
        True if the query continues at this location. False if the location is a copy, which gets its own identity.

    Attributes
    ----------
    ledger : Ledger
        The ledger of the location's journal.
    committed : int
        The last micro-batch that Spark has committed.
    drop : bool
        True if the journal's open transactions are dropped, so that the query continues after micro-batch `committed`.
    suffix : str
        The suffix that distinguishes a copy's transactional ids from the original's.
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
            location, "continue with a new checkpointLocation, from the first version that the target lacks"
        )
        location.query_id()  # raises if Spark's metadata is missing, because then no query has ever run here
        if ledger.rewinding is not None and not claim:
            raise LocationError("REWIND_NOT_DONE", rewind=ledger.rewinding.token)
        self.committed = committed = newest(location, "commits")
        if committed > newest(location, "offsets"):
            reason = f"commits/{committed} exists without its offsets/{committed}"
            raise LocationError("LOGS_INCONSISTENT", reason=reason, committed=committed)
        self.drop = not claim or not self._agrees()
        self.suffix = ledger.identity_suffix if claim else f"-{os.urandom(4).hex()}"

    def run(self) -> None:
        """Write the acceptance to the journal. Raises an error if the journal has grown since it was read."""
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
        """Yield sentences for the operator: what happens to the query's rows if the location is accepted."""
        yield from self._consequences_of_the_choice()
        if self.drop:
            yield from self._dropped()
            yield from self._apart()

    def _consequences_of_the_choice(self) -> Iterator[str]:
        path, ledger, committed, claim = self._location.path, self.ledger, self.committed, self._claim
        if not ledger.position:
            yield f"{path} has no journal: the query used another sink before, or the journal was deleted."
            yield "If a micro-batch was only partly written, its rows may be DUPLICATED or LOST."
        else:
            yield f"{path}: the journal (of {ledger.location}) contains micro-batches up to {ledger.accounted}."
        yield f"Spark has committed micro-batches up to {committed}."
        if claim and ledger.position:
            yield (
                "If this location is an older copy, rows that were committed after the copy was made are written AGAIN: they "
                "are DUPLICATED."
            )
            yield (
                "If the store is an older copy, rows that were committed after the copy was made are LOST. To write them "
                "again, rewind the query before you accept the location."
            )
        if not claim:
            yield (
                f"The copy gets its own transactional ids (suffix {self.suffix}) and continues after micro-batch {committed}. "
                "If the query sets transactionalIdPrefix, change it to a new prefix."
            )

    def _dropped(self) -> Iterator[str]:
        """Yield sentences about what happens to the rows of unsettled checkpoints and micro-batches."""
        ledger, committed, claim = self.ledger, self.committed, self._claim
        for checkpoint in ledger.unsettled():
            batches, rows = checkpoint.batches, checkpoint.rows
            yield f"Checkpoint {checkpoint.id} (micro-batches {batches}, {rows} rows) is decided, but not settled:"
            yield (
                "  its rows that are not committed are LOST."
                if claim
                else "  the original query commits its rows; the copy does not."
            )
        for record in ledger.undecided():
            rows = sum(part.rows for part in record.parts)
            yield f"Micro-batch {record.batch} ({rows} rows) is prepared, but in no checkpoint yet:"
            if record.batch > committed:
                yield "  its rows are written again."
            elif claim:
                yield "  its prepared rows are aborted, and LOST."
            else:
                yield "  the original query commits its rows; the copy does not."

    def _apart(self) -> Iterator[str]:
        """Yield sentences about the rows of micro-batches for which the journal and Spark's logs differ."""
        ledger, committed = self.ledger, self.committed
        if ledger.accounted > committed:
            again = f"{committed + 1} to {ledger.accounted}"
            yield f"Micro-batches {again} were written before. They are written AGAIN: their rows are DUPLICATED."
        if ledger.accounted == committed and not self._same_sources():
            back = (
                " Or run `barrier recover LOCATION`: it puts the recorded file back."
                if committed in ledger.logs
                else ""
            )
            yield f"offsets/{committed} differs from the journal's record: rows between the two are LOST, or DUPLICATED.{back}"
        if self._claim and ledger.accounted < committed:
            yield (
                f"Micro-batches {ledger.accounted + 1} to {committed} count as written, but the journal does not contain them."
            )

    def _agrees(self) -> bool:
        """Return whether the journal and Spark's logs agree."""
        return self.committed <= self.ledger.accounted <= self.committed + 1 and self._same_sources()

    def _same_sources(self) -> bool:
        """Return whether Spark's offset file of the journal's last micro-batch matches the journal's record."""
        last = self.ledger.accounted
        record = self.ledger.batches.get(last)
        try:
            return record is None or sources_digest(source_lines(self._location, last)) == record.sources
        except LocationError:
            return False
