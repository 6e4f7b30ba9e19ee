"""What may hurt a query that writes to MySQL or MariaDB later, and is right at its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from connector.sinks import good, problem, unknown, warning
from connector.sql.dialect import Target
from connector.sql.fitting import unique_warnings
from connector.sql.mysql_table import Column, Mysql
from transactional import Finding

__all__ = ["examine_database"]


def examine_database(
    cursor: Any, described: str, target: Target[Column] | None, key: Sequence[str], dialect: Mysql, galera: bool
) -> Iterator[Finding]:
    """Look at a server and a table."""

    def ask(statement: str) -> Any:
        cursor.execute(statement)
        return cursor.fetchone()[0]

    yield good("database", f"{described}: {ask('SELECT @@version')}")
    for name, loses in (
        ("innodb_flush_log_at_trx_commit", "the server loses rows that it has called committed"),
        ("sync_binlog", "replicas may have rows that the server has lost, or lack rows that it has"),
    ):
        if (name == "sync_binlog" and not ask("SELECT @@log_bin")) or ask(f"SELECT @@{name}") == 1:
            continue
        yield problem("database", f"{name} is not 1: when the machine fails, {loses}.", f"Set {name} = 1 in my.cnf.")
    if ask("SELECT @@log_bin") and ask("SELECT @@binlog_format") == "STATEMENT":
        yield problem(
            "database",
            "binlog_format is STATEMENT: the server refuses transactions that read what is committed.",
            "Set binlog_format = ROW (or MIXED) in my.cnf.",
        )
    if galera:
        yield warning(
            "database",
            "It is a Galera cluster, with which this sink is not tested.",
            "Let the address lead to one of its servers at a time.",
        )
    yield unknown(
        "rights", "Whether this user may create and write is not checked here.", "The query's start checks it."
    )
    if target is not None:
        yield from _triggers(cursor, target, dialect)
    if target is not None and not key:
        written = {column.name for column in target.columns if not column.counted}
        yield from unique_warnings(target, (index for index in target.keys if index.columns <= written))


def _triggers(cursor: Any, target: Target[Column], dialect: Mysql) -> Iterator[Finding]:
    has = dialect.has_trigger(cursor, target)
    if has:
        yield warning(
            "database",
            f"{target.name} has a trigger, so its rows are not tried before a checkpoint is decided.",
            "If the trigger, a constraint or a unique index may refuse a row, filter such rows before they are written.",
        )
    elif has is None:
        yield warning(
            "rights",
            f"This user can't see the triggers of {target.name}, so its rows are not tried before a checkpoint is decided.",
            f"GRANT TRIGGER ON {target.name} to this user.",
        )
