"""A channel: the marks of one barrier topic, in their order, for a query that follows the topic."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connector.kafka.client.topics import Partition
from connector.kafka.marks.cuts import Lineage
from connector.kafka.marks.mark import Mark
from transactional.checkpoint import CheckpointMark
from transactional.errors import StoreError

Ends = Mapping[Partition, int]


@dataclass(frozen=True)
class Passed:
    """The last mark of a barrier topic up to which a query has read all rows. The query's offsets store it."""

    query: str  # The query that wrote the mark.
    checkpoint: int
    offset: int  # The offset of the mark's record in the barrier topic.
    lineage: Lineage

    def to_json(self) -> dict[str, Any]:
        """Return the mark as the offset log stores it."""
        lineage = dict(sorted(self.lineage.items()))
        return {"checkpoint": self.checkpoint, "lineage": lineage, "offset": self.offset, "query": self.query}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Passed:
        """Parse the result of `to_json`."""
        lineage = {origin: int(barrier) for origin, barrier in value["lineage"].items()}
        return cls(str(value["query"]), int(value["checkpoint"]), int(value["offset"]), lineage)


@dataclass(frozen=True)
class Followed:
    """A mark that a query has not passed yet. Its offsets, perhaps thousands, are parsed only when they are needed."""

    topic: str  # The barrier topic.
    offset: int  # The offset of the mark's record in the barrier topic.
    checkpoint: CheckpointMark
    value: bytes  # The value of the mark's record.
    seen: int  # When the record was read, in milliseconds since the epoch.
    reads: frozenset[str] | None = None  # The topics that the source reads; None for all topics of the mark.

    @property
    def lineage(self) -> Lineage:
        """Origin (a query or topic at which barriers begin) → the number of its newest barrier in the mark's checkpoint."""
        return self.checkpoint.lineage

    @property
    def timestamp(self) -> int:
        """The time at which the mark's checkpoint was decided, in milliseconds since the epoch."""
        return self.checkpoint.timestamp

    @property
    def ends(self) -> Ends:
        """The offset that the mark names for each partition that the source reads."""
        return _read(Mark.from_json(self.value, _where(self.topic, self.offset)).ends, self.reads)

    @property
    def passed(self) -> Passed:
        """The mark as the query's offsets store it, once the query has read all rows up to the mark."""
        mark = self.checkpoint
        return Passed(mark.query, mark.checkpoint, self.offset, mark.lineage)


def marks_within(marks: Sequence[Followed], positions: Ends) -> int:
    """Return how many of these marks are reached: in every partition, the position is at or after the mark's offset.

    These are always the first marks, because a mark's offsets are never lower than those of an earlier mark (`Channel.add`).
    """
    if not marks or not _within(marks[0], positions):  # usually there is only one mark, or none is passed
        return 0
    return bisect_left(marks, 1, lo=1, key=lambda mark: int(not _within(mark, positions)))


def marks_before(marks: Sequence[Followed], positions: Ends) -> int:
    """Return how many of these marks the query has overtaken: in at least one partition, it has read past the mark's offset.

    These are always the first marks, because a mark's offsets are never lower than those of an earlier mark.
    """

    def is_at_or_behind(mark: Followed) -> bool:
        ends = mark.ends
        return all(ends.get(partition, 0) >= offset for partition, offset in positions.items())

    if not marks or is_at_or_behind(marks[0]):
        return 0
    return bisect_left(marks, 1, lo=1, key=lambda mark: int(is_at_or_behind(mark)))


def _read(ends: Ends, reads: frozenset[str] | None) -> Ends:
    return ends if reads is None else {partition: end for partition, end in ends.items() if partition.topic in reads}


def _within(mark: Followed, positions: Ends) -> bool:
    return all(end <= positions.get(partition, 0) for partition, end in mark.ends.items())


