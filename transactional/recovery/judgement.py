"""Pure functions that judge decided checkpoints and prepared micro-batches by the store's answers."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from transactional.errors import AmbiguousOutcomeError, RewindRequiredError
from transactional.ledger import BatchRecord, CheckpointRecord, Ledger, PartRecord
from transactional.recovery.view import QueryView
from transactional.transaction import HandleState, Outcome


class Judgement(enum.Enum):
    """The next step for the handles of a decided checkpoint."""

    COMMIT = "no part is lost: commit all"
    REPAIR = "some parts are lost, but the checkpoint can't be voided: commit the others, and write the lost rows again"
    VOID = (
        "some parts are lost and none is committed: abort the others; if the aborts confirm this, void the checkpoint"
    )


def _refuse_unknown(checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]]) -> None:
    for part, state in states:
        if state.outcome is Outcome.UNKNOWN:
            raise AmbiguousOutcomeError(
                "OUTCOME_UNKNOWN",
                transaction=(
                    f"the transaction of micro-batch {part.batch}, {part} ({part.rows} rows) of checkpoint "
                    f"{checkpoint.id}"
                ),
                checkpoint=checkpoint.id,
                **part.named,
                rows=part.rows,
                handle=dict(part.handles[-1]),
                evidence=state.evidence,
            )


def judge_checkpoint(
    ledger: Ledger, checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]], batch: int
) -> Judgement:
    """Return the next step for a decided checkpoint.

    The next step depends on the states of the checkpoint's open parts, and on the number of the current micro-batch.

    Raises
    ------
    AmbiguousOutcomeError
        ``OUTCOME_UNKNOWN``: the store can't say how a transaction ended.
    RewindRequiredError
        ``PREPARED_LOST``: rows would have to be written again in micro-batches before the current one.
    """
    parts = ledger.parts_of(checkpoint)
    _refuse_unknown(checkpoint, states)
    lost = {part.batch for part in _lost(ledger, checkpoint, states)}
    if not lost:
        return Judgement.COMMIT
    committed = any(state.outcome is Outcome.COMMITTED for _, state in states)
    committed = committed or any({"committed", "accepted"} & {*part.verdicts} for part in parts)
    # The query has moved past the earlier micro-batches. If none of their parts is lost, they need not be voided.
    behind = min(checkpoint.batches) < batch
    whole = {part.route for part in parts if part.handles} - set(gaps(ledger, checkpoint, states))
    repairable = committed or ((behind or bool(whole)) and min(lost) >= batch)
    rewritten = lost if repairable else set(checkpoint.batches)
    if min(rewritten) < batch:
        disordered = committed_behind(ledger, checkpoint, states)
        reason = (
            f"transactions of micro-batches {sorted(lost)} were lost after checkpoint {checkpoint.id} had been decided"
        )
        if disordered:
            reason += f". {out_of_order(min(lost), disordered)}"
        raise RewindRequiredError(
            "PREPARED_LOST", batches=sorted(rewritten), checkpoint=checkpoint.id, reason=reason.removesuffix(".")
        )
    return Judgement.REPAIR if repairable else Judgement.VOID


class UndecidedCommitError(AmbiguousOutcomeError):
    """A transaction was committed, but the journal has no decision to commit it."""


def committed_undecided(part: PartRecord, consequence: str) -> UndecidedCommitError:
    """Return the error for a transaction that was committed without a decision.

    `consequence` names the step that would write the transaction's rows again.
    """
    return UndecidedCommitError("COMMITTED_UNDECIDED", **part.named, rows=part.rows, consequence=consequence)


def _lost(
    ledger: Ledger, checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]]
) -> list[PartRecord]:
    """Return the lost parts of a decided checkpoint, according to the store's answers or an earlier verdict."""
    answered = [part for part, state in states if state.outcome is Outcome.LOST]
    return answered + [part for part in ledger.parts_of(checkpoint) if part.lost]


def gaps(
    ledger: Ledger, checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]]
) -> dict[str, int]:
    """For each route, return the first micro-batch of a decided checkpoint that has a lost part.

    Rows of different routes need not be committed in a common order.
    """
    found: dict[str, int] = {}
    for part in _lost(ledger, checkpoint, states):
        found[part.route] = min(part.batch, found.get(part.route, part.batch))
    return found


def committed_behind(
    ledger: Ledger, checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]]
) -> list[int]:
    """Return the micro-batches that are at least partly committed although an earlier one of the checkpoint is lost.

    The framework commits in order, so only another tool can have committed such a micro-batch.
    """
    committed = [part for part, state in states if state.outcome is Outcome.COMMITTED]
    committed += [part for part in ledger.parts_of(checkpoint) if part.committed]
    first = gaps(ledger, checkpoint, states)
    return sorted({part.batch for part in committed if part.batch > first.get(part.route, part.batch)})


def out_of_order(gap: int, batches: Sequence[int]) -> str:
    """Return the text for a message about micro-batches that are committed although an earlier one is lost."""
    return (
        f"Micro-batches {list(batches)} were already committed, although they come after the lost rows of micro-batch {gap}. "
        "Every row is still written exactly once, but the lost rows will follow later rows in the output. A reader that "
        "keeps the last value of a key may therefore keep an older value. Compare the keys of the lost rows with the input."
    )


def judge_prepared(record: BatchRecord, states: Sequence[HandleState], view: QueryView) -> bool:
    """Return True to keep a prepared, undecided micro-batch, False to write it again.

    Raises
    ------
    UndecidedCommitError
        ``COMMITTED_UNDECIDED``: another program has committed one of its transactions.
    RewindRequiredError
        ``PREPARED_LOST``: the micro-batch would have to be written again, but the query has moved past it.
    """
    for part, state in zip([part for part in record.parts if part.handles], states, strict=True):
        if state.outcome is Outcome.COMMITTED:
            raise committed_undecided(part, "running the micro-batch again")
    if all(state.ready for state in states):
        return True
    if record.batch <= view.committed:
        reason = f"prepared transactions of micro-batch {record.batch} are gone or too old, and none of its rows was committed"
        raise RewindRequiredError("PREPARED_LOST", batches=[record.batch], reason=reason)
    return False
