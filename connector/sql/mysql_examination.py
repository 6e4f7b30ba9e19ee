"""Find problems of a MySQL or MariaDB server that could stop a query later, although the query can start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from connector.sinks import good, problem, unknown, warning
from connector.sql.dialect import Target
from connector.sql.fitting import unique_warnings
from connector.sql.mysql_table import Column, Mysql
from transactional import Finding


def examine_database(
    cursor: Any, described: str, target: Target[Column] | None, key: Sequence[str], dialect: Mysql, galera: bool
) -> Iterator[Finding]:
    """Yield findings about a server and, if it exists, the target. `described` is the target's name for messages."""

    def ask(statement: str) -> Any:
        cursor.execute(statement)
        return cursor.fetchone()[0]

    yield good("database", f"{described}: {ask('SELECT @@version')}")
    for name, loses in (
        ("innodb_flush_log_at_trx_commit", "the server can lose rows that it has confirmed as committed"),
        ("sync_binlog", "replicas may have rows that the server has lost, or lack rows that the server has"),
    ):
        if (name == "sync_binlog" and not ask("SELECT @@log_bin")) or ask(f"SELECT @@{name}") == 1:
            continue
        yield problem("database", f"{name} is not 1: if the machine fails, {loses}.", f"Set {name} = 1 in my.cnf.")
    if ask("SELECT @@log_bin") and ask("SELECT @@binlog_format") == "STATEMENT":
        yield problem(
            "database",
            "binlog_format is STATEMENT: the server refuses writes in READ COMMITTED transactions, which the sink uses.",
            "Set binlog_format = ROW (or MIXED) in my.cnf.",
        )
    if galera:
        yield warning(
            "database",
            "The server is part of a Galera cluster. This sink is not tested with Galera.",
            "Make sure that the address leads to only one of the cluster's servers at a time.",
        )
    yield unknown(
        "rights",
        "It was not checked whether this user may create and write tables.",
        "The query checks these rights when it starts.",
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
            f"{target.name} has a trigger, so tasks can't test rows before a checkpoint is decided.",
            "If the trigger, a constraint or a unique index may reject a row, filter out such rows in the query.",
        )
    elif has is None:
        yield warning(
            "rights",
            f"This user can't see triggers of {target.name}, so tasks can't test rows before a checkpoint is decided.",
            f"GRANT TRIGGER ON {target.name} to this user.",
        )
