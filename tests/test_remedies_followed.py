"""Who obeys an error gets what it promises: for each condition, the test that follows its remedy in the state that raised it.

A new condition fails here until it has a row: the test that follows it, or the reason why none does.
"""

from __future__ import annotations

import ast

import pytest

from tests.connector import test_followed
from tests.results import ROOT
from transactional.errors.catalogue import catalogue

FOLLOWED = {
    # by the real coordinator and the commands, on files
    "ALREADY_BARRIER_KAFKA": "tests/connector/test_followed.py::test_already_barrier_kafka",
    "BATCHES_NOT_ACCOUNTED": "tests/connector/test_followed.py::test_batches_not_accounted",
    "DRIVER_HOLDS_STATE": "tests/connector/test_followed.py::test_driver_holds_state",
    "LOCATION_MOVED": "tests/connector/test_followed.py::test_location_moved",
    "LOCATION_PUT_BACK": "tests/connector/test_followed.py::test_location_put_back",
    "LOGS_AHEAD": "tests/connector/test_followed.py::test_logs_ahead",
    "LOST_AFTER_DECISION": "tests/connector/test_followed.py::test_lost_after_decision",
    "NOTHING_TO_REWIND": "tests/connector/test_followed.py::test_nothing_to_rewind",
    "NO_JOURNAL": "tests/connector/test_followed.py::test_no_journal",
    "OFFSETS_REPLACED": "tests/connector/test_followed.py::test_offsets_replaced",
    "OUTCOME_UNKNOWN": "tests/connector/test_followed.py::test_outcome_unknown",
    "OUTPUT_COMMITTED": "tests/connector/test_followed.py::test_output_committed",
    "PREFIX_OF_THE_ORIGINAL": "tests/connector/test_followed.py::test_location_moved",
    "PREPARED_LOST": "tests/connector/test_followed.py::test_prepared_lost",
    "REWIND_NOT_DONE": "tests/connector/test_followed.py::test_rewind_not_done",
    "STORE_GONE": "tests/connector/test_followed.py::test_store_gone",
    "STORE_REPLACED": "tests/connector/test_followed.py::test_store_replaced",
    "STORE_WENT_BACK": "tests/connector/test_followed.py::test_store_went_back",
    "UNKNOWN_CHECKPOINT": "tests/connector/test_followed.py::test_unknown_checkpoint",
    # by the commands, on locations made by hand
    "COMMITTED_UNDECIDED": "tests/connector/test_recovery.py::"
    "test_what_another_program_has_committed_is_resolved_and_the_recovery_goes_on",
    "DRIVER_UNKNOWN": "tests/connector/test_cli_rewind.py::test_nor_one_of_whose_driver_nobody_can_tell",
    "FIRST_START_LEFT": "tests/connector/test_first_start.py::"
    "test_what_a_driver_writes_that_lives_or_may_stays_unless_an_operator_says_that_it_is_dead",
    "LOCATION_BUSY": "tests/connector/test_cli_rewind.py::test_two_rewinds_are_never_at_work_at_once",
    "NO_EXCLUSIVE_CREATE": "tests/connector/test_location.py::"
    "test_a_location_without_exclusive_create_is_refused_unless_somebody_else_guarantees_one_driver",
    "ORIGIN_NOT_AT_SAVEPOINT": "tests/connector/test_restore.py::"
    "test_an_origin_that_went_on_is_rewound_or_saved_again_first",
    "ORIGIN_UNREACHABLE": "tests/connector/test_restore.py::test_an_origin_that_is_lost_is_claimed_by_force_only",
    "QUERY_RUNS": "tests/connector/test_cli_rewind.py::test_a_query_whose_driver_runs_is_not_taken_back",
    "RESTORE_UNFINISHED": "tests/connector/test_restore.py::"
    "test_an_unfinished_restore_is_finished_by_its_own_command_only",
    "REWIND_UNKNOWN": "tests/connector/test_cli_rewind.py::test_a_rewind_that_runs_is_not_finished_by_another",
    "SAVEPOINT_NOT_READY": "tests/connector/test_savepoint.py::"
    "test_where_no_checkpoint_comes_in_time_it_is_refused_unless_the_newest_will_do",
    "SPARK_OFFSETS_TORN": "tests/connector/test_followed.py::test_spark_offsets_torn",
    "STATE_NOT_RESTORED": "tests/connector/test_restore.py::"
    "test_a_query_that_takes_less_than_the_savepoint_holds_says_so_as_an_option_of_its_start",
    "STATE_STAYS_BEHIND": "tests/connector/test_import_offsets.py::test_state_is_left_behind_only_when_it_is_said",
    "NOT_A_KAFKA_SOURCE": "tests/connector/test_import_offsets.py::"
    "test_sources_that_are_not_kafkas_are_named_and_one_of_kafkas_can_be_taken_alone",
    "TABLE_HAS_OTHER_COMMITS": "tests/connector/test_cli_rewind.py::"
    "test_a_table_that_another_writes_to_meanwhile_has_a_way_out",
    "VERSION_HAS_OTHER_ROWS": "tests/transactional/test_versions.py::"
    "test_a_frame_that_is_not_the_same_each_time_leaves_its_version_as_it_was_where_that_is_accepted",
    "VERSION_LOST": "tests/transactional/test_versions.py::"
    "test_a_lost_version_whose_rows_nobody_has_is_resolved_as_the_error_says",
    "NOT_CONFIRMED": "tests/connector/test_recorded_options.py::"
    "test_an_address_is_used_with_secrets_only_if_the_operator_has_said_it",
    "UNKNOWN_SINK": "tests/connector/test_followed.py::test_unknown_sink",
}

