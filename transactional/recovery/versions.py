"""What holds for batch writes, whose batches are versions that users number: they only grow, and may be left out."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping, Sequence

from transactional.checkpoint import Acknowledgement
from transactional.errors import (
    FencedError,
    LocationError,
    ReplayMismatchError,
    RetriableError,
    RewindRequiredError,
)
from transactional.ledger import BatchRecord, Ledger, Written

__all__ = [
    "check_origin",
    "check_overtaken",
    "check_target",
    "check_topics",
    "check_version",
    "check_written",
    "lost_version",
    "older_location",
]


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


def check_written(found: BatchRecord, messages: Sequence[Acknowledgement], version: int, compare: bool) -> None:
    """A version that the journal has is not written again: what its tasks hold must be what was written.

    Parameters
    ----------
    found : BatchRecord
        Of the version; decided.
    messages : Sequence[Acknowledgement]
    version : int
    compare : bool
        Whether the rows of tasks that wrote nothing have to be those that were written.

    Raises
    ------
    FencedError
        ``VERSION_OVERTAKEN``: its tasks wrote, and other transactions were decided meanwhile.
    ReplayMismatchError
        ``VERSION_HAS_OTHER_ROWS``
    """
    lost = {part.partition for part in found.parts if part.lost}
    parts = [message.part.to_json() for message in messages]
    if any(not message.drained and message.partition not in lost for message in messages):
        if found.written is None or found.written.frame != Written.of(parts).frame:
            raise FencedError(
                "VERSION_OVERTAKEN",
                f"txnVersion {version} is not committed by this write: another write of the same version was committed after "
                "this one had been planned. If both have the same rows, write it again: it is then compared, and left as it "
                "is. Else give these rows a number of their own, and write one version after the other",
                batch=version,
            )
        return
    if not compare or found.written is None or not all(message.drained for message in messages):
        return
    before, now = found.written, Written.of(parts)
    unknown = not (before.digest and now.digest)  # an older release encoded the rows in another way
    if before.rows == now.rows and (unknown or before.digest == now.digest):
        return
    differ = f"{now.rows} rows" if before.rows != now.rows else f"as many, of which some differ (digest {now.digest})"
    raise ReplayMismatchError(
        "VERSION_HAS_OTHER_ROWS",
        f"txnVersion {version} was written with {before.rows} rows (digest {before.digest or 'unknown'}), and this write has "
        f"{differ}: they are not written. Give other rows a new txnVersion. If they are the same rows, computed again by "
        "a plan that is not deterministic (a clock, random values, a table that has changed), the version is complete as "
        "it was first written: set the option txnCompareRows=false to leave it so and go on; in foreachBatch, too",
        batch=version,
        recorded=before.rows,
        found=now.rows,
        recordedDigest=before.digest,
        foundDigest=now.digest,
    )


def check_target(ledger: Ledger, identity: Mapping[str, str]) -> None:
    """A location's versions are those of one target: in a second one, what has a known number would not be written.

    Parameters
    ----------
    ledger : Ledger
    identity : Mapping[str, str]
        What the store says that it is now: `TwoPhaseCommitSink.identify`.

    Raises
    ------
    LocationError
    """
    former = ledger.newest_run
    if former is None or ledger.accounted < 0 or former.identity == identity:
        return
    changed = sorted(key for key in {*former.identity, *identity} if former.identity.get(key) != identity.get(key))
    told = "; ".join(
        f"{key} was {former.identity.get(key, 'not set')}, is {identity.get(key, 'not set')}" for key in changed
    )
    raise _another_target(ledger, told)


def check_topics(ledger: Ledger, targets: Collection[str]) -> None:
    """Rows of a write are in the topic that its run has recorded, if the topic is fixed: it may have been re-created since.

    Parameters
    ----------
    ledger : Ledger
    targets : Collection[str]
        Ids of the topics that the transactions have rows in.

    Raises
    ------
    LocationError
    """
    recorded = ledger.newest_run.identity.get("topicId") if ledger.newest_run else None
    if recorded is None:
        return
    others = sorted(each for each in targets if _one_spelling(each) != _one_spelling(recorded))
    if others:
        raise _another_target(ledger, f"topicId was {recorded}, is {', '.join(others)}")


def _one_spelling(identity: str) -> str:
    """Return a topic's id in base64, as targets have it: the runs of every release have recorded it as a UUID."""
    try:
        return base64.b64encode(uuid.UUID(identity).bytes).decode().rstrip("=")
    except ValueError:
        return identity


def _another_target(ledger: Ledger, told: str) -> LocationError:
    return LocationError(
        "LOCATION_OF_ANOTHER_TARGET",
        f"{ledger.location} is for writes to one target, and this is another ({told}): a version is written once per "
        "location, so what has a known txnVersion would not reach it. Nothing was written. Give each target its own "
        "checkpointLocation; also one that was deleted and created again",
        changed=told,
    )


def lost_version(problem: RewindRequiredError) -> RetriableError:
    """The error of a version whose transactions were lost after its decision, met by the write of another one.

    A batch write has no Spark log to rewind: whoever has the version's rows writes it again.
    """
    batches, checkpoint = problem.parameters["batches"], problem.parameters["checkpoint"]
    return RetriableError(
        "VERSION_LOST",
        f"transactions of txnVersion {batches[0]} (checkpoint {checkpoint}) were lost after it had been decided: write it "
        "again with the same rows, before any other. If nobody has these rows any more, `barrier resolve LOCATION` lists "
        "what can be accepted",
        versions=batches,
        checkpoint=checkpoint,
    )


def older_location(problem: LocationError) -> LocationError:
    """The error of an older copy of a location of batch writes, which has no Spark log that could be adopted."""
    evidence = problem.parameters["evidence"]
    return LocationError(
        "LOCATION_PUT_BACK",
        f"the output is further than this checkpointLocation: {evidence}, and the journal here does not know it. Nothing was "
        "written. Most likely the location is an older copy that was put back, and versions that it has forgotten would be "
        "written a second time. Put the newest copy of it back. If there is none, compare the output, and go on with the "
        "first version that it lacks, with a new checkpointLocation and a new transactionalIdPrefix (or none)",
        evidence=evidence,
    )
