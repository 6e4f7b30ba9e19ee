"""The dialect of MySQL and MariaDB: how the information schema describes a table, and which types fit which columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from connector.sql import dialect
from connector.sql.dialect import DELETES, OWN_COLUMNS, Index, Kind, Target, is_bytes, is_moment, is_text
from connector.sql.mysql_url import named
from transactional import OptionError

NAME: Final = "2pc-mysql"

TABLE: Final = """
SELECT table_type, engine, EXISTS (
    SELECT 1 FROM information_schema.referential_constraints AS r
    WHERE r.constraint_schema = t.table_schema AND r.unique_constraint_schema = t.table_schema
        AND r.table_name = t.table_name AND r.referenced_table_name = t.table_name
) FROM information_schema.tables AS t WHERE table_schema = %s AND table_name = %s
"""
"""The query that returns a table's kind, its engine, and whether one of its foreign keys refers to the table itself."""

COLUMNS: Final = """
SELECT column_name, column_type, LOWER(data_type), is_nullable = 'NO',
       LOWER(extra) REGEXP '(virtual|stored|persistent) generated',
       column_default IS NOT NULL OR LOWER(extra) LIKE '%%auto_increment%%', LOWER(extra) LIKE '%%auto_increment%%',
       character_set_name, collation_name, datetime_precision, numeric_scale
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""

KEYS: Final = """
SELECT index_name, column_name, sub_part
FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s AND non_unique = 0
ORDER BY index_name, seq_in_index
"""

TRIGGERS: Final = """
SELECT 1 FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table = %s LIMIT 1
"""

MAY_SEE_TRIGGERS: Final = """
SELECT 1 FROM (
    SELECT grantee FROM information_schema.user_privileges WHERE privilege_type = 'TRIGGER'
    UNION ALL SELECT grantee FROM information_schema.schema_privileges
    WHERE privilege_type = 'TRIGGER' AND %s LIKE table_schema
    UNION ALL SELECT grantee FROM information_schema.table_privileges
    WHERE privilege_type = 'TRIGGER' AND table_schema = %s AND table_name = %s
) AS found WHERE grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''') LIMIT 1
"""
"""The query that returns a row if the user may see a table's triggers. It does not find rights granted through a
role."""

TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
READ_FROM_TEXT: Final = (*TEXTS, "json", "enum", "uuid", "inet4", "inet6")
"""Column types that can store text. Numbers and times are not here: the database would silently change some strings."""

BYTES: Final = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")
WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")

CHECKS: Final = """
SELECT c.check_clause FROM information_schema.check_constraints AS c
JOIN information_schema.table_constraints AS t USING (constraint_schema, constraint_name)
WHERE t.table_schema = %s AND t.table_name = %s AND t.enforced = 'YES' ORDER BY constraint_name
"""

CHECKS_OF_MARIADB: Final = """
SELECT check_clause FROM information_schema.check_constraints
WHERE constraint_schema = %s AND table_name = %s ORDER BY constraint_name
"""


@dataclass(frozen=True)
class Column(dialect.Column):
    """A column of a table."""

    counted: bool = False  # Whether the column is AUTO_INCREMENT.
    charset: str | None = None
    collation: str | None = None
    precision: int | None = None  # In a time type, the number of decimal places of the seconds.
    scale: int | None = None  # In a numeric type, the number of decimal places.

    @property
    def whole(self) -> str:
        """The column's type, with the character set and the collation of text."""
        charset = f" CHARACTER SET {self.charset} COLLATE {self.collation}" if self.charset and self.collation else ""
        return f"{self.type}{charset}"


class Mysql(dialect.Dialect[Column]):
    """The dialect of a MySQL or MariaDB server."""

    name: ClassVar[str] = NAME
    database: ClassVar[str] = "MySQL"
    quote: ClassVar[str] = "`"
    schema_kind: ClassVar[str] = "DATABASE"
    kinds: ClassVar = (
        Kind(pa.types.is_boolean, "boolean", ("tinyint",)),
        Kind(pa.types.is_int8, "tinyint", WHOLE),
        Kind(pa.types.is_int16, "smallint", WHOLE),
        Kind(pa.types.is_int32, "int", WHOLE),
        Kind(pa.types.is_int64, "bigint", WHOLE),
        Kind(pa.types.is_integer, "", WHOLE),
        Kind(pa.types.is_float32, "float", ("float", "double")),
        Kind(pa.types.is_float64, "double", ("double",)),
        Kind(is_text, "longtext", READ_FROM_TEXT),
        Kind(is_bytes, "longblob", BYTES),
        Kind(pa.types.is_date, "date", ("date",)),
        Kind(is_moment, "datetime(6)", ("datetime", "timestamp")),  # MySQL's timestamp covers only 1970 to 2038
        Kind(pa.types.is_timestamp, "datetime(6)", ("datetime",)),
        Kind(pa.types.is_time, "time(6)", ("time",)),
    )

    def __init__(self, mariadb: bool) -> None:
        self.mariadb = mariadb  # Whether the server is MariaDB; otherwise it is MySQL.
        self.collation = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        """The collation of new tables: strings are equal only if all of their bytes are equal, including spaces at the end."""

        self.table_options = f" ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {self.collation}"
        self.isolation = "tx_isolation" if mariadb else "transaction_isolation"
        """The name of the variable that contains the isolation level."""

        which = "CONCAT(@@hostname, ':', @@port, '/', @@server_id)" if mariadb else "@@server_uuid"
        self.server = f"SELECT {which}, @@read_only"
        """The statement that reads the server's id, which its replicas do not share, and whether the server is read-only."""

    def has_schema(self, cursor: Any, schema: str) -> bool:
        """Return whether a MySQL database with this name exists."""
        return bool(cursor.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (schema,)))

    def is_there(self, cursor: Any, table: str) -> bool:
        """Return whether a table with this name exists."""
        statement = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return bool(cursor.execute(statement, named(table, "")))

    def describe(self, cursor: Any, table: str) -> Target[Column] | None:
        """Return a table's description; None if the table does not exist."""
        database, name = named(table, "")

        def ask(statement: str) -> Sequence[Sequence[Any]]:
            cursor.execute(statement, (database, name))
            found: Sequence[Sequence[Any]] = cursor.fetchall()
            return found

        found = ask(TABLE)
        if not found:
            return None
        kind, engine, refers_to_itself = found[0]
        if kind not in ("BASE TABLE", "SYSTEM VERSIONED") or str(engine).lower() != "innodb":
            expectation = "a table with the engine InnoDB, because other engines have no transactions; not a view"
            raise OptionError("INVALID_OPTION", owner=NAME, option="dbtable", value=name, expectation=expectation)
        columns = [Column(*row) for row in ask(COLUMNS)]
        keys = _indexes(ask(KEYS))
        exact = {column.name.lower(): column.name for column in columns}
        clauses = [
            str(text) if self.mariadb else re.sub(r"\\(.)", r"\1", str(text))
            for (text,) in ask(CHECKS_OF_MARIADB if self.mariadb else CHECKS)
        ]
        checks = [(text, frozenset(exact.get(each, each) for each in _columns_in(text))) for text in clauses]
        whole = f"{self.quoted(database)}.{self.quoted(name)}"
        return Target(whole, name, whole, columns, keys, checks, refers_to_itself=bool(refers_to_itself))

    def has_trigger(self, cursor: Any, target: Target[Column]) -> bool | None:
        """Return whether a table has a trigger; None if MySQL may hide it because the user lacks the TRIGGER right."""
        place = named(target.name, "")
        cursor.execute(TRIGGERS, place)
        if cursor.fetchone():
            return True
        if self.mariadb:
            return False
        cursor.execute(MAY_SEE_TRIGGERS, (place[0], *place))
        return False if cursor.fetchone() else None

    def why_not(self, kind: pa.DataType, column: Column) -> str:
        """Return the reason why a column can't store values of an Arrow type unchanged; empty if it can."""
        if pa.types.is_nested(kind):
            return "has to be converted, for example with to_json for a column of type json or text"
        if pa.types.is_decimal(kind):
            holds = column.base == "decimal" and (column.scale or 0) >= kind.scale
            return "" if holds else f"the table's column is {column.type}"
        found = self.kind(kind)
        if found is None:
            return "the database has no such type"
        wanted = found.into
        if column.base in ("datetime", "timestamp", "time") and column.base in wanted:
            return "" if column.precision == 6 else f"the table's column is {column.type}, which rounds"
        if column.base in ("float", "double") and "(" in column.type:
            return f"the table's column is {column.type}, which rounds"
        hint = ': cast it to "timestamp"' if column.base == "timestamp" and pa.types.is_timestamp(kind) else ""
        return "" if column.base in wanted else f"the table's column is {column.type}{hint}"

    def why_no_key(self, target: Target[Column], written: Sequence[str], names: Sequence[str]) -> str:
        """Return the reason why ``ON DUPLICATE KEY`` would not use just the columns `names`; empty if it would."""
        own = [index for index in target.keys if index.whole and index.columns == frozenset(names)]
        if not own:
            return (
                f"{target.name} has no unique index on exactly {', '.join(names)} (whole columns). Create one: "
                f"ALTER TABLE {target.name} ADD PRIMARY KEY ({', '.join(map(self.quoted, names))})"
            )
        counted = {column.name for column in target.columns if column.counted and column.name not in written}
        others = [index.name for index in target.keys if index not in own and not index.columns & counted]
        if not others:
            return ""
        return (
            f"{target.name} has another unique index ({', '.join(others)}): ON DUPLICATE KEY UPDATE would also replace "
            "rows with other keys"
        )

    def type_for(self, kind: pa.DataType, key: bool = False) -> str:
        """Return the type of a new table's column. In a key, text and bytes get a short type, which can have an index."""
        if pa.types.is_decimal(kind):
            return f"decimal({kind.precision},{kind.scale})"
        if key and (is_text(kind) or is_bytes(kind)):
            return "varchar(255)" if is_text(kind) else "varbinary(255)"
        return super().type_for(kind)

    @property
    def flag(self) -> Column:
        """The staging table's column `DELETES`, which is true in rows that are deletions."""
        return Column(DELETES, "boolean", "tinyint", not_null=True, computed=False, filled=False)

    def why_no_deletes(self, target: Target[Column], key: Sequence[str]) -> str:
        """Return the reason why rows of the target can't be deleted by the columns `key`; empty if they can."""
        lists = [column.name for column in target.columns if column.name in key and column.base == "enum"]
        reason = f"{', '.join(lists)} of {target.name} is an enum, which can't be compared exactly" if lists else ""
        return reason or super().why_no_deletes(target, key)

    def definition(self, column: Column, optional: bool = False) -> str:
        """Return a column's definition in a staging table.

        With this definition, MySQL can't turn null in a ``timestamp`` into the current time, read digits as the number of an
        ``enum`` value, or cut spaces at the end of a ``char``.
        """
        name, kind, check, given = self.quoted(column.name), column.whole, "", column.not_null and not optional
        null = " NOT NULL" if given else ""
        if column.base == "enum":
            kind = f"varchar(255) CHARACTER SET utf8mb4 COLLATE {self.collation}"
            check = f" CHECK (CAST({name} AS BINARY) IN ({', '.join(map(_literal, _values(column.type)))}))"
        if column.base == "char":
            kind = f"var{kind}"
            check = f" CHECK ({name} NOT LIKE '% ')"
        if column.base == "timestamp":
            check = f" CHECK ({name} IS NOT NULL)" if given else ""
            null = " NULL DEFAULT NULL"
        return f"{name} {kind}{null}{check}"

    def staging_statements(
        self,
        staging: str,
        target: Target[Column],
        written: Sequence[Column],
        optional: Collection[str] | None = None,
    ) -> list[str]:
        """Return the statement that creates a staging table. The primary key keeps each transaction's rows in order."""
        nonce, row = OWN_COLUMNS
        columns = [
            f"{nonce} VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
            f"{row} BIGINT NOT NULL",
            f"PRIMARY KEY ({nonce}, {row})",
            *(self.definition(each, each.name in (optional or ())) for each in written),
        ]
        for number, clause in enumerate(target.checks_on(written)):
            said = f"{number} on {' '.join(_columns_in(clause))}"[:64].strip()  # MariaDB's error shows only this name
            name = f"CONSTRAINT {self.quoted(said)} " if self.mariadb else ""  # MySQL: must be unique in the schema
            columns.append(f"{name}CHECK ({clause})" if optional is None else f"{name}CHECK ({DELETES} OR ({clause}))")
        for number, column in enumerate(optional or ()):
            name = f"CONSTRAINT {self.quoted(f'{number} null in {column}'[:64].strip())} " if self.mariadb else ""
            columns.append(f"{name}CHECK ({DELETES} OR {self.quoted(column)} IS NOT NULL)")
        return [f"CREATE TABLE IF NOT EXISTS {staging} ({', '.join(columns)}){self.table_options}"]


def _columns_in(clause: str) -> list[str]:
    """Return the columns that a check constraint names, in lower case."""
    return [each.replace("``", "`").lower() for each in re.findall(r"`((?:[^`]|``)+)`", clause)]


def _values(enum: str) -> list[str]:
    """Return the values that an enum's type lists: ``enum('a','it''s')`` -> ``["a", "it's"]``."""
    return [
        re.sub(r"(\\|')(.)", r"\2", text, flags=re.DOTALL)
        for text in re.findall(r"'((?:''|\\.|[^'])*)'", enum, re.DOTALL)
    ]


def _literal(text: str) -> str:
    """Return a string as a hexadecimal literal for a constraint: servers rewrite literals that have quotation marks."""
    return f"x'{text.encode().hex()}'"


def _indexes(rows: Iterable[Sequence[Any]]) -> list[Index]:
    """Return the unique indexes that the result of the query `KEYS` describes."""
    parts: dict[str, list[tuple[Any, Any]]] = {}
    for index, column, part in rows:
        parts.setdefault(index, []).append((column, part))
    return [
        Index(index, frozenset(c for c, _ in each if c), all(c and part is None for c, part in each))
        for index, each in parts.items()
    ]
