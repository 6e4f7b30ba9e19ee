"""What became of a transaction in each partition that it wrote into, and what that makes of the whole.

Partitions can differ: a marker from outside aborts one partition's part, an unclean leader election cuts rows off in one, a
broker skips the marker of one (KAFKA-20734).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.admin import Description
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin, Probe, StableEnd
from connector.kafka.client.partition_log import Ending
from connector.kafka.sink.handles import Place, Prepared, WrittenPartition
from transactional.sink import HandleState, Outcome

__all__ = [
    "Fate",
    "PartFate",
    "Whole",
    "ended_fates",
    "judge_ended",
    "judge_open",
    "margin_of",
    "open_fates",
    "state_from",
    "with_markers",
]

LONGEST_MARGIN_SECONDS: Final = 90.0
"""A decision needs min(this, a quarter of the timeout) left: time for the journal, the commit and a failover."""

MOST_NAMED: Final = 5
"""Partitions that one sentence names."""


class Fate(enum.Enum):
    """What became of a transaction's rows in one partition."""

    OPEN = "still open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    CUT = "cut off"
    GONE = "deleted with its topic, or by its age"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class PartFate:
    """A fate, and how it is known; `found` is how the partition's leader describes an open one."""

    part: WrittenPartition
    fate: Fate
    told: str = ""
    found: OpenTransaction | None = None

    @property
    def evidence(self) -> str:
        """How it is known, in words: nearly always nobody asks, of 40,000 parts of a wide checkpoint."""
        if self.told:
            return self.told
        if self.fate is Fate.COMMITTED:
            return f"{self.part} shows its rows before offset {self.part.offset}"
        since = "" if self.found is None else f" from offset {self.found.start}"
        return f"{self.part} has it open{since}"


@dataclass(frozen=True)
class Whole:
    """A transaction's state.

    Parameters
    ----------
    state : HandleState
    ongoing : bool
        The coordinator would still commit it, whatever is left of it.
    divided : bool
        Its partitions contradict each other: some of its rows can be read, others never will be.
    """

    state: HandleState
    ongoing: bool = False
    divided: bool = False


# -- asking the partitions ------------------------------------------------------------------------------------------------


def open_fates(partitions: PartitionAdmin, transactions: Sequence[Prepared]) -> list[list[PartFate]]:
    """Look at transactions that should be open: is each, in every partition, with all of its rows?"""
    opened = partitions.open_transactions({part.place for each in transactions for part in each.written})
    ends = _probe(partitions, transactions, together=True)
    return [
        [
            _without_rows(part, end) or _open_or_ended(partitions, each, part, opened)
            for part, (_, end) in zip(each.written, of_each, strict=True)
        ]
        for each, of_each in zip(transactions, ends, strict=True)
    ]


def ended_fates(
    partitions: PartitionAdmin,
    transactions: Sequence[Prepared],
    together: bool = False,
    ask_leaders: bool = True,
) -> list[list[PartFate]]:
    """Look at transactions that should have ended: what do `read_committed` readers see of each?

    Parameters
    ----------
    partitions : PartitionAdmin
    transactions : Sequence[Prepared]
    together : bool
        One look has found all of these open in every partition. Whatever has ended any of them stands behind the witnesses
        of all, so one question a partition is enough, at the last witness.
    ask_leaders : bool
        Whether to find out what holds a stable offset back; if not, it is taken for the transaction itself.
    """
    ends = _probe(partitions, transactions, together)
    held = {
        part.place
        for each, of_each in zip(transactions, ends, strict=True)
        for part, (offset, end) in zip(each.written, of_each, strict=True)
        if _without_rows(part, end) is None and end.stable <= offset
    }
    opened = partitions.open_transactions(held) if ask_leaders else {}

    def fate(transaction: Prepared, part: WrittenPartition, offset: int, end: StableEnd) -> PartFate:
        known = _without_rows(part, end)
        if known is not None:
            return known
        if end.stable <= offset and not ask_leaders:
            return PartFate(part, Fate.OPEN)
        if end.stable <= offset or end.aborted is None:
            return _open_or_ended(partitions, transaction, part, opened)
        # An earlier transaction of the producer ended before this one began, a later one begins behind the witness.
        first = [at for at in end.aborted.get(transaction.producer_id, ()) if at < part.offset]
        if first:
            return PartFate(part, Fate.ABORTED, f"{part} has its rows from offset {first[0]} among the aborted ones")
        return PartFate(part, Fate.COMMITTED)

    return [
        [fate(each, part, offset, end) for part, (offset, end) in zip(each.written, of_each, strict=True)]
        for each, of_each in zip(transactions, ends, strict=True)
    ]


