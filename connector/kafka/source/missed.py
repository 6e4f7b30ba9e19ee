"""Rows removed after their micro-batch was planned (``failOnDataLoss=false``): they are found and recorded. *Driver*.

A micro-batch's offsets are written before its tasks run. So offsets that its tasks, or its replay, could not read are logged
when they are found, and recorded in the end offset of the next micro-batch (`SourceOffset.missed`): in ``offsets/N``, in the
journal, and in Spark's progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from connector.kafka.client.topics import Partition
from connector.kafka.source.data_loss import log
from connector.kafka.source.offsets import Loss, Positions, Reason, SourceOffset
from connector.kafka.source.ranges import OffsetRange, ranges_between

__all__ = ["Missed", "MissedRanges", "expired_since", "not_left", "together"]

Missed = Mapping[Partition, tuple[Loss, ...]]
"""See `SourceOffset.missed`."""


def not_left(ranges: Sequence[OffsetRange], left: Sequence[OffsetRange], lost: Mapping[Partition, Loss]) -> Missed:
    """Return the offsets that `narrow` has cut off. Pure.

    Parameters
    ----------
    ranges, left : Sequence[OffsetRange]
        Before and after, in the same order.
    lost : Mapping[Partition, Loss]
        The reasons.
    """
    missed: dict[Partition, tuple[Loss, ...]] = {}
    for whole, part in zip(ranges, left, strict=True):
        # An empty part lies at either end of its range: nothing of it is left.
        cuts = [(whole.start, whole.end)] if not len(part) else [(whole.start, part.start), (part.end, whole.end)]
        for first, last in cuts:
            if first < last:
                loss = Loss(first, last, lost[whole.partition].reason)
                missed[whole.partition] = _joined(missed.get(whole.partition, ()), loss)
    return missed


def expired_since(ranges: Sequence[OffsetRange], earliest: Positions) -> Missed:
    """Return the offsets that retention has removed from ranges since they were planned. Pure.

    Parameters
    ----------
    ranges : Sequence[OffsetRange]
    earliest : Positions
        The first row that is left, of those partitions that exist.
    """
    missed: dict[Partition, tuple[Loss, ...]] = {}
    for part in ranges:
        first = min(earliest.get(part.partition, 0), part.end)
        if first > part.start:
            loss = Loss(part.start, first, Reason.EXPIRED)
            missed[part.partition] = _joined(missed.get(part.partition, ()), loss)
    return missed


def together(one: Missed, other: Missed) -> Missed:
    """Merge two records of missed offsets, in order of partition and offset, each loss once."""
    merged: dict[Partition, tuple[Loss, ...]] = {}
    for partition in sorted({*one, *other}):
        for loss in sorted([*one.get(partition, ()), *other.get(partition, ())], key=lambda known: known.position):
            merged[partition] = _joined(merged.get(partition, ()), loss)
    return merged


def _joined(losses: tuple[Loss, ...], loss: Loss) -> tuple[Loss, ...]:
    """Add a loss, which continues an earlier one of its kind, lies within it, or stands alone."""
    end = loss.resumes or 0
    for number, earlier in enumerate(losses):
        if earlier.reason is loss.reason and earlier.position <= loss.position <= (earlier.resumes or 0):
            longer = replace(earlier, resumes=max(earlier.resumes or 0, end))
            return (*losses[:number], longer, *losses[number + 1 :])
    return (*losses, loss)


class MissedRanges:
    """The ranges of the last tasks, and the missed offsets of earlier ones that are not recorded yet."""

    def __init__(self) -> None:
        self._running: Sequence[OffsetRange] | None = None
        self._missed: Missed = {}
        self._offered: Missed = {}

    def plan(self, ranges: Sequence[OffsetRange]) -> None:
        """Record the ranges of the tasks that run next."""
        self._running = [part for part in ranges if len(part)]

    def narrow(
        self, ranges: Sequence[OffsetRange], left: Sequence[OffsetRange], lost: Mapping[Partition, Loss]
    ) -> None:
        """Record and log what a replay does not read. Spark may plan it several times: a source can be in a plan twice."""
        missed = not_left(ranges, left, lost)
        known, self._missed = self._missed, together(self._missed, missed)
        if self._missed != known:
            _warn(missed, "its replay does not read them")

    def to_look_at(self, before: SourceOffset) -> Sequence[OffsetRange]:
        """Return the ranges of the micro-batch that ended at `before`; none once `look` was called for it."""
        if self._running is not None:
            return self._running
        return ranges_between(before.start, before.topics) if before.may_miss else []

    def look(self, ranges: Sequence[OffsetRange], earliest: Positions) -> None:
        """Record and log what retention has removed from these ranges: their tasks may have skipped it.

        A task can't report to the driver. But a partition's begin only moves forward, so whatever a task has passed over
        lies before it now. Rows that were removed right after they were read count too.
        """
        gone = expired_since(ranges, earliest)
        if self._running is None:
            # An earlier run's micro-batch: since then retention may just have removed rows that were read.
            _warn(
                gone,
                "if that was before its tasks read them, their rows are lost; the former run's executors logged it",
            )
        else:
            _warn(gone, "rows that its tasks had not read by then are lost")
            self._missed = together(self._missed, gone)
        self._running = []

    def recorded(self, before: SourceOffset) -> None:
        """Forget the offered losses if `before`, the last end in the offset log, has recorded them."""
        if self._offered and before.missed == self._offered:
            self._missed = self._offered = {}

    def offer(self) -> Missed:
        """Return the losses that the next end offset has to record."""
        self._offered = self._missed
        return self._missed


def _warn(missed: Missed, why: str) -> None:
    for partition, losses in missed.items():
        for loss in losses:
            log.warning(
                "barrier-kafka: data loss (%s), and failOnDataLoss is false: %s: offsets [%s, %s) of a micro-batch, up to %d "
                "rows, were removed after it was planned: %s.",
                loss.reason.value,
                partition,
                loss.position,
                loss.resumes,
                (loss.resumes or 0) - loss.position,
                why,
            )
