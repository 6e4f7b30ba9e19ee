"""A table of a database, as the crash matrix sees it."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any, Protocol

from connector.sql.control_tables import TRANSACTIONS

__all__ = ["DatabaseServer", "SqlOutput"]


class DatabaseServer(Protocol):
    """A server of the tests: `integration.postgresql`, `integration.mariadb`."""

    FORMAT: str

    @property
    def url(self) -> str:
        """Its address, with user and password."""

    @property
    def address(self) -> str:
        """Its address, without them."""

    def connect(self) -> Any:
        """Return a connection with autocommit."""

    def ask(self, statement: str, *parameters: Any) -> list[Any]:
        """Run a statement; return its rows."""

    def kill(self) -> None:
        """Kill it."""

    def start(self) -> None:
        """Start it again."""


class SqlOutput:
    """The table of a job with a sink for a database; see `integration.driver_process.Output`.

    Parameters
    ----------
    server : DatabaseServer
    table : str
    schema : str
        Of the staging and control tables.
    """

    def __init__(self, server: DatabaseServer, table: str, schema: str) -> None:
        self._server, self._table, self._schema = server, table, schema

    @classmethod
    def new(cls, server: DatabaseServer) -> SqlOutput:
        """A table, and a schema, that nobody else has."""
        name = uuid.uuid4().hex[:8]
        return cls(server, f"t_{name}", f"s_{name}")

    def check(self) -> None:
        """Nothing is left beside the rows."""
        assert self.staged() == 0
        assert self.open_transactions() == []

    def options(self, **more: str) -> dict[str, str]:
        """The sink's options."""
        address = {"url": self._server.url, "dbtable": self._table, "stagingSchema": self._schema}
        return {"format": self._server.FORMAT, **address, **more}

    def rows(self) -> Counter[int]:
        """See `Output`."""
        if not self._tables("table_name = %s", self._table):
            return Counter()
        found = self._server.ask(f"SELECT value, count(*) FROM {self._table} GROUP BY value")
        return Counter({int(value): count for value, count in found})

    def open_transactions(self) -> list[str]:
        """See `Output`."""
        if not self._tables("table_schema = %s AND table_name = %s", self._schema, TRANSACTIONS):
            return []
        table = f"{self._schema}.{TRANSACTIONS}"
        statement = f"SELECT nonce FROM {table} WHERE state = 'prepared' ORDER BY nonce"
        return [nonce for (nonce,) in self._server.ask(statement)]

    def lose(self, names: list[str]) -> None:
        """See `Output`: someone deletes their staged rows."""
        for table in self._staging():
            for name in names:
                self._server.ask(f"DELETE FROM {table} WHERE barrier_nonce = %s", name)

    def is_quiet(self) -> bool:
        """See `Output`."""
        return not self.open_transactions()

    def staged(self, target: str = "") -> int:
        """How many rows are staged, perhaps for one table only."""
        own = [table for table in self._staging() if f".staged_{target}" in table]
        return sum(self._server.ask(f"SELECT count(*) FROM {table}")[0][0] for table in own)

    def _staging(self) -> list[str]:
        return self._tables("table_schema = %s AND table_name LIKE 'staged%%'", self._schema)

    def _tables(self, where: str, *parameters: str) -> list[str]:
        statement = f"SELECT table_schema, table_name FROM information_schema.tables WHERE {where}"
        return [".".join(names) for names in self._server.ask(statement, *parameters)]