class Channel:
    """The marks of one barrier topic, beginning with the last mark that a query has passed.

    Parameters
    ----------
    topic : str
        The barrier topic.
    at : Passed or None
        The last mark that the query has passed; None if it has passed none.
    begin : Ends
        The query's positions in the topics that the marks describe. If `at` is None, the channel begins with the first mark
        that is at or after the query's position in every partition, and skips earlier marks.
    reads : frozenset[str], optional
        The topics that the source reads, if other sources of the query read the rest. By default, the source reads all
        topics. With `reads`, no mark is skipped, because another source may begin there.
    tail : bool
        Whether the caller needs only the newest marks, to find the newest cut. In that case, a mark that does not
        follow the previous mark raises no ``MARKS_DISAGREE``: the channel drops the earlier marks, and begins again
        with this mark.

    Attributes
    ----------
    ahead : list[Followed]
        The marks after `at`, in order, but only those at which the query can stop (`CheckpointMark.exact`).
    newest : Passed or None
        The newest mark of the channel, exact or not.
    is_exact : bool
        Whether the query can stop at `newest`.
    ids : Mapping[str, str]
        The id of each topic that the newest mark describes, by the topic's name.
    at_ends : Ends or None
        For each partition, the offset that the mark `at` names: the checkpoint's rows are before it. None if this channel has
        not read the mark's record.
    size : int
        The total size of the marks in `ahead`, in bytes.
    """

    def __init__(
        self, topic: str, at: Passed | None, begin: Ends, *, reads: frozenset[str] | None = None, tail: bool = False
    ) -> None:
        self.topic, self.at, self.newest = topic, at, at
        self.ahead: list[Followed] = []
        self.ids: Mapping[str, str] = {}
        self.at_ends: Ends | None = None
        self.is_exact = True
        self.size = 0
        self._begin, self._searching, self._tail = begin if reads is None else {}, at is None, tail
        self._reads = reads
        self._last: Ends = {}
        self._seen: dict[int, int] = {}

    def add(self, offset: int, value: bytes | None, now: int = 0) -> None:
        """Add the barrier topic's next record, read at time `now` (milliseconds since the epoch).

        Raise ``MARKS_DISAGREE`` if the record does not follow the marks before it.
        """
        mark = Mark.from_json(value, _where(self.topic, offset))
        followed = Followed(self.topic, offset, mark.checkpoint, value or b"", now, self._reads)
        newest, new = self.newest, mark.checkpoint
        if newest is not None and new.query != newest.query:
            raise disagree(self.topic, f"it has marks of two queries, {newest.query} and {new.query}")
        if self.at is not None and offset == self.at.offset:
            self._read_again(self.at, mark)
            return
        if newest is not None and new.checkpoint <= newest.checkpoint:
            self._check_repeated(new, newest)
            return  # written again by a recovery: the first one counts
        self._seen[new.checkpoint] = new.after
        if self._searching and any(end < self._begin.get(partition, 0) for partition, end in mark.ends.items()):
            self.newest, self.ids = followed.passed, mark.ids
            return
        problem = None if self._searching and self._is_here(mark) else self._problem(mark)
        if problem is not None and not self._tail:
            raise disagree(self.topic, problem)
        if problem is not None:
            self.ahead, self.size = [], 0
        self._searching = False
        self.newest, self.ids, self._last, self.is_exact = followed.passed, mark.ids, mark.ends, new.exact
        if new.exact:
            self.ahead.append(followed)
            self.size += len(followed.value)

    def _read_again(self, at: Passed, mark: Mark) -> None:
        """Set the offsets and topic ids of the last passed mark `at`, which does not store them. `mark` is its record."""
        new = mark.checkpoint
        if new.checkpoint != at.checkpoint:
            reason = (
                f"offset {at.offset} has the mark of checkpoint {new.checkpoint}, but it had the mark of checkpoint "
                f"{at.checkpoint} when this query read it: the topic was deleted and created again"
            )
            raise disagree(self.topic, reason)
        self.at_ends, self.ids, self._last = _read(mark.ends, self._reads), mark.ids, mark.ends

    def _check_repeated(self, new: CheckpointMark, newest: Passed) -> None:
        if self._seen and min(self._seen) < new.checkpoint and self._seen.get(new.checkpoint) != new.after:
            raise disagree(
                self.topic,
                f"the mark of checkpoint {new.checkpoint} of {new.query} comes after the mark of checkpoint "
                f"{newest.checkpoint}",
            )

    def _is_here(self, mark: Mark) -> bool:
        """Return whether the query's positions are exactly at this mark."""
        return all(end == self._begin.get(partition, 0) for partition, end in mark.ends.items())

    def _problem(self, mark: Mark) -> str | None:
        """Return why a mark does not follow the mark before it; None if it does."""
        newest, new = self.newest, mark.checkpoint
        if new.restarted:
            return (
                f"after checkpoint {new.after}, the query {new.query} was rewound with --allow-reemit, and wrote rows again "
                "that this query may already have read"
            )
        if any(self.ids.get(topic, identity) != identity for topic, identity in mark.ids.items()):
            return f"topics that the marks name were deleted and created again: {', '.join(sorted(mark.ids))}"
        back = sorted(partition for partition, end in self._last.items() if mark.ends.get(partition, 0) < end)
        if back:
            return f"the mark of checkpoint {new.checkpoint} has a lower offset in {back[0]} than the mark before it"
        if newest is None:
            return None
        if new.after != newest.checkpoint:
            return (
                f"checkpoint {new.checkpoint} of {new.query} follows checkpoint {new.after}, but the mark before it is of "
                f"checkpoint {newest.checkpoint}: marks are missing, most likely because retention removed them"
            )
        for origin, barrier in newest.lineage.items():
            now = new.lineage.get(origin)
            if now is None or now < barrier:
                found = "does not name this origin" if now is None else f"contains only barrier {now}"
                return (
                    f"checkpoint {newest.checkpoint} of {new.query} contains barrier {barrier} of {origin}, but checkpoint "
                    f"{new.checkpoint} {found}"
                )
        return None

    def pass_to(self, at: Passed) -> bool:
        """Make `at` the last passed mark, and return True.

        If `at` is not in `ahead`, return False: the caller has to read the barrier topic again.
        """
        if self.at == at:
            return True
        for index, followed in enumerate(self.ahead):
            if followed.checkpoint.checkpoint == at.checkpoint:
                self.at, self.at_ends = at, followed.ends
                self.size -= sum(len(mark.value) for mark in self.ahead[: index + 1])
                del self.ahead[: index + 1]
                return True
        return False


def disagree(topic: str, reason: str) -> StoreError:
    """Return the error for a barrier topic whose marks a query can't follow."""
    return StoreError("MARKS_DISAGREE", topic=topic, reason=reason)


def _where(topic: str, offset: int) -> str:
    return f"{topic}, offset {offset}"
