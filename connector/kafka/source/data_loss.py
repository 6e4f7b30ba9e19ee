"""Rows that are gone before a query read them: what is found, and what ``failOnDataLoss`` makes of it.

*Driver*: `stand`, `resume` and `narrow` compare a query's position with what the brokers have. Rows that go after the planning
are recorded by `connector.kafka.source.missed`; what a task does then is in `connector.kafka.source.range_loss`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from connector.kafka.source.bounds import SHOWN
from connector.kafka.source.offsets import Loss, Partition, Positions, Reason, SetAside, SourceOffset
from connector.kafka.source.ranges import OffsetRange
from transactional.errors import LocationError, StoreError

__all__ = [
    "Standing",
    "check_joint",
    "lost_error",
    "narrow",
    "resume",
    "stand",
    "warn",
]

_log = logging.getLogger("connector.kafka.data_loss")

WAY_OUT: Final = (
    "Once it is clear what was lost, set failOnDataLoss to false for one run ({goes_on}), or start the query on a new "
    "checkpoint location."
)

_CONDITIONS: Final = {
    Reason.RECREATED: "TOPIC_RECREATED",
    Reason.GONE: "PARTITIONS_GONE",
    Reason.TRUNCATED: "OFFSETS_WENT_BACK",
    Reason.EXPIRED: "DATA_LOST",
}
"""Of several kinds, the first is told."""

_TOLD: Final = {
    Reason.EXPIRED: "rows were removed from the topic before the query read them ({partitions}): its retention overtook the "
    "query, or records were deleted.",
    Reason.TRUNCATED: "the topic ends before what was read already ({partitions}): it lost rows in an unclean leader election.",
    Reason.RECREATED: "{topics} was deleted and created again: the offsets in the checkpoint mean other rows now "
    "({partitions}).",
    Reason.GONE: "{partitions} can't be found any more; the checkpoint has been reading it. Was the topic deleted, or do the "
    "options name other topics than before?",
}

_GOES_ON: Final = {
    Reason.EXPIRED: "it reads on at the first row that is left",
    Reason.TRUNCATED: "it goes on at the end that is there",
    Reason.RECREATED: "the new topic is read from its first row",
    Reason.GONE: "it goes on without them",
}
"""What failOnDataLoss=false does."""


@dataclass(frozen=True)
class Standing:
    """Where a query stands in the partitions that are there now.

    Parameters
    ----------
    known : Positions
        The offset to read next of partitions that the query has read before.
    anew : tuple[Partition, ...]
        Partitions of topics that were deleted and created again.
    new : tuple[Partition, ...]
        Partitions that the query has not seen before.
    lost : Mapping[Partition, Loss]
        Partitions that are not read on: gone, or of a topic that was made anew.
    gone : Mapping[str, SetAside]
        See `SourceOffset.gone`.
    """

    known: Positions
    anew: tuple[Partition, ...]
    new: tuple[Partition, ...]
    lost: Mapping[Partition, Loss]
    gone: Mapping[str, SetAside]


def stand(before: SourceOffset, partitions: Sequence[Partition], ids: Mapping[str, str]) -> Standing:
    """Compare the last end with the partitions that are there. Pure.

    Parameters
    ----------
    before : SourceOffset
    partitions : Sequence[Partition]
        All that are there, in order.
    ids : Mapping[str, str]
        Their topics' ids.
    """
    there = frozenset(partitions)
    recreated = made_anew(before.ids, ids)
    known: dict[Partition, int] = {}
    lost: dict[Partition, Loss] = {}
    for partition, offset in before.topics.items():
        if partition.topic in recreated:
            lost[partition] = Loss(offset, None, Reason.RECREATED)
        elif partition in there:
            known[partition] = offset
        else:
            lost[partition] = Loss(offset, None, Reason.GONE)
    gone: dict[str, SetAside] = {}
    for topic, aside in before.gone.items():
        if topic not in ids:
            gone[topic] = aside
        elif aside.identity in ("", ids[topic]):
            back = {number for number in aside.positions if Partition(topic, number) in there}
            known.update({Partition(topic, number): aside.positions[number] for number in back})
            if back != set(aside.positions):  # another list of partitions is assigned
                kept = {number: offset for number, offset in aside.positions.items() if number not in back}
                gone[topic] = replace(aside, positions=kept)
    for partition, loss in lost.items():
        if loss.reason is Reason.GONE:
            identity = before.ids.get(partition.topic, "")
            aside = gone.get(partition.topic, SetAside(identity, {}))
            others = aside.positions if aside.identity == identity else {}
            gone[partition.topic] = SetAside(identity, {**others, partition.number: loss.position})
    return Standing(
        known=known,
        anew=tuple(partition for partition in partitions if partition.topic in recreated),
        new=tuple(p for p in partitions if p not in known and p.topic not in recreated),
        lost=lost,
        gone=gone,
    )


def resume(
    standing: Standing, earliest: Positions, latest: Positions
) -> tuple[dict[Partition, int], dict[Partition, Loss]]:
    """Where reading goes on, and what is lost by that. Pure.

    Parameters
    ----------
    standing : Standing
    earliest : Positions
        The first row that is left, of `Standing.anew`, and of those known partitions that have rows to read.
    latest : Positions
        Where reading could end, of all partitions that are there.

    Returns
    -------
    tuple[dict[Partition, int], dict[Partition, Loss]]
        The offset to read next of all partitions but new ones; the losses, those of `Standing.lost` among them.
    """
    positions, lost = dict(standing.known), dict(standing.lost)
    for partition, position in standing.known.items():
        if latest[partition] < position:
            lost[partition] = Loss(position, latest[partition], Reason.TRUNCATED)
        elif earliest.get(partition, 0) > position:
            lost[partition] = Loss(position, earliest[partition], Reason.EXPIRED)
    for partition in standing.anew:
        positions[partition] = earliest[partition]
        if partition in lost:
            lost[partition] = replace(lost[partition], resumes=earliest[partition])
    positions.update({p: loss.resumes for p, loss in lost.items() if p in positions and loss.resumes is not None})
    return {partition: positions[partition] for partition in sorted(positions)}, lost


def made_anew(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Topics with another id than before; one that is not there now is not among them."""
    return frozenset(topic for topic, identity in before.items() if now.get(topic, identity) != identity)


