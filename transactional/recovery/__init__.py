"""Pure functions that make decisions when a micro-batch is planned, from the ledger, Spark's logs and the store's answers."""

from transactional.recovery.account import (
    Claim,
    check_account,
    check_location,
    check_prefix,
    check_recorded,
    check_restored,
    check_schedule,
    check_sources,
    is_late_commit,
    replaced_since_planned,
    unrecorded_repartitions,
    whose_run,
)
from transactional.recovery.evolution import check_beginnings, check_running, ends_left
from transactional.recovery.judgement import (
    Judgement,
    UndecidedCommitError,
    committed_behind,
    committed_undecided,
    gaps,
    judge_checkpoint,
    judge_prepared,
    out_of_order,
)
from transactional.recovery.rows import check_encodings, check_rows, mismatch
from transactional.recovery.view import QueryView

__all__ = [
    "Claim",
    "Judgement",
    "QueryView",
    "UndecidedCommitError",
    "check_account",
    "check_beginnings",
    "check_encodings",
    "check_location",
    "check_prefix",
    "check_recorded",
    "check_restored",
    "check_rows",
    "check_running",
    "check_schedule",
    "check_sources",
    "committed_behind",
    "committed_undecided",
    "ends_left",
    "gaps",
    "is_late_commit",
    "judge_checkpoint",
    "judge_prepared",
    "mismatch",
    "out_of_order",
    "replaced_since_planned",
    "unrecorded_repartitions",
    "whose_run",
]
