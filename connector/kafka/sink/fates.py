"""Determine the outcome of a transaction in each partition that it wrote to (its fate there), and from these its state.

The fates can differ. In a single partition, another program's marker can abort the transaction, an unclean leader election
can cut off rows, or a broker can skip the marker (KAFKA-20734).
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from connector.kafka.client.admin import Description
from connector.kafka.client.partition_admin import OpenTransaction, PartitionAdmin, StableEnd
from connector.kafka.client.partition_log import Ending, Witness
from connector.kafka.client.topics import UNKNOWN_EPOCH, Partition
from connector.kafka.sink.handles import Prepared
from transactional.sink import HandleState, Outcome

LONGEST_MARGIN_SECONDS: Final = 90.0
"""When a checkpoint is decided, its transactions must not time out for this many seconds.

If a quarter of their timeout is less, that time applies. In this time, the decision is written to the journal, and the
transactions are committed, perhaps after a failover.
"""

MOST_NAMED: Final = 5
"""The maximum number of partitions that one message names."""


class Fate(enum.Enum):
    """The outcome of a transaction's rows in one partition."""

    OPEN = "still open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    PENDING = "ended, but not visible yet"
    CUT = "cut off"
    GONE = "deleted with its topic, or by retention"
    UNKNOWN = "unknown"


_DOUBTFUL: Final = frozenset({Fate.ABORTED, Fate.CUT, Fate.GONE, Fate.UNKNOWN})


@dataclass(frozen=True)
class PartFate:
    """A transaction's fate (outcome) in one partition, and the evidence for it.

    `leader_epoch` is the epoch of the leader that gave the evidence. If the transaction is open, `opened` is that leader's
    description of the transaction.
    """

    part: Witness
    fate: Fate
    reason: str = ""
    opened: OpenTransaction | None = None
    leader_epoch: int = UNKNOWN_EPOCH

    @property
    def doubtful(self) -> bool:
        """True if a second check must confirm the fate, because a replaced or a new leader may report it wrongly."""
        return self.fate in _DOUBTFUL

    @property
    def evidence(self) -> str:
        """The evidence for the fate, as text. It is built only when needed: a checkpoint can have 40,000 such texts."""
        if self.reason:
            return self.reason
        if self.fate is Fate.COMMITTED:
            return f"{self.part} shows the transaction's rows before offset {self.part.offset}"
        since = "" if self.opened is None else f" from offset {self.opened.start}"
        return f"the transaction is open in {self.part}{since}"


@dataclass(frozen=True)
class Whole:
    """The state of a whole transaction, across all partitions that it wrote to."""

    state: HandleState
    # Whether Kafka's transaction coordinator still reports the transaction as open. If so, it would obey a commit request, even
    # if rows of the transaction are gone.
    ongoing: bool = False
    # Whether the partitions contradict each other: some of the transaction's rows can be read, others never will be.
    divided: bool = False
    # The facts behind the state, if a second check must confirm it; None if the state is certain.
    doubt: Hashable = None
    # Whether the state can't be determined yet, because a partition does not show yet how the transaction ended.
    pending: bool = False


# -- asking the partitions ------------------------------------------------------------------------------------------------


def open_fates(partitions: PartitionAdmin, transactions: Sequence[Prepared]) -> list[list[PartFate]]:
    """Return each transaction's fate in every partition that it wrote to. The transactions are expected to be open."""
    opened = partitions.open_transactions(
        {part.partition for transaction in transactions for part in transaction.written}
    )
    ends = _probe(partitions, transactions, together=True)
    return [
        [
            _without_rows(part, end) or _open_or_ended(partitions, transaction, part, opened, end)
            for part, (_, end) in zip(transaction.written, of_each, strict=True)
        ]
        for transaction, of_each in zip(transactions, ends, strict=True)
    ]


