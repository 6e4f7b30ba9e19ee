"""Comparison of a replay's rows with the recorded rows."""

from __future__ import annotations

from collections.abc import Sequence

from transactional.checkpoint import Acknowledgement, ExpectedPart, Part
from transactional.digest import encodings_of
from transactional.errors import JournalError, ProtocolError, ReplayMismatchError
from transactional.ledger import PartRecord


def check_rows(batch: int, what: str, recorded: PartRecord | ExpectedPart, read: Part) -> None:
    """Check that a task of a replay produced the recorded rows."""
    if (read.rows, read.bytes, read.digest) == (recorded.rows, recorded.bytes, recorded.digest):
        return
    if read.rows == recorded.rows:
        check_encoding(f"the digest of {what} of micro-batch {batch}", recorded.digest, read.digest)
    raise mismatch(batch, what, (recorded.rows, recorded.digest), (read.rows, read.digest))


def check_encodings(messages: Sequence[Acknowledgement], batch: int) -> None:
    """Check that all tasks of a micro-batch used the same digest encoding. Otherwise no replay could be compared with them."""
    encodings = encodings_of(part.digest for message in messages for part in message.parts)
    if len(encodings) > 1:
        reason = (
            f"the tasks of micro-batch {batch} ran under different releases of this package (digest encodings "
            f"{', '.join(sorted(str(encoding or 'unknown') for encoding in encodings))}). Install one release on the driver "
            "and on all executors"
        )
        raise ProtocolError("PROTOCOL_VIOLATED", reason=reason)


def check_encoding(what: str, recorded: str, found: str) -> None:
    """Check that two digests use the same encoding: digests in different encodings can't be compared.

    The plan of a micro-batch gives the recorded encoding to its tasks. So the tasks use a different encoding only if a newer
    release wrote the record, or if the tasks ran under an older release than the driver.
    """
    before, now = (digest.partition(":")[0] if ":" in digest else "" for digest in (recorded, found))
    if before and now and before != now:
        raise JournalError("FORMAT_UNKNOWN", what=what, found=f"encoding {before}", known=f"encoding {now}")


def mismatch(batch: int, what: str, recorded: object, found: object) -> ReplayMismatchError:
    """Return the error for a replay that differs from the record. No row of the replay is committed."""
    return ReplayMismatchError("REPLAY_DIFFERS", batch=batch, what=what, recorded=str(recorded), found=str(found))
