"""Every condition that this project raises, and what mends it: a new one has to be written down here."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import transactional.errors
from transactional.failure import Remedy, failure_of

ROOT = Path(__file__).parent.parent

RESTART = """
    ABORT_TIMEOUT BATCH_HAS_OTHER_SOURCES BATCH_TAKEN BROKERS_UNREACHABLE CHECKPOINT_TAKEN CLIENT_NOT_STARTED COMMIT_TIMEOUT
    DELTA_COMMIT_FAILED DRIVER_FAILED DUPLICATE_PARTITION FILES_LOST HANDLE_NOT_ALIVE HOOK_FAILED HOOK_NOT_RESTORED
    HOOK_STATE_INVALID JOURNAL_STORE_FAILED JOURNAL_UNREADABLE JVM_GONE KAFKA_TIMEOUT LANE_TAKEN LEADER_MOVED
    LOCATION_UNREADABLE LOST_AFTER_DECISION MARKERS_PENDING MISSING_ACKNOWLEDGEMENT MIXED_ACKNOWLEDGEMENTS MIXED_RUNS
    NOT_COMMITTED NOT_ENDED NOT_SETTLED NO_COORDINATOR NO_FREE_LANE NO_PLAN NO_PREFIX NO_RUN NO_SUCH_PART NO_TOKEN
    PART_NOT_DECIDED PART_NOT_LOST PLAN_OF_ANOTHER_BATCH QUERY_RUNS READ_FAILED READ_STALLED REGISTRY_UNREACHABLE
    REPAIR_LOST REWIND_RUNS RUN_ENDED TOPIC_CHANGED TRANSACTION_ENDED TRANSACTION_LOST TRANSACTION_OVER VERSION_LOST
    VERSION_OVERTAKEN WRITE_FAILED
"""
"""What may be otherwise the next time: brokers, stores and registries that are away, transactions that are written anew."""

REWIND = "BATCH_HAS_OTHER_SOURCES LOST_BEHIND PREPARED_LOST REWIND_NOT_DONE SPARK_LOGS_AHEAD"

STOPPED = "STOP_REQUESTED"

OPTIONS = """
    BATCH_OPTION COLUMN_MISSING COLUMN_TWICE COLUMN_TYPE COLUMN_UNKNOWN CONFLICTING_OPTIONS DELIVERY_GUARANTEE
    FORBIDDEN_OPTION HEALTH_FILE INTERVAL_OVER_TIMEOUT INTERVAL_WITH_ANOTHER_SOURCE INVALID_LOCATION INVALID_OPTION
    LOCATION_UNKNOWN_STORE MISSING_COLUMN MISSING_OPTION MISSING_PACKAGE MISSING_TOPIC NOT_CONFIRMED NO_EXCLUSIVE_CREATE
    NO_ROW_SINCE OBJECT_STORES_NOT_INSTALLED OTHER_SCHEMA_TYPE OUTPUT_MODE PARTITION_COLUMN PREFIX_OF_THE_ORIGINAL
    READS_ITS_OUTPUT SCHEMA_IS_FIXED SINK_NOT_RECORDED TRANSACTION_TIMEOUT_TOO_LONG UNKNOWN_COLUMN UNKNOWN_OPTION
    UNKNOWN_SINK UNKNOWN_SUBJECT UNKNOWN_TOPIC UNSUPPORTED_SCHEMA WRONG_COLUMN_TYPE
"""
"""What somebody has written, in options, in a query's columns, in what is installed."""

REFUSED = """
    AUTHENTICATION_FAILED BAD_HEADER BAD_RECORD BAD_TIMESTAMP COMMIT_REFUSED FILE_OUTSIDE KAFKA_REFUSED MARKERS_SKIPPED
    MISSING_RIGHT NOT_NULL NO_CONDITIONAL_PUT NULL_TOPIC PARTITION_VALUE REGISTRY_REFUSED ROW_REFUSED ROW_TOO_LARGE
    TABLE_CHANGED TABLE_HAS_OTHER_COMMITS TABLE_NEEDS_FEATURES TLS_FAILED UNKNOWN_HANDLE_FORMAT UNKNOWN_SPARK UNKNOWN_TOPIC
"""
"""What a broker, a store or a registry refuses for good: rights, versions, rows."""

LOSS = """
    COMMITTED_UNDECIDED DATA_LOST OFFSETS_DISAGREE OFFSETS_WENT_BACK OUTCOME_UNKNOWN PARTITIONS_GONE REPLAY_DIFFERS
    TOPIC_RECREATED VERSION_HAS_OTHER_ROWS
"""
"""Rows are gone, or nobody can tell: to go on by itself could lose or double them silently."""