def ended_fates(
    partitions: PartitionAdmin,
    transactions: Sequence[Prepared],
    together: bool = False,
    ask_leaders: bool = True,
) -> list[list[PartFate]]:
    """Return each transaction's fate in every partition that it wrote to. The transactions are expected to have ended.

    A fate is what `read_committed` readers see.

    Parameters
    ----------
    partitions : PartitionAdmin
    transactions : Sequence[Prepared]
    together : bool
        True if the transactions were open at the same time. One request per partition, at the highest offset of the
        transactions, is then enough.
    ask_leaders : bool
        True to ask the leaders which transactions are open. If False, a transaction counts as open until the last stable
        offset is above the offset of the request.
    """
    ends = _probe(partitions, transactions, together)
    held = {
        part.partition
        for prepared, of_each in zip(transactions, ends, strict=True)
        for part, (offset, end) in zip(prepared.written, of_each, strict=True)
        if _without_rows(part, end) is None and end.stable <= offset
    }
    opened = partitions.open_transactions(held) if ask_leaders else {}

    def fate(transaction: Prepared, part: Witness, offset: int, end: StableEnd) -> PartFate:
        known = _without_rows(part, end)
        if known is not None:
            return known
        if end.stable <= offset and not ask_leaders:
            return PartFate(part, Fate.OPEN)
        if end.stable <= offset or end.aborted is None:
            return _open_or_ended(partitions, transaction, part, opened, end)
        # Earlier transactions of the producer ended before this one began; later ones begin after the witness.
        first = [at for at in end.aborted.get(transaction.producer_id, ()) if at < part.offset]
        if first:
            return PartFate(
                part, Fate.ABORTED, f"{part} lists the transaction's rows from offset {first[0]} as aborted"
            )
        return PartFate(part, Fate.COMMITTED)

    return [
        [fate(prepared, part, offset, end) for part, (offset, end) in zip(prepared.written, of_each, strict=True)]
        for prepared, of_each in zip(transactions, ends, strict=True)
    ]


def _probe(
    partitions: PartitionAdmin, transactions: Sequence[Prepared], together: bool
) -> list[list[tuple[int, StableEnd]]]:
    """Ask the leaders of all partitions that the transactions wrote to. Return each request's offset and answer.

    The result has a list for each transaction, with an entry for each partition. If `together`, transactions share one
    request per partition, at their highest offset.
    """
    last: dict[tuple[Partition, str, int], int] = {}
    for part in (part for transaction in transactions for part in transaction.written) if together else ():
        key = (part.partition, part.topic_id, part.leader_epoch)
        last[key] = max(part.offset, last.get(key, 0))
    asked: dict[Witness, int] = {}
    wanted: list[list[int]] = []
    for transaction in transactions:
        indexes = []
        for part in transaction.written:
            offset = last.get((part.partition, part.topic_id, part.leader_epoch), part.offset)
            probe = part if part.offset == offset else replace(part, offset=offset)
            indexes.append(asked.setdefault(probe, len(asked)))
        wanted.append(indexes)
    ends = list(zip(asked, partitions.stable_ends(list(asked)), strict=True))
    return [[(ends[index][0].offset, ends[index][1]) for index in of_each] for of_each in wanted]


def _without_rows(part: Witness, end: StableEnd) -> PartFate | None:
    if end.gone:
        return PartFate(part, Fate.GONE, end.gone, leader_epoch=end.leader_epoch)
    if end.cut_at is not None and end.cut_at < part.offset:
        return PartFate(
            part,
            Fate.CUT,
            f"{part} lost the transaction's rows from offset {end.cut_at} to {part.offset} (an unclean leader election, or a "
            "broker that lost its disk)",
            leader_epoch=end.leader_epoch,
        )
    return None


def _open_or_ended(
    partitions: PartitionAdmin,
    transaction: Prepared,
    part: Witness,
    opened: Mapping[Partition, Mapping[int, OpenTransaction]],
    end: StableEnd,
) -> PartFate:
    open_transaction = opened.get(part.partition, {}).get(transaction.producer_id)
    # A later transaction of the producer begins after the witness.
    if open_transaction is not None and open_transaction.start < part.offset:
        return PartFate(part, Fate.OPEN, opened=open_transaction, leader_epoch=end.leader_epoch)
    if open_transaction is not None and open_transaction.epoch == transaction.producer_epoch:
        reason = (
            f"the transaction is open in {part} from offset {open_transaction.start}, but according to the handle, all of its "
            f"rows are before {part.offset}: the task that prepared the transaction had asked a leader that was already "
            "replaced"
        )
        return PartFate(part, Fate.UNKNOWN, reason, open_transaction, end.leader_epoch)
    return _by_marker(partitions, transaction, part, end)


