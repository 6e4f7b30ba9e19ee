"""A table of a database, as the crash matrix sees it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from connector.sql.control_tables import TRANSACTIONS
from integration.postgresql import PostgresqlServer

__all__ = ["SqlOutput"]


class SqlOutput:
    """The table of a job with the sink ``2pc-postgresql``; see `integration.driver_process.Output`.

    Parameters
    ----------
    server : PostgresqlServer
    table : str
    schema : str
        Of the staging and control tables.
    """

    def __init__(self, server: PostgresqlServer, table: str, schema: str) -> None:
        self._server, self._table, self._schema = server, table, schema

    def options(self, **more: str) -> dict[str, str]:
        """The sink's options."""
        address = {"url": self._server.url, "dbtable": self._table, "stagingSchema": self._schema}
        return {"format": "2pc-postgresql", **address, **more}

    def rows(self) -> Counter[int]:
        """See `Output`."""
        found = self._ask(self._table, "SELECT value, count(*) FROM {} GROUP BY value")
        return Counter({int(value): count for value, count in found})

    def open_transactions(self) -> list[str]:
        """See `Output`."""
        statement = "SELECT nonce FROM {} WHERE state = 'prepared' ORDER BY nonce"
        return [nonce for (nonce,) in self._ask(f"{self._schema}.{TRANSACTIONS}", statement)]

    def lose(self, names: list[str]) -> None:
        """See `Output`: someone deletes their staged rows."""
        for table in self._staging():
            self._server.ask(f"DELETE FROM {table} WHERE barrier_nonce = ANY (%s)", names)

    def is_quiet(self) -> bool:
        """See `Output`."""
        return not self.open_transactions()

    def staged(self) -> int:
        """How many rows are staged."""
        return sum(self._server.ask(f"SELECT count(*) FROM {table}")[0][0] for table in self._staging())

    def _staging(self) -> list[str]:
        statement = (
            "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname = %s AND tablename LIKE 'staged%%'"
        )
        return [name for (name,) in self._server.ask(statement, self._schema)]

    def _ask(self, table: str, statement: str) -> list[Any]:
        if self._server.ask("SELECT to_regclass(%s)", table)[0][0] is None:
            return []
        return self._server.ask(statement.format(table))
