"""The dialect of MySQL and MariaDB: a table as its information schema describes it, and what becomes of a query's types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from connector.sql import dialect
from connector.sql.dialect import OWN_COLUMNS, Index, Kind, Target, is_bytes, is_moment, is_text
from connector.sql.mysql_url import named
from transactional import OptionError

__all__ = ["NAME", "Column", "Mysql"]

NAME: Final = "2pc-mysql"

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
"""Rights of a role are not in these tables."""

TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
READ_FROM_TEXT: Final = (*TEXTS, "json", "enum", "uuid", "inet4", "inet6")
"""Not numbers and times: of some texts the database would make another value, without a word."""

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
    """A column of a table.

    Parameters
    ----------
    counted : bool
        Whether it is AUTO_INCREMENT.
    charset, collation : str or None
    precision : int or None
        Digits of a second.
    scale : int or None
        Digits behind the point.
    """

    counted: bool = False
    charset: str | None = None
    collation: str | None = None
    precision: int | None = None
    scale: int | None = None

    @property
    def whole(self) -> str:
        """Its type, and how its texts are compared."""
        charset = f" CHARACTER SET {self.charset} COLLATE {self.collation}" if self.charset and self.collation else ""
        return f"{self.type}{charset}"


class Mysql(dialect.Dialect[Column]):
    """The language of a server.

    Parameters
    ----------
    mariadb : bool
        Or MySQL.
    """

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
        Kind(is_moment, "datetime(6)", ("datetime", "timestamp")),  # a timestamp ends in 2038, and begins in 1970
        Kind(pa.types.is_timestamp, "datetime(6)", ("datetime",)),
        Kind(pa.types.is_time, "time(6)", ("time",)),
    )

    def __init__(self, mariadb: bool) -> None:
        self.mariadb = mariadb
        self.collation = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        """Of new tables: texts are equal only if all of their bytes are, spaces at the end too."""

        self.table_options = f" ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {self.collation}"
        self.isolation = "tx_isolation" if mariadb else "transaction_isolation"
        """The variable of the isolation level."""

        which = "CONCAT(@@hostname, ':', @@port, '/', @@server_id)" if mariadb else "@@server_uuid"
        self.server = f"SELECT {which}, @@read_only"
        """What distinguishes a server from its replicas, and whether it is read-only."""

    def has_schema(self, cursor: Any, schema: str) -> bool:
        """Ask the information schema."""
        return bool(cursor.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (schema,)))

    def is_there(self, cursor: Any, table: str) -> bool:
        """Ask the information schema."""
        statement = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return bool(cursor.execute(statement, named(table, "")))

    def describe(self, cursor: Any, table: str) -> Target[Column] | None:
        """Return a table; None if there is none of this name."""
        database, name = named(table, "")

        def ask(statement: str) -> Sequence[Sequence[Any]]:
            cursor.execute(statement, (database, name))
            found: Sequence[Sequence[Any]] = cursor.fetchall()
            return found

        found = ask(
            "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        )
        if not found:
            return None
        kind, engine = found[0]
        if kind not in ("BASE TABLE", "SYSTEM VERSIONED") or str(engine).lower() != "innodb":
            expectation = "a table of the engine InnoDB: others have no transactions, and a view takes no rows"
            raise OptionError("INVALID_OPTION", owner=NAME, option="dbtable", value=name, expectation=expectation)
        columns = [Column(*row) for row in ask(COLUMNS)]
        parts: dict[str, list[tuple[Any, Any]]] = {}
        for index, column, part in ask(KEYS):
            parts.setdefault(index, []).append((column, part))
        keys = [
            Index(index, frozenset(c for c, _ in each if c), all(c and part is None for c, part in each))
            for index, each in parts.items()
        ]
        exact = {column.name.lower(): column.name for column in columns}
        clauses = [
            str(text) if self.mariadb else re.sub(r"\\(.)", r"\1", str(text))
            for (text,) in ask(CHECKS_OF_MARIADB if self.mariadb else CHECKS)
        ]
        checks = [(text, frozenset(exact.get(each, each) for each in _columns_in(text))) for text in clauses]
        whole = f"{self.quoted(database)}.{self.quoted(name)}"
        return Target(whole, name, whole, columns, keys, checks)

    def has_trigger(self, cursor: Any, target: Target[Column]) -> bool | None:
        """Return whether a table has a trigger; None if this user can't see it: MySQL hides them without the right TRIGGER."""
        place = named(target.name, "")
        cursor.execute(TRIGGERS, place)
        if cursor.fetchone():
            return True
        if self.mariadb:
            return False
        cursor.execute(MAY_SEE_TRIGGERS, (place[0], *place))
        return False if cursor.fetchone() else None

    def why_not(self, kind: pa.DataType, column: Column) -> str:
        """Return why values of a type can't go into a column as they are."""
        if pa.types.is_nested(kind):
            return "has to be converted, with to_json for a column of type json or text"
        if pa.types.is_decimal(kind):
            holds = column.base == "decimal" and (column.scale or 0) >= kind.scale
            return "" if holds else f"the table's is {column.type}"
        found = self.kind(kind)
        if found is None:
            return "the database has no such type"
        wanted = found.into
        if column.base in ("datetime", "timestamp", "time") and column.base in wanted:
            return "" if column.precision == 6 else f"the table's is {column.type}, which rounds"
        if column.base in ("float", "double") and "(" in column.type:
            return f"the table's is {column.type}, which rounds"
        hint = ': cast it to "timestamp"' if column.base == "timestamp" and pa.types.is_timestamp(kind) else ""
        return "" if column.base in wanted else f"the table's is {column.type}{hint}"

    def why_no_key(self, target: Target[Column], written: Sequence[str], names: Sequence[str]) -> str:
        """Return why ``ON DUPLICATE KEY`` would not mean these columns, or also others."""
        own = [index for index in target.keys if index.whole and index.columns == frozenset(names)]
        if not own:
            return (
                f"{target.name} has no unique index of exactly {', '.join(names)}, whole: "
                f"ALTER TABLE {target.name} ADD PRIMARY KEY ({', '.join(map(self.quoted, names))})"
            )
        counted = {column.name for column in target.columns if column.counted and column.name not in written}
        others = [index.name for index in target.keys if index not in own and not index.columns & counted]
        if not others:
            return ""
        return (
            f"{target.name} has another unique index ({', '.join(others)}): ON DUPLICATE KEY UPDATE would replace rows of "
            "other keys, too"
        )

    def type_for(self, kind: pa.DataType, key: bool = False) -> str:
        """Return the type of a column, also of decimals, and of one that has to have an index."""
        if pa.types.is_decimal(kind):
            return f"decimal({kind.precision},{kind.scale})"
        if key and (is_text(kind) or is_bytes(kind)):
            return "varchar(255)" if is_text(kind) else "varbinary(255)"
        return super().type_for(kind)

    def definition(self, column: Column) -> str:
        """Return a column's definition in a staging table.

        No null in a ``timestamp`` becomes the time of day, no text of digits the number of one of an ``enum``'s values, and a
        ``char`` loses no spaces.
        """
        name, kind, check, null = self.quoted(column.name), column.whole, "", " NOT NULL" if column.not_null else ""
        if column.base == "enum":
            kind = f"varchar(255) CHARACTER SET utf8mb4 COLLATE {self.collation}"
            check = f" CHECK (CAST({name} AS BINARY) IN ({', '.join(map(_literal, _values(column.type)))}))"
        if column.base == "char":
            kind = f"var{kind}"
            check = f" CHECK ({name} NOT LIKE '% ')"
        if column.base == "timestamp":
            check = f" CHECK ({name} IS NOT NULL)" if column.not_null else ""
            null = " NULL DEFAULT NULL"
        return f"{name} {kind}{null}{check}"

    def staging_statements(self, staging: str, target: Target[Column], written: Sequence[Column]) -> list[str]:
        """Return the statement that creates a staging table. Its rows lie in their order."""
        nonce, row = OWN_COLUMNS
        columns = [
            f"{nonce} VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
            f"{row} BIGINT NOT NULL",
            f"PRIMARY KEY ({nonce}, {row})",
            *map(self.definition, written),
        ]
        for number, clause in enumerate(target.checks_on(written)):
            said = f"{number} on {' '.join(_columns_in(clause))}"[:64].strip()  # MariaDB's error says no more than this
            name = f"CONSTRAINT {self.quoted(said)} " if self.mariadb else ""  # MySQL allows a name once in a schema
            columns.append(f"{name}CHECK ({clause})")
        return [f"CREATE TABLE IF NOT EXISTS {staging} ({', '.join(columns)}){self.table_options}"]


def _columns_in(clause: str) -> list[str]:
    """Return the columns that a check constraint names, in lower case."""
    return [each.replace("``", "`").lower() for each in re.findall(r"`((?:[^`]|``)+)`", clause)]


def _values(enum: str) -> list[str]:
    """Return the values of an enum by its type: ``enum('a','it''s')`` -> ``["a", "it's"]``."""
    return [
        re.sub(r"(\\|')(.)", r"\2", text, flags=re.DOTALL)
        for text in re.findall(r"'((?:''|\\.|[^'])*)'", enum, re.DOTALL)
    ]


def _literal(text: str) -> str:
    """Return a text's bytes as they stand in a constraint: of one with a quotation mark the servers make another text."""
    return f"x'{text.encode().hex()}'"
