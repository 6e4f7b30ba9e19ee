"""Tools for writing sinks: options, results of checks (`Finding`), deadlines, secrets and durable files.

Users find them in `barrier_kafka.sinks`. ``2pc-delta``, ``2pc-multi`` and the SQL sinks use only these names, those of
`transactional`, and their own modules.
"""

from __future__ import annotations

from connector.formats.discovery import SinkType, datasets_of, find_sink
from connector.location.location import local_path, nearest
from connector.options import (
    HOST_OPTIONS,
    REQUIRED,
    Option,
    OptionTable,
    ParsedOptions,
    as_bool,
    as_columns,
    as_positive_int,
    as_str,
)
from connector.spark.recorded_options import leads_out
from transactional import faults
from transactional.clock import Clock, Deadline, SystemClock
from transactional.entry import UNFIT, checksum
from transactional.finding import Finding, Level, good, problem, unknown, warning
from transactional.history import must_hold, must_know
from transactional.journal.folders import make_folders, replace_file, sync_file, sync_folder
from transactional.secrets import hides_value, is_secret, without_named_secrets
from transactional.sink import (
    Handle,
    RunMark,
    commit_calls,
    guard_run,
    history_seen,
    lifetime_of,
    publishes_marks,
    restorable,
)

__all__ = [
    "HOST_OPTIONS",
    "REQUIRED",
    "UNFIT",
    "Clock",
    "Deadline",
    "Finding",
    "Handle",
    "Level",
    "Option",
    "OptionTable",
    "ParsedOptions",
    "RunMark",
    "SinkType",
    "SystemClock",
    "as_bool",
    "as_columns",
    "as_positive_int",
    "as_str",
    "checksum",
    "commit_calls",
    "datasets_of",
    "faults",
    "find_sink",
    "good",
    "guard_run",
    "hides_value",
    "history_seen",
    "is_secret",
    "leads_out",
    "lifetime_of",
    "local_path",
    "make_folders",
    "must_hold",
    "must_know",
    "nearest",
    "problem",
    "publishes_marks",
    "replace_file",
    "restorable",
    "sync_file",
    "sync_folder",
    "unknown",
    "warning",
    "without_named_secrets",
]