def _probe(
    partitions: PartitionAdmin, transactions: Sequence[Prepared], together: bool
) -> list[list[tuple[int, StableEnd]]]:
    """The answer for each written partition of each transaction, with the offset that was asked about."""
    last: dict[tuple[str, str, int, int], int] = {}
    for part in (part for each in transactions for part in each.written) if together else ():
        key = (part.topic, part.topic_id, part.partition, part.leader_epoch)
        last[key] = max(part.offset, last.get(key, 0))
    asked: dict[tuple[str, str, int, int, int], int] = {}
    wanted: list[list[tuple[int, int]]] = []
    for each in transactions:
        of_each = []
        for part in each.written:
            key = (part.topic, part.topic_id, part.partition, part.leader_epoch)
            offset = last[key] if together else part.offset
            of_each.append((offset, asked.setdefault((*key, offset), len(asked))))
        wanted.append(of_each)
    probes = [Probe((name, number), identity, offset, epoch) for name, identity, number, epoch, offset in asked]
    ends = partitions.stable_ends(probes)
    return [[(offset, ends[index]) for offset, index in of_each] for of_each in wanted]


def _without_rows(part: WrittenPartition, end: StableEnd) -> PartFate | None:
    if end.gone:
        return PartFate(part, Fate.GONE, end.gone)
    if end.cut_at is not None and end.cut_at < part.offset:
        return PartFate(
            part,
            Fate.CUT,
            f"{part} lost its rows from offset {end.cut_at} to {part.offset} (an unclean leader election, or a broker that "
            "lost its disk)",
        )
    return None


def _open_or_ended(
    partitions: PartitionAdmin,
    transaction: Prepared,
    part: WrittenPartition,
    opened: Mapping[Place, Mapping[int, OpenTransaction]],
) -> PartFate:
    found = opened.get(part.place, {}).get(transaction.producer_id)
    # A later transaction of the producer begins behind the witness.
    if found is not None and found.start < part.offset:
        return PartFate(part, Fate.OPEN, found=found)
    return _by_marker(partitions, transaction, part)


def _by_marker(partitions: PartitionAdmin, transaction: Prepared, part: WrittenPartition) -> PartFate:
    verdict = partitions.search(transaction, part)
    fates = {Ending.COMMIT: Fate.COMMITTED, Ending.ABORT: Fate.ABORTED, Ending.UNKNOWN: Fate.UNKNOWN}
    return PartFate(part, fates[verdict.ending], verdict.evidence)


# -- judging the whole ----------------------------------------------------------------------------------------------------


def margin_of(timeout_ms: int) -> float:
    """Seconds that must be left of a transaction for a decision."""
    return min(LONGEST_MARGIN_SECONDS, timeout_ms / 4000)


def state_from(transaction: Prepared, description: Description | None, now: float) -> HandleState | None:
    """Return a transaction's state as its coordinator knows it; None if only the partitions can tell.

    Only states at the transaction's own epoch are trusted. At the next one `CompleteCommit` is ours as a rule, but also
    if somebody aborted ours by a version below 5 and the id's next owner committed.
    """
    if description is None:
        return None
    same = (description.producer_id, description.producer_epoch) == (
        transaction.producer_id,
        transaction.producer_epoch,
    )
    if not same:
        return None
    evidence = (
        f"coordinator: {description.state} at epoch {description.producer_epoch}, kafka.transaction.timeout.ms "
        f"{description.timeout_ms}"
    )
    if description.state == "Ongoing":
        left = (description.started_ms + description.timeout_ms) / 1000 - now
        return HandleState(Outcome.PREPARED, left, margin_of(description.timeout_ms), evidence)
    outcome = _ENDINGS.get(description.state)
    return HandleState(outcome, evidence=evidence) if outcome else None


_ENDINGS: Final = {
    "PrepareCommit": Outcome.COMMITTED,
    "CompleteCommit": Outcome.COMMITTED,
    "PrepareAbort": Outcome.LOST,
    "CompleteAbort": Outcome.LOST,
    "PrepareEpochFence": Outcome.LOST,
}


