"""Which columns of a query go into which of a table. That the servers keep each value, the integration tests say."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from connector.sql import mysql_table, postgresql_table
from connector.sql.dialect import Index, Target
from connector.sql.fitting import create_statement, fit, in_micros
from connector.sql.mysql_table import Mysql
from connector.sql.postgresql_sink import PostgresqlSink
from connector.sql.postgresql_table import Postgresql
from transactional.errors import OptionError, RowRefusedError
from transactional.sink import Options

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def column(name: str, kind: str, base: str, modifier: int = -1, not_null: bool = False) -> postgresql_table.Column:
    """A column of PostgreSQL."""
    return postgresql_table.Column(name, kind, base, not_null, False, False, modifier)


ID, NAME = column("id", "bigint", "int8", not_null=True), column("name", "text", "text")
COUNTED = replace(column("number", "bigint", "int8", not_null=True), filled=True)


def table(*columns: postgresql_table.Column, keys: tuple[str, ...] = ("id",)) -> postgresql_table.Target:
    """A table of PostgreSQL."""
    unique = [Index("", frozenset(keys))] if keys else []
    facts = 7, False, False, frozenset[str](), False, False, 0, False, False
    return postgresql_table.Target('"public"."t"', '"t"', 7, columns, unique, [], *facts)


def test_columns_are_found_by_name_in_whatever_case_and_order() -> None:
    found = fit(Postgresql(), SCHEMA, table(NAME, replace(ID, name="ID"), COUNTED, keys=("ID",)), ["id"])
    assert [each.name for each in found] == ["ID", "name"]


@pytest.mark.parametrize(
    ("columns", "schema", "key", "told"),
    [
        ((ID,), SCHEMA, (), "has no column name"),
        ((ID, NAME), pa.schema([*SCHEMA, ("ID", pa.int64())]), (), "two columns of the query match the column id"),
        ((ID, NAME, column("more", "int", "int4", not_null=True)), SCHEMA, (), "more of .* is NOT NULL"),
        ((ID, replace(NAME, computed=True)), SCHEMA, (), "the database computes the column name"),
        ((replace(ID, computed=True), NAME), SCHEMA, (), "the database computes the column id"),
        (
            (ID, NAME),
            pa.schema([("name", pa.string()), ("id", pa.int64())]),
            ("name",),
            "no unique index on exactly name",
        ),
        ((ID, NAME), SCHEMA, ("id", "other"), "the query does not have all of these columns"),
        ((replace(ID, not_null=False), NAME), SCHEMA, ("id",), "id of .* is in upsertKey, but allows null"),
        ((), pa.schema([]), (), "the query has no columns"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_row(
    columns: tuple[postgresql_table.Column, ...], schema: pa.Schema, key: tuple[str, ...], told: str
) -> None:
    with pytest.raises(OptionError, match=f"COLUMNS_MISMATCH.*{told}"):
        fit(Postgresql(), schema, table(*columns), key)


DELETING = pa.schema([("gone", pa.bool_()), *SCHEMA])
"""The query's columns with ``deleteColumn`` = ``gone``."""


@pytest.mark.parametrize(
    ("found", "schema", "deletes", "told"),
    [
        (table(ID, NAME), SCHEMA, "gone", "the query has no column with the name gone"),
        (table(ID, NAME), DELETING, "name", "needs a boolean column, but the query's column name is text"),
        (table(ID, NAME), pa.schema([*DELETING, ("GONE", pa.bool_())]), "gone", "2 columns with the name gone"),
        (table(ID, NAME, column("Gone", "boolean", "bool")), DELETING, "gone", "has the column Gone: rename"),
        (
            table(ID, NAME, column("Gone", "boolean", "bool"), column("GONE", "boolean", "bool")),
            DELETING,
            "gone",
            "has the column Gone: rename",
        ),
        (replace(table(ID, NAME), refers_to_itself=True), DELETING, "gone", "has a foreign key to itself"),
        (replace(table(ID, NAME), hides=True), DELETING, "gone", "row-level security"),
        (table(ID), pa.schema([("gone", pa.bool_())]), "gone", "the query has no columns"),
    ],
)
def test_a_column_that_can_not_say_which_rows_delete_is_refused(
    found: postgresql_table.Target, schema: pa.Schema, deletes: str, told: str
) -> None:
    with pytest.raises(OptionError, match=f"COLUMNS_MISMATCH.*{told}"):
        fit(Postgresql(), schema, found, ["id"], deletes)


def test_the_column_that_says_which_rows_delete_is_staged_but_not_written() -> None:
    found = fit(Postgresql(), DELETING, table(ID, NAME), ["id"], "GONE")
    assert [each.name for each in found] == ["barrier_deletes", "id", "name"]
    assert "gone" not in create_statement(Postgresql(), DELETING, "t", ["id"], "gone")