def narrow(
    ranges: Sequence[OffsetRange], unreadable: Collection[Partition], earliest: Positions, latest: Positions
) -> list[OffsetRange]:
    """Cut a replay's ranges to what is left. Pure.

    Ranges of which nothing is left stay, empty: the number and the order of the tasks are those of the first time, so
    that what a task has committed then is compared with that task's rows.

    Parameters
    ----------
    ranges : Sequence[OffsetRange]
    unreadable : Collection[Partition]
        Partitions of which nothing can be read.
    earliest, latest : Positions
        Of all other partitions.
    """
    found = []
    for each in ranges:
        if each.partition in unreadable:
            found.append(replace(each, end=each.start))
        else:
            start = min(max(each.start, earliest[each.partition]), each.end)
            found.append(OffsetRange(each.partition, start, max(start, min(each.end, latest[each.partition]))))
    return found


def lost_error(lost: Mapping[Partition, Loss]) -> StoreError:
    """The error of a loss, with the offsets involved.

    Parameters
    ----------
    lost : Mapping[Partition, Loss]
        At least one.
    """
    reason = next(each for each in _CONDITIONS if any(loss.reason is each for loss in lost.values()))
    of_it = {partition: loss for partition, loss in sorted(lost.items()) if loss.reason is reason}
    partitions = ", ".join(f"{p}: {_offsets(loss)}" for p, loss in list(of_it.items())[:SHOWN])
    topics = ", ".join(sorted({partition.topic for partition in of_it})[:SHOWN])
    told = _TOLD[reason].format(partitions=partitions, topics=topics)
    return StoreError(
        _CONDITIONS[reason],
        f"barrier-kafka: {told} {WAY_OUT.format(goes_on=_GOES_ON[reason])}",
        partitions=[str(partition) for partition in of_it],
        offsets={str(partition): loss.to_json() for partition, loss in of_it.items()},
    )


def warn(lost: Mapping[Partition, Loss], seen: Positions | None = None) -> None:
    """Log what is lost, a line per partition. *Driver*: it is in the log of the driver.

    Parameters
    ----------
    lost : Mapping[Partition, Loss]
    seen : Positions, optional
        Where the partitions ended when they were last looked at: rows that nobody can count any more.
    """
    for partition, loss in sorted(lost.items()):
        waiting = (seen or {}).get(partition, 0) - loss.position
        if loss.rows is not None:
            rows = f"up to {loss.rows} rows are lost"
        elif loss.reason is Reason.TRUNCATED:
            rows = "how many rows are lost, nobody can tell"
        else:
            rows = f"at least {max(0, waiting)} offsets that were seen are lost, and what came later"
        _log.warning(
            "barrier-kafka: data loss (%s), and failOnDataLoss is false: %s: %s: %s. %s.",
            loss.reason.value,
            partition,
            _offsets(loss),
            rows,
            "Nothing of it is read" if loss.resumes is None else f"Reading goes on at offset {loss.resumes}",
        )


def check_joint(before: Positions, after: SourceOffset) -> None:
    """A micro-batch begins where the one before it ended, or says what was lost between them.

    Raises
    ------
    LocationError
        ``OFFSETS_DISAGREE``.
    """
    apart = []
    for partition, ended in before.items():
        loss = after.lost.get(partition)
        expected = (ended, ended) if loss is None else (loss.position, loss.resumes)
        if expected != (ended, after.start.get(partition)):
            apart.append(partition)
    if apart:
        told = ", ".join(f"{p} (ended at {before[p]}, begins at {after.start.get(p)})" for p in sorted(apart)[:SHOWN])
        raise LocationError(
            "OFFSETS_DISAGREE",
            f"barrier-kafka: in the checkpoint's offset log, a micro-batch does not begin where the one before it "
            f"ended: {told}. Its files were edited, or mixed from two checkpoints: restore them, or "
            "start on a new location.",
            partitions=[str(partition) for partition in apart],
        )


def _offsets(loss: Loss) -> str:
    if loss.reason is Reason.EXPIRED:
        return f"offsets [{loss.position}, {loss.resumes})"
    if loss.reason is Reason.TRUNCATED:
        return f"read up to {loss.position}, ends at {loss.resumes}"
    return f"read up to {loss.position}"