def _by_marker(partitions: PartitionAdmin, transaction: Prepared, part: Witness, end: StableEnd) -> PartFate:
    verdict = partitions.search(transaction.producer_id, transaction.producer_epoch, part)
    return PartFate(part, _BY_ENDING[verdict.ending], verdict.evidence, leader_epoch=end.leader_epoch)


_BY_ENDING: Final = {
    Ending.COMMIT: Fate.COMMITTED,
    Ending.ABORT: Fate.ABORTED,
    Ending.NOT_YET: Fate.PENDING,
    Ending.UNKNOWN: Fate.UNKNOWN,
}


# -- judging the whole ----------------------------------------------------------------------------------------------------


def margin_of(timeout_ms: int) -> float:
    """Return how many seconds must be left until a transaction times out, when its checkpoint is decided."""
    return min(LONGEST_MARGIN_SECONDS, timeout_ms / 4000)


def state_from(transaction: Prepared, description: Description | None, now: float) -> HandleState | None:
    """Return a transaction's state as its coordinator knows it; None if only the partitions show it.

    Only states at the transaction's own epoch are trusted. At the next epoch, `CompleteCommit` usually means that this
    transaction was committed. But it can also mean that EndTxn below version 5 aborted this transaction, and that the id's next
    owner committed a different one.
    """
    if description is None:
        return None
    same = (description.producer_id, description.producer_epoch) == (
        transaction.producer_id,
        transaction.producer_epoch,
    )
    if not same or _began_later(transaction, description):
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


def _began_later(transaction: Prepared, description: Description) -> bool:
    """Return whether the coordinator describes a later transaction than this one.

    EndTxn below version 5 leaves the epoch valid. So a request of this transaction's producer that arrives late, after its end,
    begins another transaction at the same epoch (KIP-890).
    """
    return 0 < transaction.handle.get("startedAt", 0) < description.started_ms


_ENDINGS: Final = {
    "PrepareCommit": Outcome.COMMITTED,
    "CompleteCommit": Outcome.COMMITTED,
    "PrepareAbort": Outcome.LOST,
    "CompleteAbort": Outcome.LOST,
    "PrepareEpochFence": Outcome.LOST,
}


def judge_open(state: HandleState, fates: Sequence[PartFate]) -> Whole:
    """Determine the state of a transaction that its coordinator reports as open.

    If the transaction is not open in every partition that it wrote to, the state is LOST or UNKNOWN.
    """
    wrong = [part for part in fates if part.fate is not Fate.OPEN]
    if not wrong:
        return Whole(state, ongoing=True)
    kinds = {part.fate for part in wrong}
    divided, pending = Fate.COMMITTED in kinds, Fate.PENDING in kinds
    outcome = Outcome.UNKNOWN if divided or kinds & {Fate.GONE, Fate.UNKNOWN, Fate.PENDING} else Outcome.LOST
    evidence = (
        f"{'a marker of another program committed it in some partitions: ' * divided}{_named(wrong)}; {state.evidence}"
    )
    # The coordinator may have ended it since it answered. Or it was replaced, and does not know how the transaction ended.
    doubt = ("ongoing", outcome, _basis(wrong))
    return Whole(HandleState(outcome, evidence=evidence), True, divided, doubt, pending)


def with_markers(
    partitions: PartitionAdmin,
    transaction: Prepared,
    description: Description | None,
    fates: Sequence[PartFate],
    now: float,
) -> Sequence[PartFate]:
    """Check each committed fate against the partition's commit marker, unless the coordinator reports the commit.

    Return all fates, checked where necessary. A partition counts as committed if it does not list the transaction as
    aborted. But compaction removes aborted rows, and later also their entry in that list. After that, only the marker
    proves the commit. If the marker is also gone, the fate is unknown.
    """
    if all(fate.fate is not Fate.COMMITTED for fate in fates):
        return fates
    trusted = state_from(transaction, description, now)
    outcome = trusted.outcome if trusted else _outcome_at_next_epoch(transaction, description, False)
    if outcome is Outcome.COMMITTED:
        return fates
    return [
        _by_marker(partitions, transaction, fate.part, StableEnd(leader_epoch=fate.leader_epoch))
        if fate.fate is Fate.COMMITTED
        else fate
        for fate in fates
    ]


