"""A sink for a database, called as its host calls it: tasks that prepare, commits, and what is then in the table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from connector.formats.discovery import find_sink
from connector.sql.mysql_sink import MysqlSink
from connector.sql.postgresql_sink import PostgresqlSink
from connector.sql.staged_sink import StagedHandle
from integration.mariadb import MariadbServer, mariadb_or_skip
from integration.postgresql import PostgresqlServer
from integration.sql_output import DatabaseServer, SqlOutput
from transactional.checkpoint import DecidedCheckpoint
from transactional.sink import Cutoff, Options, TransactionContext

__all__ = ["SCHEMA", "Bench", "options_of", "server_of", "sink_of"]

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])


@contextmanager
def server_of(name: str) -> Iterator[DatabaseServer]:
    """Run a database server, ``postgresql`` or ``mariadb``; skip the test if there is none."""
    if name == "mariadb":
        mariadb_or_skip()
    with MariadbServer() if name == "mariadb" else PostgresqlServer() as server:
        yield server


def options_of(database: DatabaseServer, table: str, **more: str) -> dict[str, str]:
    """A query's options."""
    return {"url": database.url, "dbtable": table, "transactionalIdPrefix": f"p-{table}", **more}


def sink_of(
    database: DatabaseServer, options: dict[str, str], schema: pa.Schema = SCHEMA
) -> MysqlSink | PostgresqlSink:
    """The sink of a database."""
    found = find_sink(database.FORMAT)(Options(options), schema)
    assert isinstance(found, (MysqlSink, PostgresqlSink))
    return found


class Bench:
    """A sink of one query on one table."""

    def __init__(self, database: DatabaseServer, table: str, schema: pa.Schema = SCHEMA, **options: str) -> None:
        self.database, self.table, self.schema = database, table, schema
        self.options = options_of(database, table, **options)  # Besides those of `options_of`.
        self.prefix = self.options["transactionalIdPrefix"]
        self.query = f"q-{table}"
        self.number = 0
        sink = self.sink()
        self.identity = sink.identify()
        self.mark = sink.guardRun(None)
        sink.close()

    def sink(self) -> MysqlSink | PostgresqlSink:
        """A new one, with a connection of its own."""
        return sink_of(self.database, self.options, self.schema)

    def sweep(self) -> int:
        """Sweep as a later run does."""
        return self.sink().sweep([], Cutoff(self.query, 9, 0))

    def prepare(self, rows: Sequence[Sequence[Any]], batch: int = 0, partition: int = 0, run: int = 1) -> StagedHandle:
        """Run a task with these rows, each an Arrow batch of its own."""
        columns = [list(values) for values in zip(*rows, strict=True)]
        whole = pa.RecordBatch.from_pydict(dict(zip(self.schema.names, columns, strict=True)), schema=self.schema)
        return self.prepare_batches([whole.slice(at, 1) for at in range(len(rows))], batch, partition, run)

    def prepare_batches(
        self, batches: Sequence[pa.RecordBatch], batch: int = 0, partition: int = 0, run: int = 1
    ) -> StagedHandle:
        """Run a task."""
        sink = self.sink()
        try:
            context = TransactionContext(self.query, batch, partition, 0, self.prefix, os.urandom(8).hex(), run)
            transaction = sink.beginTransaction(context)
            for rows in batches:
                sink.write(transaction, rows)
            return sink.preCommit(transaction)
        finally:
            sink.close()

    def commit(self, *handles: StagedHandle, after: int = 0) -> DecidedCheckpoint:
        """Commit a checkpoint."""
        self.number += 1
        checkpoint = DecidedCheckpoint(self.number, (0,), 0, self.query, self.prefix, after=after)
        sink = self.sink()
        try:
            sink.commit(handles, checkpoint)
        finally:
            sink.close()
        return checkpoint

    def rows(self, columns: str = "*") -> list[Any]:
        """What is in the table."""
        return list(self.database.ask(f"SELECT {columns} FROM {self.table}"))

    def staged(self) -> int:
        """How many rows are staged."""
        return SqlOutput(self.database, self.table, self.options.get("stagingSchema", "barrier")).staged(self.table)
