"""Find problems of a PostgreSQL server that could stop a query later, although the query can start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from connector.sinks import good, problem, warning
from connector.sql.fitting import unique_warnings
from connector.sql.postgresql_table import Postgresql, Target
from transactional import Finding

STOPPING: Final = """
SELECT 'row-level security' FROM pg_class WHERE oid = %(target)s AND relrowsecurity
UNION ALL SELECT 'the trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(target)s AND NOT tgisinternal
UNION ALL SELECT 'the deferred constraint ' || conname FROM pg_constraint WHERE conrelid = %(target)s AND condeferrable
UNION ALL SELECT 'the index ' || indexrelid::regclass || ' on an expression' FROM pg_index
    WHERE indrelid = %(target)s AND indexprs IS NOT NULL
UNION ALL SELECT 'the domain of ' || a.attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %(target)s AND a.attnum > 0 AND t.typtype = 'd'
UNION ALL SELECT 'the collation of ' || a.attname || ', in which different strings can be equal'
    FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
    WHERE a.attrelid = %(target)s AND a.attnum > 0 AND NOT c.collisdeterministic
ORDER BY 1
"""
"""The query that lists everything in a table that can reject a row which the staging table has accepted."""


def examine_database(
    cursor: Any,
    described: str,
    server: str,
    target: Target | None,
    key: Sequence[str],
    schema: str,
    deletes: bool = False,
) -> Iterator[Finding]:
    """Yield findings about a server, the target (if it exists) and this user's rights.

    `described` is the target's name for messages, `server` the value of `PostgresqlSink.server`, and `schema` the
    option ``stagingSchema``. If `deletes` is true, the query may delete rows.
    """

    def ask(statement: str, *parameters: Any) -> Any:
        return cursor.execute(statement, parameters or None).fetchone()[0]

    yield good("database", f"{described}: PostgreSQL {ask('SHOW server_version').split()[0]}")
    if ask("SHOW fsync") == "off":
        yield problem(
            "database",
            "fsync is off: if the machine fails, the server can lose rows that it has confirmed as committed.",
            "Set fsync = on in postgresql.conf.",
        )
    if not server:
        yield warning(
            "database",
            "This user can't read the server's identity, so the query notices a failover only at the next start.",
            "GRANT EXECUTE ON FUNCTION pg_control_system(), pg_walfile_name(pg_lsn), pg_current_wal_lsn() to this user.",
        )
    yield from _rights(ask, target, ["SELECT", "INSERT", *["UPDATE"] * bool(key), *["DELETE"] * deletes], schema)
    if target is not None:
        if target.unlogged:
            yield problem(
                "database",
                f"{target.name} is UNLOGGED: a crash of the server empties it, and the rows are not written again.",
                f"ALTER TABLE {target.name} SET LOGGED.",
            )
        own = {column.name for name in key if (column := target.column(name)) is not None}
        yield from unique_warnings(target, (index for index in target.keys if index.columns != own))
        stopping = [text for (text,) in cursor.execute(STOPPING, {"target": target.oid}).fetchall()]
        if stopping:
            yield warning(
                "database",
                f"{target.name} can reject rows at a commit, after the checkpoint is decided: {', '.join(stopping)}.",
                "Each task tests its first rows. If a commit still fails, correct the table, and start the query again.",
            )
    if ask("SHOW synchronous_standby_names") and not ask(
        "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
    ):
        yield warning(
            "database",
            "synchronous_standby_names is set, but no synchronous standby is visible: each commit waits for a standby.",
            "Start the standby, or correct synchronous_standby_names.",
        )


def _rights(ask: Any, target: Target | None, needed: Sequence[str], schema: str) -> Iterator[Finding]:
    if ask("SELECT to_regnamespace(%s)", Postgresql.quoted(schema)) is None:
        if not ask("SELECT has_database_privilege(current_database(), 'CREATE')"):
            yield problem(
                "rights",
                f"The schema {schema} does not exist, and this user may not create it.",
                f"CREATE SCHEMA {Postgresql.quoted(schema)}, and GRANT CREATE, USAGE on it to this user.",
                "MISSING_DDL",
            )
            return
    elif not ask("SELECT has_schema_privilege(%s, 'USAGE')", schema):
        yield problem(
            "rights",
            f"This user may not use the schema {schema}.",
            f"GRANT USAGE ON SCHEMA {Postgresql.quoted(schema)} to this user.",
        )
        return
    if target is not None:
        missing = [right for right in needed if not ask("SELECT has_table_privilege(%s::oid, %s)", target.oid, right)]
        if missing:
            rights = ", ".join(missing)
            yield problem(
                "rights",
                f"This user lacks {rights} on {target.name}.",
                f"GRANT {rights} ON {target.name} to this user.",
            )
            return
    yield good("rights", "the sink has all rights that it needs")
