"""Errors and warnings about rows that were lost before a query read them. Used on the driver.

The module `standing` finds such losses when a micro-batch is planned. If rows are removed later, the task that should read
them handles the loss, in `connector.kafka.source.reading.range_loss`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from connector.kafka.client.topics import SHOWN, Partition
from connector.kafka.source.offsets import Loss, Positions, Reason, SourceOffset
from transactional.errors import LocationError, StoreError

log = logging.getLogger("connector.kafka.data_loss")
"""Logs every loss as a warning. The logger's name is documented for users."""

_ORDER: Final = (Reason.RECREATED, Reason.GONE, Reason.TRUNCATED, Reason.EXPIRED)
"""If losses have several reasons, the reason that comes first here is reported."""

_MESSAGES: Final = {
    Reason.EXPIRED: "rows were removed from the topic before the query read them ({partitions}). Either the topic's "
    "retention is too short (make it longer than the query's longest stop), or records were deleted",
    Reason.TRUNCATED: "the topic ends before the query's position ({partitions}): an unclean leader election lost rows",
    Reason.RECREATED: "{topics} was deleted and created again, so the offsets in the checkpoint now refer to different rows "
    "({partitions})",
    Reason.GONE: "partitions that the query has read can no longer be found ({partitions}): the topic was deleted, or the "
    "options now select different topics",
}

_EFFECTS: Final = {
    Reason.EXPIRED: "then continues at the first remaining row",
    Reason.TRUNCATED: "then continues at the topic's end",
    Reason.RECREATED: "then reads the new topic from its first row",
    Reason.GONE: "then continues without them",
}
"""Reason → how a query with failOnDataLoss=false continues."""


def lost_error(lost: Mapping[Partition, Loss]) -> StoreError:
    """Return the error for lost rows, with the offsets involved."""
    reason = next(kind for kind in _ORDER if any(loss.reason is kind for loss in lost.values()))
    of_it = {partition: loss for partition, loss in sorted(lost.items()) if loss.reason is reason}
    partitions = ", ".join(f"{p}: {_offsets(loss)}" for p, loss in list(of_it.items())[:SHOWN])
    topics = ", ".join(sorted({partition.topic for partition in of_it})[:SHOWN])
    return StoreError(
        "DATA_LOST",
        reason=_MESSAGES[reason].format(partitions=partitions, topics=topics),
        effect=_EFFECTS[reason],
        kind=reason.value,
        partitions=[str(partition) for partition in of_it],
        offsets={str(partition): loss.to_json() for partition, loss in of_it.items()},
    )


def warn(lost: Mapping[Partition, Loss], seen: Positions | None = None) -> None:
    """Log losses, one line per partition. `seen` has the partitions' last known ends."""
    for partition, loss in sorted(lost.items()):
        waiting = (seen or {}).get(partition, 0) - loss.position
        if loss.rows is not None:
            rows = f"up to {loss.rows} rows are lost"
        elif loss.reason is Reason.TRUNCATED:
            rows = "the number of lost rows is unknown"
        else:
            rows = f"at least {max(0, waiting)} offsets that were seen, and any later ones, are lost"
        log.warning(
            "barrier-kafka: data was lost (%s), but failOnDataLoss is false, so the query continues. %s, %s: %s. %s.",
            loss.reason.value,
            partition,
            _offsets(loss),
            rows,
            "The query no longer reads this partition"
            if loss.resumes is None
            else f"Reading continues at offset {loss.resumes}",
        )


def check_joint(before: Positions, after: SourceOffset) -> None:
    """Check that a micro-batch begins where the previous one ended, or that it records the rows lost in between."""
    disagreeing = []
    for partition, ended in before.items():
        loss = after.lost.get(partition)
        expected = (ended, ended) if loss is None else (loss.position, loss.resumes)
        if expected != (ended, after.start.get(partition)):
            disagreeing.append(partition)
    if disagreeing:
        shown = ", ".join(
            f"{p} (ended at {before[p]}, begins at {after.start.get(p)})" for p in sorted(disagreeing)[:SHOWN]
        )
        raise LocationError(
            "OFFSETS_DISAGREE",
            reason=f"a micro-batch does not begin where the previous one ended: {shown}",
            partitions=[str(partition) for partition in disagreeing],
        )


def _offsets(loss: Loss) -> str:
    if loss.reason is Reason.EXPIRED:
        return f"offsets [{loss.position}, {loss.resumes})"
    if loss.reason is Reason.TRUNCATED:
        return f"read up to {loss.position}, ends at {loss.resumes}"
    return f"read up to {loss.position}"
