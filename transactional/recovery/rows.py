"""Functions that compare the rows of a replay with the recorded rows."""

from __future__ import annotations

from collections.abc import Sequence

from transactional.checkpoint import Acknowledgement, ExpectedPart, Part
from transactional.digest import ENCODING_VERSION, other_encodings
from transactional.errors import JournalError, ProtocolError, ReplayMismatchError
from transactional.ledger import PartRecord


def check_rows(batch: int, what: str, recorded: PartRecord | ExpectedPart, read: Part) -> None:
    """Check that a task of a replay produced the recorded rows. `what` describes the rows in the error message.

    If the digests have different encodings, they can't be compared, which is also an error.
    """
    if (read.rows, read.bytes, read.digest) == (recorded.rows, recorded.bytes, recorded.digest):
        return
    others = other_encodings([recorded.digest])
    if others and read.rows == recorded.rows:  # another release wrote the record
        what, found = f"The digest of {what} of micro-batch {batch}", f"encoding {others.pop()}"
        raise JournalError("FORMAT_UNKNOWN", what=what, found=found, known=f"encoding {ENCODING_VERSION}")
    raise mismatch(batch, what, _text(recorded), _text(read))


def _text(part: PartRecord | ExpectedPart | Part) -> str:
    return f"{part.rows} rows of {part.bytes} bytes with the digest {part.digest}"


def check_encodings(messages: Sequence[Acknowledgement], batch: int) -> None:
    """Check that all tasks used this release's digest encoding, because replays are compared in this encoding."""
    others = other_encodings(part.digest for message in messages for part in message.parts)
    if others:
        reason = (
            f"the tasks of micro-batch {batch} ran under different releases of this package (the driver has digest encoding "
            f"{ENCODING_VERSION}, tasks have {', '.join(sorted(others))}). Install one release on the driver and all executors"
        )
        raise ProtocolError("PROTOCOL_VIOLATED", reason=reason)


def mismatch(batch: int, what: str, recorded: object, found: object) -> ReplayMismatchError:
    """Return the error for a replay whose rows differ from the recorded rows. No row of the replay is committed."""
    return ReplayMismatchError("REPLAY_DIFFERS", batch=batch, what=what, recorded=str(recorded), found=str(found))
