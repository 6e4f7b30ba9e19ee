"""The names of the doctor's checks, and the check to which each error condition belongs."""

from __future__ import annotations

from typing import Final

from transactional.errors import TwoPhaseCommitError
from transactional.finding import Finding, Level

CHECKS: Final = {
    "options": "options that are unknown, missing, forbidden, or have a wrong value",
    "brokers": "brokers that can't be reached or do not answer, a wrong login, an untrusted certificate",
    "rights": "a right that this user lacks",
    "topic": "a topic or a partition that does not exist",
    "transaction-version": "brokers with an older transaction protocol, or whose release skips transaction markers",
    "trial-transaction": "brokers that do not support transactions as Apache Kafka does",
    "transaction-timeout": "a transaction timeout that the brokers do not allow, or that is too short for the checkpoints",
    "replication": "partitions that would be lost with one broker, or that have too few replicas",
    "unclean-election": "a topic that may lose acknowledged rows in a leader election",
    "message-size": "a topic that accepts only smaller rows than the brokers' default",
    "prefix": "transactional ids that another query uses",
    "open-transactions": "consumers that an open transaction blocks now",
    "retention": "rows that may expire while the query is stopped",
    "target": "a target that was deleted or restored from an older copy",
    "location": "a location that was moved, is a copy, was restored from an older copy, or has an unfinished rewind",
    "table": "a table that needs features that the sink lacks, or whose folder the sink can't write to",
    "database": "a database that can't be reached, may lose committed rows, or refuses rows when they are committed",
    "registry": "a Schema Registry that does not answer, refuses the login, or has no schema that can be decoded",
    "store": "a checkpoint store that can't be written, or that can't prevent two drivers from running at the same time",
    "clock": "a clock that differs from the store's",
    "sink": "anything else that the sink refuses before its first row",
    "python": "a release of Python that is not supported",
    "java": "a release of Java that is not supported, or no Java",
    "spark": "a release of PySpark that is not supported, no PySpark, or one that each Python process compiles",
    "clients": "client libraries that make reading or writing slower",
}
"""Every check of the doctor, with the problems that it finds. A sink's own `examine` may add other checks."""

_OF_CONDITION: Final = {
    "BROKERS_UNREACHABLE": "brokers",
    "AUTHENTICATION_FAILED": "brokers",
    "TLS_FAILED": "brokers",
    "NO_TOKEN": "brokers",
    "KAFKA_TIMEOUT": "brokers",
    "KAFKA_REFUSED": "brokers",
    "MISSING_RIGHT": "rights",
    "UNKNOWN_TOPIC": "topic",
    "NO_CONDITIONAL_PUT": "store",
    "NO_EXCLUSIVE_CREATE": "store",
    "LOCATION_UNREADABLE": "store",
    "JOURNAL_STORE_FAILED": "store",
    "LOCATION_NOT_A_FOLDER": "store",
    "LOCATION_MOVED": "location",
    "LOCATION_MOVED_ON": "location",
    "LOCATION_PUT_BACK": "location",
    "LOCATION_TAKEN": "location",
    "RESTORE_UNFINISHED": "location",
    "ADOPTED_NOT_STARTED": "location",
    "TABLE_NEEDS_FEATURES": "table",
    "TABLE_UNREACHABLE": "table",
    "DATABASE_UNREACHABLE": "database",
    "DATABASE_REFUSED": "database",
    "DATABASE_SLOW": "database",
    "STORE_GONE": "target",
    "STORE_WENT_BACK": "target",
    "MISSING_DDL": "rights",
    "REGISTRY_UNREACHABLE": "registry",
    "REGISTRY_REFUSED": "registry",
    "UNSUPPORTED_SCHEMA": "registry",
    "MISSING_OPTION": "options",
    "UNKNOWN_OPTION": "options",
    "FORBIDDEN_OPTION": "options",
    "INVALID_OPTION": "options",
}


def failed(error: TwoPhaseCommitError) -> Finding:
    """Return the finding for an error that would make a query fail."""
    check = _OF_CONDITION.get(error.condition, "sink")
    if error.condition == "INVALID_OPTION" and error.parameters.get("option") == "kafka.transaction.timeout.ms":
        check = "transaction-timeout"
    return Finding(check, Level.PROBLEM, str(error), condition=error.condition)