def judge_open(state: HandleState, fates: Sequence[PartFate]) -> Whole:
    """Judge a transaction that its coordinator calls open, and would commit: every partition has to have it open too."""
    wrong = [each for each in fates if each.fate is not Fate.OPEN]
    if not wrong:
        return Whole(state, ongoing=True)
    kinds = {each.fate for each in wrong}
    if Fate.COMMITTED in kinds:
        told = f"a marker from outside committed it in part: {_named(wrong)}; {state.evidence}"
        return Whole(HandleState(Outcome.UNKNOWN, evidence=told), ongoing=True, divided=True)
    outcome = Outcome.UNKNOWN if kinds & {Fate.GONE, Fate.UNKNOWN} else Outcome.LOST
    return Whole(HandleState(outcome, evidence=f"{_named(wrong)}; {state.evidence}"), ongoing=True)


def with_markers(
    partitions: PartitionAdmin,
    transaction: Prepared,
    description: Description | None,
    fates: Sequence[PartFate],
    now: float,
) -> Sequence[PartFate]:
    """Read the commit markers, unless the coordinator tells of the commit.

    A partition is called committed if no abort is listed there. Compaction takes aborted rows away, and later that list's
    entry: then only the marker itself is evidence, and where it is gone, too, nothing is.
    """
    if all(each.fate is not Fate.COMMITTED for each in fates):
        return fates
    trusted = state_from(transaction, description, now)
    word = trusted.outcome if trusted else _word_at_next_epoch(transaction, description, False)
    if word is Outcome.COMMITTED:
        return fates
    return [_by_marker(partitions, transaction, each.part) if each.fate is Fate.COMMITTED else each for each in fates]


def judge_ended(transaction: Prepared, description: Description | None, fates: Sequence[PartFate], now: float) -> Whole:
    """Judge a transaction that is not open at its coordinator, or that the coordinator does not know any more."""
    trusted = state_from(transaction, description, now)
    kinds = {each.fate for each in fates}
    word = trusted.outcome if trusted else None
    if word is None and kinds & {Fate.OPEN, Fate.CUT}:
        word = _word_at_next_epoch(transaction, description, Fate.ABORTED in kinds)
    seen = "unknown id" if description is None else f"{description.state} at epoch {description.producer_epoch}"

    def whole(outcome: Outcome, named: Iterable[PartFate], divided: bool = False) -> Whole:
        told = _named(named) or "no partition is known to have been written"
        if divided:
            told = f"it was committed in part only: {told}"
        return Whole(HandleState(outcome, evidence=f"{told}; coordinator: {seen}"), divided=divided)

    lost = [each for each in fates if each.fate in (Fate.ABORTED, Fate.CUT)]
    committed = [each for each in fates if each.fate is Fate.COMMITTED]
    if committed:
        against = lost or (trusted is not None and trusted.outcome is Outcome.LOST)
        if against:
            return whole(Outcome.UNKNOWN, [*lost, *committed], divided=True)
        return whole(Outcome.COMMITTED, committed[:1])
    if lost:
        if kinds == {Fate.ABORTED} or word is Outcome.LOST:
            return whole(Outcome.LOST, lost)
        if word is Outcome.COMMITTED:
            return whole(Outcome.UNKNOWN, fates, divided=True)
        readable = Fate.OPEN in kinds or Fate.ABORTED not in kinds
        return whole(Outcome.UNKNOWN if readable else Outcome.LOST, lost)
    return whole(word or Outcome.UNKNOWN, fates)


def _word_at_next_epoch(transaction: Prepared, description: Description | None, aborted: bool) -> Outcome | None:
    """What the coordinator says at the next epoch: that of ends by version 5, of time-outs, and of fencing.

    It counts if a partition has this transaction still open, or lost rows of it. Below version 5 it may be said of the id's
    next transaction, so it only confirms an abort that a partition shows.
    """
    ours = (transaction.producer_id, transaction.producer_epoch + 1)
    if description is None or (description.producer_id, description.producer_epoch) != ours:
        return None
    word = _ENDINGS.get(description.state)
    return word if transaction.end_version >= 5 or (aborted and word is Outcome.LOST) else None


def _named(fates: Iterable[PartFate]) -> str:
    told = [each.evidence for each in fates if each.evidence]
    more = f"; {len(told) - MOST_NAMED} more partitions" if len(told) > MOST_NAMED else ""
    return "; ".join(told[:MOST_NAMED]) + more