def test_only_a_row_that_deletes_may_lack_what_the_table_needs() -> None:
    name = replace(NAME, not_null=True)
    checked = replace(table(ID, name), checks=[("CHECK ((id > 0)) NO INHERIT", frozenset({"id"}))])
    staged = [Postgresql().flag, ID, name]
    made, _ = Postgresql().staging_statements("s", checked, staged, ["name"])
    assert '"barrier_deletes" boolean NOT NULL, "id" bigint NOT NULL, "name" text,' in made
    assert "CHECK (barrier_deletes OR ((id > 0)))" in made
    assert 'CONSTRAINT "null in name" CHECK (barrier_deletes OR "name" IS NOT NULL)' in made
    plain, _ = Postgresql().staging_statements("s", checked, [ID, name])
    assert '"name" text NOT NULL, CHECK ((id > 0)) NO INHERIT)' in plain


@pytest.mark.parametrize("mariadb", [False, True])
def test_only_a_row_that_deletes_may_lack_what_a_table_of_mysql_needs(mariadb: bool) -> None:
    columns = [field("id", "bigint", "bigint", not_null=True), field("day", "timestamp(6)", "timestamp", not_null=True)]
    found = Target("`d`.`t`", "t", "`d`.`t`", columns, (PRIMARY,), [("(`id` > 0)", frozenset({"id"}))])
    (made,) = Mysql(mariadb).staging_statements("s", found, [Mysql(mariadb).flag, *columns], ["day"])
    assert "`id` bigint NOT NULL, `day` timestamp(6) NULL DEFAULT NULL, " in made
    assert "CHECK (barrier_deletes OR ((`id` > 0)))" in made
    assert "CHECK (barrier_deletes OR `day` IS NOT NULL)" in made


def test_a_key_with_an_enum_deletes_nothing_in_mysql() -> None:
    columns = [field("id", "enum('a')", "enum", not_null=True), field("name", "longtext", "longtext")]
    found = Target("`d`.`t`", "t", "`d`.`t`", columns, (PRIMARY,), [])
    schema = pa.schema([("gone", pa.bool_()), ("id", pa.string()), ("name", pa.string())])
    with pytest.raises(OptionError, match=r"COLUMNS_MISMATCH.*id of `d`.`t` is an enum"):
        fit(Mysql(True), schema, found, ["id"], "gone")