def judge_ended(transaction: Prepared, description: Description | None, fates: Sequence[PartFate], now: float) -> Whole:
    """Determine the state of a transaction that its coordinator does not report as open, or no longer knows."""
    trusted = state_from(transaction, description, now)
    kinds = {fate.fate for fate in fates}
    known = trusted.outcome if trusted else None
    if known is None and kinds & {Fate.OPEN, Fate.PENDING, Fate.CUT}:
        known = _outcome_at_next_epoch(transaction, description, Fate.ABORTED in kinds)
    seen = "unknown id" if description is None else f"{description.state} at epoch {description.producer_epoch}"

    def whole(outcome: Outcome, named: Iterable[PartFate], divided: bool = False) -> Whole:
        evidence = _named(named) or "the transaction is not known to have written to any partition"
        if divided:
            evidence = f"it was committed only in some partitions: {evidence}"
        certain = outcome is Outcome.COMMITTED or (outcome is Outcome.LOST and known is Outcome.LOST)
        doubt = None if certain or kinds == {Fate.ABORTED} else ("ended", outcome, divided, _basis(fates))
        pending = outcome is Outcome.UNKNOWN and Fate.PENDING in kinds
        return Whole(HandleState(outcome, evidence=f"{evidence}; coordinator: {seen}"), False, divided, doubt, pending)

    lost = [fate for fate in fates if fate.fate in (Fate.ABORTED, Fate.CUT)]
    committed = [fate for fate in fates if fate.fate is Fate.COMMITTED]
    if committed:
        against = lost or (trusted is not None and trusted.outcome is Outcome.LOST)
        if against:
            return whole(Outcome.UNKNOWN, [*lost, *committed], divided=True)
        return whole(Outcome.COMMITTED, committed[:1])
    if lost:
        if kinds == {Fate.ABORTED} or known is Outcome.LOST:
            return whole(Outcome.LOST, lost)
        if known is Outcome.COMMITTED:
            return whole(Outcome.UNKNOWN, fates, divided=True)
        readable = bool(kinds & {Fate.OPEN, Fate.PENDING}) or Fate.ABORTED not in kinds
        return whole(Outcome.UNKNOWN if readable else Outcome.LOST, lost)
    return whole(known or Outcome.UNKNOWN, fates)


def _outcome_at_next_epoch(transaction: Prepared, description: Description | None, aborted: bool) -> Outcome | None:
    """Return the transaction's outcome if the coordinator reports it at the transaction's next epoch; else None.

    EndTxn version 5, time-outs and fencing end a transaction at its next epoch. Below version 5, the report may be about the
    id's next transaction, unless the reported transaction began at the same time as this one. An uncertain report counts only
    if it reports an abort and a partition also shows the abort (`aborted`).
    """
    ours = (transaction.producer_id, transaction.producer_epoch + 1)
    if description is None or (description.producer_id, description.producer_epoch) != ours:
        return None
    outcome = _ENDINGS.get(description.state)
    is_ours = transaction.end_version >= 5 or 0 < description.started_ms == transaction.handle.get("startedAt")
    return outcome if is_ours or (aborted and outcome is Outcome.LOST) else None


def _basis(fates: Iterable[PartFate]) -> Hashable:
    return tuple((fate.part.partition, fate.fate, fate.leader_epoch) for fate in fates if fate.fate is not Fate.OPEN)


def _named(fates: Iterable[PartFate]) -> str:
    evidence = [fate.evidence for fate in fates if fate.evidence]
    more = f"; {len(evidence) - MOST_NAMED} more partitions" if len(evidence) > MOST_NAMED else ""
    return "; ".join(evidence[:MOST_NAMED]) + more
