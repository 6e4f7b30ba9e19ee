"""Tools for authors of sinks: option tables, findings, deadlines, handling of secrets, durable files.

Our own SQL, Delta and multi sinks use only these tools and `barrier_kafka`.
"""

from __future__ import annotations

from connector.sinks import (
    HOST_OPTIONS,
    REQUIRED,
    Deadline,
    Option,
    OptionTable,
    ParsedOptions,
    SystemClock,
    as_bool,
    as_columns,
    as_positive_int,
    as_str,
    checksum,
    good,
    hides_value,
    is_secret,
    make_folders,
    must_hold,
    must_know,
    problem,
    replace_file,
    sync_file,
    sync_folder,
    unknown,
    warning,
    without_named_secrets,
)

__all__ = [
    "HOST_OPTIONS",
    "REQUIRED",
    "Deadline",
    "Option",
    "OptionTable",
    "ParsedOptions",
    "SystemClock",
    "as_bool",
    "as_columns",
    "as_positive_int",
    "as_str",
    "checksum",
    "good",
    "hides_value",
    "is_secret",
    "make_folders",
    "must_hold",
    "must_know",
    "problem",
    "replace_file",
    "sync_file",
    "sync_folder",
    "unknown",
    "warning",
    "without_named_secrets",
]
