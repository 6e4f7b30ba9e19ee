"""What was found -> what to do. Pure: the ledger, Spark's logs and the store's answers go in, a decision comes out."""

from transactional.recovery.account import (
    Claim,
    check_account,
    check_place,
    check_prefix,
    check_recorded,
    check_restored,
    check_schedule,
    check_sources,
    other_sources,
    replaced_since_planned,
    unrecorded_repartitions,
    whose_run,
)
from transactional.recovery.judgement import (
    Judgement,
    committed_behind,
    committed_undecided,
    judge_checkpoint,
    judge_prepared,
    lost_batches,
    out_of_order,
)
from transactional.recovery.view import WAY_OUT_RESOLVE, WAY_OUT_REWIND, SparkView, topics_of

__all__ = [
    "WAY_OUT_RESOLVE",
    "WAY_OUT_REWIND",
    "Claim",
    "Judgement",
    "SparkView",
    "check_account",
    "check_place",
    "check_prefix",
    "check_recorded",
    "check_restored",
    "check_schedule",
    "check_sources",
    "committed_behind",
    "committed_undecided",
    "judge_checkpoint",
    "judge_prepared",
    "lost_batches",
    "other_sources",
    "out_of_order",
    "replaced_since_planned",
    "topics_of",
    "unrecorded_repartitions",
    "whose_run",
]
