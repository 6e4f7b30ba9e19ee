"""The rights in docs/rights.md, on real databases: users who have exactly these, and users who lack one of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pytest

from integration import ROOT
from integration.sql_bench import SCHEMA, Bench, server_of
from integration.sql_output import DatabaseServer
from transactional.errors import TwoPhaseCommitError
from transactional.sink import Cutoff

SERVERS = {"postgresql": "PostgreSQL", "mariadb": "MySQL and MariaDB"}
DELETING = pa.schema([*SCHEMA, ("gone", pa.bool_())])
KEYED = {"upsertKey": "id", "deleteColumn": "gone"}


class Grant(NamedTuple):
    """A row of the page's table."""

    on: str
    right: str
    when: str


def documented(section: str) -> list[Grant]:
    """The rights of one database."""
    text = (ROOT / "docs" / "rights.md").read_text().partition(f"### {section}\n")[2].partition("\n### ")[0]
    return [Grant(*row) for row in re.findall(r"^\| ([^|]+) \| ([A-Z]+) \| ([^|]+) \|", text, re.MULTILINE)]


@pytest.fixture(scope="module", params=SERVERS)
def database(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    with server_of(request.param) as server:
        yield server


class Table:
    """A table that an administrator has made, with all that the sink needs."""

    def __init__(self, database: DatabaseServer, deletes: bool) -> None:
        name = uuid.uuid4().hex[:8]
        self.database, self.table, self.schema = database, f"t_{name}", f"s_{name}"
        self.key = "varchar(9)" if database.FORMAT == "2pc-mysql" else "text"
        database.ask(f"CREATE TABLE {self.table} (id bigint NOT NULL PRIMARY KEY, value {self.key})")
        self.columns, self.options = (DELETING, dict(KEYED)) if deletes else (SCHEMA, {})
        self.bench = Bench(database, self.table, self.columns, stagingSchema=self.schema, **self.options)

    def user(self, rights: Sequence[Grant]) -> dict[str, str]:
        """Options of a new user with these rights and no others."""
        name = f"u_{uuid.uuid4().hex[:8]}"
        mysql = self.database.FORMAT == "2pc-mysql"
        self.database.ask(
            f"CREATE USER {name} IDENTIFIED BY 'x'" if mysql else f"CREATE ROLE {name} LOGIN PASSWORD 'x'"
        )
        tables = f"{self.schema}.*" if mysql else f"ALL TABLES IN SCHEMA {self.schema}"
        places = {
            "the target": self.table,
            "all tables of `barrier`": tables,
            "schema `barrier`": f"SCHEMA {self.schema}",
        }
        for right in rights:
            self.database.ask(f"GRANT {right.right} ON {places[right.on]} TO {name}")
        return {"url": self.database.address, "user": name, "password": "x"}

    def live(self, rights: Sequence[Grant]) -> None:
        """A query's whole life as a user with these rights: two checkpoints, an abort, a sweep."""
        given = {**self.user(rights), "stagingSchema": self.schema, **self.options}
        given["transactionalIdPrefix"] = self.bench.prefix  # for whose staging table the administrator has seen
        bench = Bench(self.database, self.table, self.columns, **given)
        more = [False] if self.options else []
        handles = [bench.prepare([[1, "a", *more], [2, "b", *more]], batch) for batch in range(1 + len(more))]
        bench.commit(*handles)
        if more:
            bench.commit(bench.prepare([[1, "c", False], [2, None, True]], 7), after=1)
        else:
            bench.commit(bench.prepare([[3, "c"]], 7), after=1)
        sink = bench.sink()
        sink.abort([bench.prepare([[4, "d", *more]], 8)])
        sink.sweep([], Cutoff(bench.query, 9, 0))
        sink.close()
        assert sorted(bench.rows()) == ([(1, "c")] if more else [(1, "a"), (2, "b"), (3, "c")])
        assert bench.staged() == 0


@pytest.mark.parametrize("deletes", [False, True])
def test_a_user_with_exactly_the_documented_rights_writes(database: DatabaseServer, deletes: bool) -> None:
    rights = rights_of(database)
    Table(database, deletes).live(rights if deletes else [right for right in rights if right.when == "always"])


def rights_of(database: DatabaseServer) -> list[Grant]:
    return documented(SERVERS["mariadb" if database.FORMAT == "2pc-mysql" else "postgresql"])


def test_each_documented_right_is_needed(database: DatabaseServer) -> None:
    rights = rights_of(database)
    assert len({*rights}) == len(rights) > 7
    for missing in rights:
        with pytest.raises(TwoPhaseCommitError, match=r"(?i)denied|permission"):
            Table(database, True).live([right for right in rights if right != missing])
