"""Rules for batch writes. The user gives each write a version. Versions must increase, but may skip numbers."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping, Sequence

from transactional.checkpoint import Acknowledgement
from transactional.digest import ENCODING_VERSION
from transactional.errors import (
    FencedError,
    JournalError,
    LocationError,
    ReplayMismatchError,
    RetriableError,
    RewindRequiredError,
)
from transactional.ledger import BatchRecord, Ledger, Written


def check_version(ledger: Ledger, version: int, compare: bool) -> None:
    """Check that a version is new or was already written.

    The journal keeps the records of the last versions only. If the user has set ``txnCompareRows`` to false (`compare`), a
    version that is older than these counts as written. *Called at each planning.*
    """
    last = ledger.accounted
    if ledger.voided and version not in ledger.voided:
        raise RetriableError("VERSION_LOST", version=ledger.voided[0], versions=ledger.voided, detail="")
    if version > last or version in ledger.batches:
        return
    is_kept = version > ledger.base
    if is_kept or compare:
        missing = (
            f"the journal only has records of versions above {ledger.base}, so it can't show if this one was written"
        )
        reason = f"version {last} was already written, and versions must increase" if is_kept else missing
        raise LocationError("VERSION_TOO_LOW", version=version, newest=last, reason=reason)


def check_origin(ledger: Ledger, origin: str) -> None:
    """Raise if the recorded versions are batch ids of one streaming query, and this write's version is not (`origin` differs).

    Another query uses the same batch ids for other rows. *Called at the commit, because only the tasks know the query's id.*
    """
    if ledger.origin not in ("", origin):
        found = origin or "outside of a streaming query"
        raise LocationError("VERSIONS_OF_ANOTHER_QUERY", recorded=ledger.origin, found=found)


def check_overtaken(ledger: Ledger, messages: Sequence[Acknowledgement], version: int) -> None:
    """Raise if a version was new when it was planned, but a higher version has since been committed."""
    if not all(message.drained for message in messages):
        reason = f"version {ledger.accounted} was committed in the meantime, and versions must increase"
        raise FencedError("VERSION_OVERTAKEN", reason=reason, batch=version)


def check_written(found: BatchRecord, messages: Sequence[Acknowledgement], version: int, compare: bool) -> None:
    """Check that a repeated write of a version has the same rows as the first write.

    If `compare` (the value of ``txnCompareRows``) is false, the rows are not compared. Also raise if another write of
    the version was committed after this one was planned.
    """
    lost = {part.partition for part in found.parts if part.lost}
    parts = [part.to_json() for message in messages for part in message.parts]
    if any(not message.drained and message.partition not in lost for message in messages):
        if found.written is None or found.written.frame != Written.of(parts).frame:
            reason = "another write of the same version was committed after this one was planned"
            raise FencedError("VERSION_OVERTAKEN", reason=reason, batch=version)
        return
    if not compare or found.written is None or not all(message.drained for message in messages):
        return
    before, now = found.written, Written.of(parts)
    if all(_alike(version, *each) for each in _by_route(before, now)):
        return
    raise ReplayMismatchError(
        "VERSION_HAS_OTHER_ROWS",
        batch=version,
        recorded=before.rows,
        found=now.rows,
        recordedDigest=before.digest,
        foundDigest=now.digest,
    )


def _by_route(before: Written, now: Written) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    if not (before.routes or now.routes):
        return [((before.rows, before.digest), (now.rows, now.digest))]
    nothing = (0, "")
    return [
        (before.routes.get(route, nothing), now.routes.get(route, nothing)) for route in {*before.routes, *now.routes}
    ]


def _alike(version: int, before: tuple[int, str], now: tuple[int, str]) -> bool:
    (rows, digest), (read, found) = before, now
    if rows != read:
        return False
    if rows and not digest:
        what, known = f"The digest of txnVersion {version}", f"encoding {ENCODING_VERSION}"
        raise JournalError("FORMAT_UNKNOWN", what=what, found="another encoding", known=known)
    return not rows or digest == found


def check_target(ledger: Ledger, identity: Mapping[str, str]) -> None:
    """Check that all versions of a location go to the same target.

    Otherwise a version that the journal already has would not be written to the second target.
    """
    former = ledger.newest_run
    if former is None or ledger.accounted < 0 or former.identity == identity:
        return
    changed = sorted(key for key in {*former.identity, *identity} if former.identity.get(key) != identity.get(key))
    changes = [
        f"{key} was {former.identity.get(key, 'not set')}, is now {identity.get(key, 'not set')}" for key in changed
    ]
    raise _other_target(ledger, "; ".join(changes))


def check_topics(ledger: Ledger, targets: Collection[str], route: str = "") -> None:
    """If the run recorded a topic id, check that a write's rows are in this topic, not in a re-created one."""
    changed = other_topics(ledger, targets, route)
    if changed:
        raise _other_target(ledger, changed)


def other_topics(ledger: Ledger, targets: Collection[str], route: str = "") -> str:
    """Return a description of how the topics in `targets` differ from the recorded topic; empty if they don't."""
    recorded = ledger.newest_run.identified("topicId", route) if ledger.newest_run else None
    others = sorted(each for each in targets if recorded and _one_spelling(each) != _one_spelling(recorded))
    return f"{route and f'{route}.'}topicId was {recorded}, is now {', '.join(others)}" if others else ""


def _other_target(ledger: Ledger, changed: str) -> LocationError:
    reason = f"all versions of a location must go to the same target, but this write has a different target ({changed})"
    return LocationError("LOCATION_TAKEN", location=ledger.location, reason=reason)


def _one_spelling(identity: str) -> str:
    """Return a topic's id in base64, as a sink's `targets` returns it. Runs record the id as a UUID."""
    try:
        return base64.b64encode(uuid.UUID(identity).bytes).decode().rstrip("=")
    except ValueError:
        return identity


def lost_version(problem: RewindRequiredError) -> RetriableError:
    """Return the error for a batch write that can't start, because transactions of an earlier, decided version are lost.

    A batch write has no logs to rewind, so the user has to write the lost version again.
    """
    batches, checkpoint = problem.parameters["batches"], problem.parameters["checkpoint"]
    detail = f" after checkpoint {checkpoint} had been decided"
    return RetriableError("VERSION_LOST", version=batches[0], versions=batches, checkpoint=checkpoint, detail=detail)
