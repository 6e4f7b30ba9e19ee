"""The options of ``2pc-delta``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from connector.sinks import (
    HOST_OPTIONS,
    REQUIRED,
    Option,
    OptionTable,
    as_bool,
    as_columns,
    as_positive_int,
    as_str,
    is_secret,
    local_path,
)

NAME: Final = "2pc-delta"

STORAGE_PREFIX: Final = "storage."

MEGABYTE: Final = 1 << 20


WRITE_OPTIONS = OptionTable(
    NAME,
    (
        Option("path", REQUIRED, as_str, "The table's folder: a path or a URI (s3://, gs://, abfss://, file://)."),
        Option(
            "partitionBy",
            (),
            as_columns,
            "The partition columns of a new table. (Spark does not pass writeStream.partitionBy to a Python sink.) "
            "An existing table keeps its own partition columns.",
        ),
        Option("mergeSchema", False, as_bool, "If true, the sink adds the query's new columns to the table."),
        Option(
            "targetFileSizeMb",
            128,
            as_positive_int,
            "Approximate size of a data file in megabytes. A task begins a new file when the current file reaches this size.",
        ),
        Option("compression", "snappy", as_str, "Parquet's compression: snappy, zstd, gzip, lz4 or none."),
    ),
    passthrough_prefixes=(STORAGE_PREFIX,),
)


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of one sink. The ``repr`` shows no secret."""

    path: str  # Absolute path on a local disk, or a URI.
    partition_by: Sequence[str]
    merge_schema: bool
    file_bytes: int  # The size in bytes at which a data file is closed.
    compression: str
    # The options for the object store: those that begin with ``storage.``, without this prefix.
    storage: Mapping[str, str]
    commit_seconds: float  # The option ``commitTimeoutMs``, in seconds.

    @property
    def local(self) -> bool:
        """Return whether the table is on a local disk."""
        return os.path.isabs(self.path)

    def __repr__(self) -> str:
        return f"WriteOptions({self.path!r})"


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the user's options, and return them parsed. Do not read the table."""
    parsed = WRITE_OPTIONS.parse(options, also=HOST_OPTIONS)
    if is_secret("path", parsed["path"]):  # the journal and messages contain the path
        expectation = f"a path without a password, key or signature: set these as {STORAGE_PREFIX}* options"
        raise WRITE_OPTIONS.invalid("path", "(hidden)", expectation)
    if parsed["compression"].lower() not in ("snappy", "zstd", "gzip", "lz4", "none"):
        raise WRITE_OPTIONS.invalid("compression", parsed["compression"], "snappy, zstd, gzip, lz4 or none")
    if parsed["deliveryGuarantee"] != "exactly-once":
        expectation = "exactly-once, because each commit to the table is a whole checkpoint"
        raise WRITE_OPTIONS.invalid("deliveryGuarantee", parsed["deliveryGuarantee"], expectation)
    return WriteOptions(
        path=_canonical(parsed["path"]),
        partition_by=parsed["partitionBy"],
        merge_schema=parsed["mergeSchema"],
        file_bytes=parsed["targetFileSizeMb"] * MEGABYTE,
        compression=parsed["compression"].lower(),
        storage={key[len(STORAGE_PREFIX) :]: value for key, value in parsed.passthrough.items()},
        commit_seconds=parsed["commitTimeoutMs"] / 1000,
    )


def _canonical(path: str) -> str:
    """Return a local path as an absolute path, and a URI without slashes at its end.

    Reject a local path that deltalake would decode to a different one.
    """
    local = local_path(path)
    if local is not None and re.search("%[0-9A-Fa-f]{2}", local):
        raise WRITE_OPTIONS.invalid(
            "path", path, "a path without % and two hexadecimal digits, which deltalake would decode"
        )
    return path.rstrip("/") if local is None else os.path.realpath(local)
