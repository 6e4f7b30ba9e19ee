"""What holds for batch writes, whose batches are versions that users number: they only grow, and may be left out."""

from __future__ import annotations

from collections.abc import Sequence

from transactional.checkpoint import Acknowledgement
from transactional.errors import FencedError, LocationError, ReplayMismatchError, RetriableError
from transactional.ledger import CheckpointRecord, Ledger

__all__ = ["check_origin", "check_overtaken", "check_rows", "check_version"]


def check_version(ledger: Ledger, version: int) -> None:
    """A version is new, or was written, or is so old that its record was forgotten. *At planning.*

    Raises
    ------
    RetriableError
        ``VERSION_LOST``: another one has to be written again first.
    LocationError
        ``VERSION_TOO_LOW``.
    """
    last = ledger.accounted
    if ledger.voided and version not in ledger.voided:
        raise RetriableError(
            "VERSION_LOST",
            f"what txnVersion {ledger.voided[0]} had prepared was lost: write it again before {version}",
            versions=ledger.voided,
        )
    if ledger.base < version < last and version not in ledger.batches:
        raise LocationError(
            "VERSION_TOO_LOW",
            f"txnVersion {version} was never written, and {last} was: versions only grow. Give these rows a number "
            f"above {last}",
            version=version,
            newest=last,
        )


def check_origin(ledger: Ledger, origin: str) -> None:
    """Versions of another streaming query are other rows under the same numbers. *At the commit: only tasks know it.*

    Raises
    ------
    LocationError
    """
    if ledger.origin not in ("", origin):
        raise LocationError(
            "VERSIONS_OF_ANOTHER_QUERY",
            f"txnVersions at this location are batch ids of the streaming query {ledger.origin}, and this write comes "
            f"from {origin or 'no streaming query'}: a new query starts its batch ids at 0 again, and what has a known "
            "number is not written. Give the new query's writes a txnAppId and a checkpointLocation of their own",
            recorded=ledger.origin,
            found=origin,
        )


def check_overtaken(ledger: Ledger, messages: Sequence[Acknowledgement], version: int) -> None:
    """Rows of a version that was new at planning are not dropped because a higher one was committed meanwhile.

    Raises
    ------
    FencedError
    """
    if not all(message.drained for message in messages):
        raise FencedError(
            "VERSION_OVERTAKEN",
            f"txnVersion {version} is not committed: {ledger.accounted} was meanwhile, and versions only grow. Write "
            "one version after the other, or each through a checkpointLocation of its own",
            batch=version,
        )


def check_rows(checkpoint: CheckpointRecord, messages: Sequence[Acknowledgement], version: int) -> None:
    """A version that was written is not written again: then it must be the same rows, as far as their number says.

    Raises
    ------
    ReplayMismatchError
    """
    rows = sum(message.part.rows for message in messages)
    if all(message.drained for message in messages) and rows != checkpoint.rows:
        raise ReplayMismatchError(
            "VERSION_HAS_OTHER_ROWS",
            f"txnVersion {version} was written with {checkpoint.rows} rows, and this write has {rows}: they are not "
            "written. Give other rows a new txnVersion; where the source of this version is not deterministic, nothing "
            "is lost: go on with the next",
            batch=version,
            recorded=checkpoint.rows,
            found=rows,
        )
