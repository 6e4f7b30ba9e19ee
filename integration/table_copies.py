"""A database's tables as `StoreMatrix` has them copied, put back, removed and replaced: by their rows, and by other names.

A table that is put back keeps its identity, as one of a restored snapshot does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from integration.every_line import EveryLine
from integration.ports import HOST
from transactional.sink import Options
from transactional.testing import StoreMatrix
from transactional.testing.store_matrix import DAMAGES, MOMENTS, _Query

__all__ = ["TableCopies"]

Rows = dict[str, list[Any]]

CONTROL, AWAY = "barrier", "barrier_away"
"""The schema of the control tables, and where they are while they are gone."""


QUICK = [("older copy", "driver lives"), ("gone", "run begins"), ("replaced", "run begins")]
"""The cells that `make test` has; the others are in the matrix."""

CELLS = [
    pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.matrix, id="-".join(cell))
    for cell in itertools.product(DAMAGES, MOMENTS)
]


class TableCopies(EveryLine, StoreMatrix):
    """The hooks of a database sink's tests, over a server's ``ask``. Set `database` and `table` in the fixture."""

    ordered = False
    deaths = 6  # at every line: in the matrix
    database: Any
    table: str

    @staticmethod
    def renaming(name: str, other: str) -> str:
        """Return the statement that gives a table another name."""
        raise NotImplementedError

    def throughProxy(self, options: Mapping[str, str], forward: Callable[[str, int], int]) -> Mapping[str, str]:
        port = self.database.port
        return {**options, "url": options["url"].replace(f":{port}/", f":{forward(HOST, port)}/")}

    def takeCopy(self, options: Mapping[str, str]) -> Rows:
        return {name: self.database.ask(f"SELECT * FROM {name}") for name in [self.table, *self._control(CONTROL)]}

    def putBack(self, options: Mapping[str, str], copy: Rows) -> None:
        if self._control(AWAY):
            self._drop([self.table, *self._control(CONTROL)])
            self._rename(AWAY, CONTROL, f"{self.table}_away", self.table)
        for name in [self.table, *self._control(CONTROL)]:
            self.database.ask(f"DELETE FROM {name}")
            for row in copy.get(name, []):
                self.database.ask(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", *row)

    def remove(self, options: Mapping[str, str]) -> None:
        self._rename(CONTROL, AWAY, self.table, f"{self.table}_away")

    def replace(self, options: Mapping[str, str]) -> None:
        self.remove(options)
        suite: Any = self
        other = suite.sink_type(Options(options).replaced(transactionalidprefix="another"), suite.schema())
        other.identify()
        other.close()

    @pytest.mark.parametrize(("damage", "moment"), CELLS)
    def test_a_store_that_is_not_the_journal_s_is_never_written_into(
        self, sink_options: Mapping[str, str], damage: str, moment: str
    ) -> None:
        """As every sink, on the real server."""
        super().test_a_store_that_is_not_the_journal_s_is_never_written_into(sink_options, damage, moment)

    def test_other_control_tables_are_asked_for_by_an_option_and_are_not_missing(
        self, sink_options: Mapping[str, str]
    ) -> None:
        """Who sets `stagingSchema` was told that a volume is not mounted."""
        query = self.begun(sink_options)
        query.options["stagingschema"] = "barrier_2"
        for batch in (2, 3):
            query.run(batch, [batch])
        suite: Any = self
        assert sorted(suite.visible(query.options)) == [0, 1, 2, 3]

    def begun(self, options: Mapping[str, str]) -> _Query:
        """Return a query that has committed two micro-batches, and is about to go on with another driver."""
        suite: Any = self
        query = _Query(suite, options, versions=False)
        query.run(0, [0])
        query.run(1, [1])
        query.restart()
        return query

    def _control(self, schema: str) -> list[str]:
        statement = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
        return [f"{schema}.{name}" for (name,) in self.database.ask(statement, schema)]

    def _rename(self, schema: str, other: str, table: str, renamed: str) -> None:
        self.database.ask(f"CREATE SCHEMA IF NOT EXISTS {other}")
        for name in self._control(schema):
            self.database.ask(self.renaming(name, f"{other}.{name.split('.')[1]}"))
        self.database.ask(self.renaming(table, renamed))

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            self.database.ask(f"DROP TABLE IF EXISTS {name}")