def numeric(precision: int, scale: int) -> int:
    """The modifier of a numeric."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("kind", "base", "modifier", "fits"),
    [
        (pa.decimal128(10, 2), "numeric", numeric(10, 2), True),
        (pa.decimal128(10, 3), "numeric", numeric(10, 2), False),
        (pa.decimal128(10, 0), "numeric", numeric(10, -2), False),
        (pa.decimal128(38, 10), "numeric", -1, True),
        (pa.int64(), "numeric", numeric(10, 0), True),
        (pa.int64(), "numeric", numeric(10, -3), False),
        (pa.float64(), "float4", -1, False),
        (pa.float32(), "float8", -1, True),
        (pa.timestamp("us", "UTC"), "timestamptz", -1, True),
        (pa.timestamp("us", "UTC"), "timestamptz", 3, False),
        (pa.timestamp("us", "UTC"), "timestamp", -1, False),
        (pa.timestamp("us"), "timestamptz", -1, False),
        (pa.string(), "numeric", -1, True),
        (pa.string(), "numeric", numeric(10, 2), False),
        (pa.string(), "float8", -1, False),
        (pa.string(), "bytea", -1, False),
        (pa.string(), "interval", 3, False),
        (pa.list_(pa.int64()), "_int8", -1, True),
        (pa.list_(pa.int64()), "int8", -1, False),
        (pa.list_(pa.list_(pa.int64())), "_int8", -1, False),
        (pa.list_(pa.string()), "_varchar", 14, False),
    ],
    ids=str,
)
def test_postgresql_takes_a_type_only_where_no_value_of_it_changes(
    kind: pa.DataType, base: str, modifier: int, fits: bool
) -> None:
    assert (Postgresql().why_not(kind, column("c", base, base, modifier)) == "") == fits


def test_each_prefix_and_each_form_of_the_table_has_a_staging_table_of_its_own() -> None:
    """What an earlier run has prepared is still in the former one."""

    def name(prefix: str, target: postgresql_table.Target) -> str:
        options = {"url": "postgresql://db/x", "dbtable": "t", "transactionalIdPrefix": prefix}
        return PostgresqlSink(Options(options), SCHEMA)._staging_of(target, target.columns)

    plain = table(ID, NAME)
    others = [
        replace(plain, mark=8),
        table(ID, replace(NAME, not_null=True)),
        table(ID, column("name", "character varying(9)", "varchar", 13)),
        replace(plain, checks=[("CHECK (id > 0)", frozenset({"id"}))]),
    ]
    names = [name("p", plain), name("q", plain), *(name("p", each) for each in others)]
    assert len({*names}) == len(names)
    assert name("p", plain) == names[0]


@pytest.mark.parametrize("base", ["varchar", "bpchar"])
def test_a_text_whose_blanks_postgresql_would_cut_is_refused_by_the_staging_table(base: str) -> None:
    staged = Postgresql().definition(column("name", f"{base}(9)", base, 13))
    assert staged.startswith('"name" text ')
    assert 'char_length("name") <= 9' in staged
    assert ("NOT LIKE '% '" in staged) == (base == "bpchar")


# -- MySQL ---------------------------------------------------------------------------------------------------------


def field(name: str, kind: str, base: str, not_null: bool = False, extra: str = "") -> mysql_table.Column:
    """A column of MySQL."""
    is_text = base in mysql_table.TEXTS
    charset, collation = ("utf8mb4", "utf8mb4_bin") if is_text else (None, None)
    counted = extra == "auto_increment"
    return mysql_table.Column(name, kind, base, not_null, False, counted, counted, charset, collation)


def relation(*keys: Index, extra: str = "") -> Target[mysql_table.Column]:
    """A table of MySQL, with a column ``number`` that the query does not have."""
    columns = [
        field("id", "bigint", "bigint", not_null=True),
        field("name", "longtext", "longtext"),
        field("number", "bigint", "bigint", extra=extra),
    ]
    return Target("`d`.`t`", "t", "`d`.`t`", columns, keys, [])


PRIMARY = Index("PRIMARY", frozenset({"id"}), True)


@pytest.mark.parametrize(
    ("keys", "extra", "told"),
    [
        ((PRIMARY,), "", ""),
        ((), "", "no unique index on exactly id"),
        ((replace(PRIMARY, whole=False),), "", r"no unique index on exactly id \(whole columns\)"),
        ((Index("both", frozenset({"id", "name"}), True),), "", "no unique index on exactly id"),
        ((PRIMARY, Index("second", frozenset({"name"}), True)), "", r"another unique index \(second\)"),
        ((PRIMARY, Index("second", frozenset({"name"}), False)), "", r"another unique index \(second\)"),
        ((PRIMARY, Index("counted", frozenset({"number"}), True)), "", r"another unique index \(counted\)"),
        ((PRIMARY, Index("counted", frozenset({"number"}), True)), "auto_increment", ""),
    ],
)
def test_an_upsert_of_mysql_replaces_rows_of_its_own_key_only(keys: tuple[Index, ...], extra: str, told: str) -> None:
    if not told:
        fit(Mysql(True), SCHEMA, relation(*keys, extra=extra), ["id"])
        return
    with pytest.raises(OptionError, match=f"COLUMNS_MISMATCH.*{told}"):
        fit(Mysql(True), SCHEMA, relation(*keys, extra=extra), ["id"])


@pytest.mark.parametrize("mariadb", [False, True])
@pytest.mark.parametrize(
    ("found", "kind", "check"),
    [
        (field("c", "char(3)", "char"), "varchar(3)", "`c` NOT LIKE '% '"),
        (field("c", "varchar(3)", "varchar"), "varchar(3)", ""),
        (field("c", "enum('a','it''s')", "enum"), "varchar(255)", "IN (x'61', x'69742773')"),
        (field("c", "timestamp(6)", "timestamp", not_null=True), "timestamp(6) NULL", "`c` IS NOT NULL"),
        (field("c", "timestamp(6)", "timestamp"), "timestamp(6) NULL", ""),
    ],
)
def test_what_mysql_would_change_is_refused_by_the_staging_table(
    found: mysql_table.Column, kind: str, check: str, mariadb: bool
) -> None:
    staged = Mysql(mariadb).definition(found)
    assert staged.startswith(f"`c` {kind}")
    assert check in staged
    assert ("CHECK" in staged) == bool(check)


# -- times ---------------------------------------------------------------------------------------------------------


def test_times_of_day_are_counted_in_microseconds_or_refused() -> None:
    kinds = [pa.time64("ns"), pa.list_(pa.time64("ns"))]
    whole = pa.record_batch([pa.array([1000], kinds[0]), pa.array([[2000, None]], kinds[1])], ["a", "b"])
    found = in_micros("2pc-x", whole)
    assert [each.type for each in found.columns] == [pa.time64("us"), pa.list_(pa.time64("us"))]
    assert found.column(0).cast(pa.int64()).to_pylist() == [1]
    with pytest.raises(RowRefusedError, match=r"ROW_REFUSED.*column b"):
        in_micros("2pc-x", pa.record_batch([pa.array([0], kinds[0]), pa.array([[1]], kinds[1])], ["a", "b"]))