PLACE = """
    ADOPTED_NOT_STARTED BATCHES_NOT_ACCOUNTED BATCH_HAS_OTHER_SOURCES JOURNAL_ENTRY_CHANGED JOURNAL_ENTRY_TORN
    JOURNAL_FORMAT_UNKNOWN JOURNAL_GAP JOURNAL_INCONSISTENT JOURNAL_KIND_UNKNOWN LOCATION_MOVED LOCATION_OF_ANOTHER_APP
    LOCATION_OF_ANOTHER_QUERY LOCATION_OF_ANOTHER_TARGET LOCATION_OF_A_QUERY LOCATION_OF_BATCH_WRITES LOCATION_PUT_BACK
    NOT_OUR_OFFSET NO_JOURNAL
    NO_SPARK_METADATA NO_SPARK_OFFSETS PLANNED_ENDS_NESTED RESTORE_UNFINISHED SPARK_LOGS_INCONSISTENT SPARK_OFFSETS_UNKNOWN
    STATE_NOT_RESTORED
    UNKNOWN_OFFSET_VERSION UNSETTLED_ELSEWHERE VERSIONS_OF_ANOTHER_QUERY VERSION_TOO_LOW
"""
"""The checkpoint location was copied, mixed, half deleted, damaged, or is another version's."""

OTHERS = "DRIVER_HOLDS_STATE DRIVER_UNKNOWN LOCATION_MOVED_ON PREFIX_TAKEN REWIND_UNKNOWN RUN_SUPERSEDED"
"""Somebody else owns the query: two supervisors would fence each other for ever."""

COMMANDS = """
    ALREADY_BARRIER_KAFKA CHECKPOINT_NOT_SETTLED CLAIMED_PLACE_GONE INSIDE_THE_ORIGIN LOCATION_BUSY
    LOCATION_NOT_A_FOLDER LOCATION_NOT_EMPTY LOCATION_NOT_OURS NOTHING_TO_IMPORT NOTHING_TO_REWIND NOTHING_TO_SAVE
    NOT_A_KAFKA_SOURCE NOT_RESTORABLE NO_REWIND NO_STATE NO_SUCH_MICRO_BATCH NO_SUCH_SOURCE ORIGIN_NOT_AT_SAVEPOINT
    ORIGIN_UNREACHABLE OUTPUT_COMMITTED PLANNED_ENDS_UNKNOWN REPARTITION_REFUSED REWIND_BEGUN REWIND_FOREIGN_SOURCE
    REWIND_TOO_FAR SAVEPOINT_DAMAGED SAVEPOINT_EXISTS SAVEPOINT_FORMAT_UNKNOWN SAVEPOINT_NOT_CLOSED
    SAVEPOINT_NOT_COMMITTED SAVEPOINT_NOT_FOUND SAVEPOINT_UNSTABLE STATE_STAYS_BEHIND UNKNOWN_CHECKPOINT
"""
"""Said to who has typed a command, or asked for a rewind."""

REMEDIES = {
    Remedy.RESTART: RESTART,
    Remedy.REWIND: REWIND,
    Remedy.STOPPED: STOPPED,
    Remedy.NONE: f"{OPTIONS} {REFUSED} {LOSS} {PLACE} {OTHERS} {COMMANDS}",
}

CONDITION = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")


def raised() -> Iterator[tuple[str, str]]:
    """Kind and condition of every error that is made anywhere."""
    for folder in ("connector", "transactional"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ast.parse(path.read_text())
            for call in ast.walk(module):
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not call.args:
                    continue
                if call.func.id not in transactional.errors.__all__:
                    continue
                first = call.args[0]
                if isinstance(first, ast.Attribute) and first.attr == "condition":
                    continue  # another's, handed on
                found = conditions_in(first) or conditions_of(module, first)
                assert found, f"{path}:{call.lineno}: which condition is it?"
                yield from ((call.func.id, condition) for condition in found)


def conditions_in(node: ast.AST) -> set[str]:
    texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {text for text in texts if CONDITION.fullmatch(text)}


def conditions_of(module: ast.Module, name: ast.expr) -> set[str]:
    """What is assigned to a variable, or stands in a table."""
    names = {each.id for each in ast.walk(name) if isinstance(each, ast.Name)}
    found: set[str] = set()
    for each in ast.walk(module):
        if isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if names & {target.id for target in targets if isinstance(target, ast.Name)}:
                found |= conditions_in(each.value)
    return found


def test_every_condition_has_the_remedy_that_is_written_down_here() -> None:
    found: dict[Remedy, set[str]] = defaultdict(set)
    for kind, condition in raised():
        text = f"transactional.errors.{kind}: [{condition}] so it is"
        found[failure_of(text).remedy].add(condition)
    for remedy, conditions in REMEDIES.items():
        assert found[remedy] == set(conditions.split()), remedy