STARTED_AGAIN = "The remedy is to start the query again: the state machine and the crash matrix do that at each point."
REPAIRED = "The remedy is outside: brokers, rights, disks, packages, rows. There is nothing of ours to run."
CORRECTED = (
    "The remedy is to correct an option or an argument that the message names: the tests of the options pass good ones."
)
ELSEWHERE = "The remedy is a new location, table, topic or number: a first start, which every test of a query makes."
BROKER = "The state takes a broker, a database or Spark: the integration tests of the condition reach it."

NOT_FOLLOWED = {
    STARTED_AGAIN: {
        "ADOPTED_NOT_STARTED", "CHECKPOINT_NOT_SETTLED", "CONCURRENT_COMMIT", "DATABASE_FAILED_OVER", "DELTA_COMMIT_FAILED",
        "HANDLE_NOT_ALIVE", "KAFKA_TIMEOUT", "MARKERS_PENDING", "PRODUCER_FENCED", "PROTOCOL_VIOLATED", "READ_FAILED",
        "RUN_ENDED", "RUN_SUPERSEDED", "SINK_NOT_RECORDED", "STOP_REQUESTED", "TOPIC_CHANGED", "TRANSACTION_LOST",
        "UNSETTLED_ELSEWHERE", "WRITE_FAILED",
    },
    REPAIRED: {
        "ARCHIVE_UNWRITABLE", "AUTHENTICATION_FAILED", "BROKERS_UNREACHABLE", "CLIENT_NOT_STARTED", "DATABASE_REFUSED",
        "DATABASE_SLOW", "DATABASE_UNREACHABLE", "FILE_OUTSIDE", "HOOK_FAILED", "INJECTOR_FENCED", "JOURNAL_DAMAGED",
        "JOURNAL_STORE_FAILED", "JOURNAL_UNREADABLE", "KAFKA_REFUSED", "LOCATION_NOT_OURS", "LOCATION_UNREADABLE",
        "LOCATION_UNWRITABLE", "LOGS_INCONSISTENT", "MARKERS_SKIPPED", "MISSING_DDL", "MISSING_PACKAGE", "MISSING_RIGHT",
        "NO_CONDITIONAL_PUT", "NO_TOKEN", "OFFSETS_DISAGREE", "REGISTRY_REFUSED", "REGISTRY_UNREACHABLE",
        "ROW_NOT_ENCODED", "ROW_REFUSED", "ROW_TOO_LARGE", "SAVEPOINT_DAMAGED", "SAVEPOINT_UNSTABLE", "SPARK_TOO_OLD",
        "TLS_FAILED", "UNKNOWN_SPARK", "UNSUPPORTED_SCHEMA", "FORMAT_UNKNOWN",
    },
    CORRECTED: {
        "BAD_RECORD", "COLUMNS_MISMATCH", "FORBIDDEN_OPTION", "INTERVAL_NOT_POSSIBLE", "INVALID_OPTION",
        "LOCATION_NOT_A_FOLDER", "LOCATION_TAKEN", "LOCATION_UNKNOWN_STORE", "MISSING_OPTION", "OUTPUT_MODE",
        "PREFIX_TAKEN",
        "REPARTITION_REFUSED", "ROUTE_UNKNOWN", "SAVEPOINT_NOT_FOUND", "UNKNOWN_OPTION", "UNKNOWN_TOPIC", "VERSION_TOO_LOW",
        "NOT_RESOLVABLE",
    },
    ELSEWHERE: {
        "BARRIER_TOPIC_AHEAD", "BARRIER_TOPIC_TAKEN", "LOCATION_MOVED_ON", "LOCATION_NOT_EMPTY", "MARKS_DISAGREE",
        "NOTHING_TO_IMPORT", "NOT_ALIGNED", "NOT_OUR_OFFSET", "PLANNED_ENDS_UNKNOWN", "REWIND_TOO_FAR",
        "SPARK_OFFSETS_UNKNOWN", "TABLE_NEEDS_FEATURES", "VERSIONS_OF_ANOTHER_QUERY", "VERSIONS_PUT_BACK", "VERSION_OVERTAKEN",
    },
    BROKER: {
        "ABORT_REFUSED", "DATA_LOST", "NOT_RESTORABLE", "NO_FREE_LANE", "SOURCE_BEGINS_ELSEWHERE", "SOURCE_END_UNKNOWN",
        "SOURCE_REMOVED", "REPLAY_DIFFERS", "TABLE_CHANGED", "TABLE_UNREACHABLE", "UNKNOWN_TRANSACTION",
    },
}  # fmt: skip


def test_every_condition_is_followed_or_has_the_reason_why_not() -> None:
    named = [*FOLLOWED, *(each for group in NOT_FOLLOWED.values() for each in group)]
    assert sorted(named) == sorted(set(named)), "each once"
    assert set(named) == set(catalogue), (
        "put a new condition into the table: the test that follows its remedy, or why none does"
    )


@pytest.mark.parametrize("condition", sorted(FOLLOWED))
def test_the_test_that_follows_a_condition_is_there_and_reaches_it(condition: str) -> None:
    file, name = FOLLOWED[condition].split("::")
    module = ast.parse((ROOT / file).read_text())
    [found] = [each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == name]
    texts = "\n".join(
        each.value for each in ast.walk(found) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    assert condition in texts, "it is raised there"


def test_no_followed_remedy_is_left_out_of_the_table() -> None:
    """The tests of that file are there for this table alone."""
    there = {name for name in dir(test_followed) if name.startswith("test_")}
    assert there == {test.split("::")[1] for test in FOLLOWED.values() if "test_followed.py" in test}
