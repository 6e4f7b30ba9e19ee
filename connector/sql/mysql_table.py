"""A table of MySQL or MariaDB as its information schema describes it, and how a query's columns fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from connector.sql.fitting import check_key, definitions, fit
from transactional.errors import OptionError

__all__ = [
    "Column",
    "Flavour",
    "Index",
    "Target",
    "create_statement",
    "describe",
    "fit_table",
    "has_trigger",
    "quoted",
    "staging_statement",
    "why_no_key",
]

NAME: Final = "2pc-mysql"

COLUMNS: Final = """
SELECT column_name, column_type, LOWER(data_type), is_nullable = 'NO', column_default IS NOT NULL, LOWER(extra),
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

OWN_COLUMNS: Final = (
    "barrier_nonce VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, barrier_row BIGINT NOT NULL, "
    "PRIMARY KEY (barrier_nonce, barrier_row)"
)
"""The first columns of a staging table: whose row it is, and which of its rows. Rows lie in this order."""


@dataclass(frozen=True)
class Flavour:
    """What differs between the two.

    Parameters
    ----------
    mariadb : bool
    """

    mariadb: bool

    @property
    def collation(self) -> str:
        """Of new tables: texts are equal only if all of their bytes are, spaces at the end too."""
        return "utf8mb4_nopad_bin" if self.mariadb else "utf8mb4_0900_bin"

    @property
    def table_options(self) -> str:
        """The end of a statement that creates a table."""
        return f"ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {self.collation}"

    @property
    def isolation(self) -> str:
        """The variable of the isolation level."""
        return "tx_isolation" if self.mariadb else "transaction_isolation"

    @property
    def server(self) -> str:
        """A query for what distinguishes a server from its replicas, and for whether it is read-only."""
        which = "CONCAT(@@hostname, ':', @@port, '/', @@server_id)" if self.mariadb else "@@server_uuid"
        return f"SELECT {which}, @@read_only"

    @property
    def checks(self) -> str:
        """A query for the check constraints of a table."""
        if self.mariadb:
            return (
                "SELECT check_clause FROM information_schema.check_constraints "
                "WHERE constraint_schema = %s AND table_name = %s ORDER BY constraint_name"
            )
        return (
            "SELECT c.check_clause FROM information_schema.check_constraints AS c "
            "JOIN information_schema.table_constraints AS t USING (constraint_schema, constraint_name) "
            "WHERE t.table_schema = %s AND t.table_name = %s AND t.enforced = 'YES' ORDER BY constraint_name"
        )


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name : str
    type : str
        As a statement names it: ``decimal(10,2)``.
    base : str
        ``decimal``.
    not_null, has_default : bool
    extra : str
        ``auto_increment``, ``stored generated``, and the like.
    charset, collation : str or None
    precision : int or None
        Digits of a second.
    scale : int or None
        Digits behind the point.
    """

    name: str
    type: str
    base: str
    not_null: bool
    has_default: bool
    extra: str
    charset: str | None
    collation: str | None
    precision: int | None
    scale: int | None

    @property
    def computed(self) -> bool:
        """Whether only the database gives it values."""
        return re.search(r"\b(virtual|stored|persistent) generated", self.extra) is not None

    @property
    def counted(self) -> bool:
        """Whether it is AUTO_INCREMENT."""
        return "auto_increment" in self.extra

    @property
    def filled(self) -> bool:
        """Whether the database gives it a value where a row has none."""
        return self.has_default or self.counted

    @property
    def whole(self) -> str:
        """Its type, and how its texts are compared."""
        charset = f" CHARACTER SET {self.charset} COLLATE {self.collation}" if self.charset and self.collation else ""
        return f"{self.type}{charset}"

    def staged(self, flavour: Flavour) -> str:
        """Return its definition in a staging table, which refuses the values that the target refuses, or would change.

        No null in a ``timestamp`` becomes the time of day, no text of digits the number of one of an ``enum``'s values, and a
        ``char`` loses no spaces.
        """
        name, kind, check, null = quoted(self.name), self.whole, "", " NOT NULL" if self.not_null else ""
        if self.base == "enum":
            kind = f"varchar(255) CHARACTER SET utf8mb4 COLLATE {flavour.collation}"
            check = f" CHECK (CAST({name} AS BINARY) IN ({', '.join(map(_literal, _values(self.type)))}))"
        if self.base == "char":
            kind = f"var{kind}"
            check = f" CHECK ({name} NOT LIKE '% ')"
        if self.base == "timestamp":
            check = f" CHECK ({name} IS NOT NULL)" if self.not_null else ""
            null = " NULL DEFAULT NULL"
        return f"{name} {kind}{null}{check}"


@dataclass(frozen=True)
class Index:
    """A unique index.

    Parameters
    ----------
    name : str
    columns : frozenset[str]
    whole : bool
        Whether it is of columns as they are: of no expression, and of no column's first characters only.
    """

    name: str
    columns: frozenset[str]
    whole: bool


@dataclass(frozen=True)
class Target:
    """A table.

    Parameters
    ----------
    name : str
        Qualified and quoted.
    database, plain : str
        Its parts.
    columns : Sequence[Column]
    keys : Sequence[Index]
        All unique ones.
    checks : Sequence[str]
        Clauses of check constraints.
    """

    name: str
    database: str
    plain: str
    columns: Sequence[Column]
    keys: Sequence[Index]
    checks: Sequence[str]

    def column(self, name: str) -> Column | None:
        """Return the column of this name, in whatever case."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)

    def checks_on(self, columns: Sequence[Column]) -> list[str]:
        """Return the clauses of the check constraints that name only these columns."""
        names = {column.name.lower() for column in columns}
        return [text for text in self.checks if (used := _named_in(text)) and set(used) <= names]


def _named_in(clause: str) -> list[str]:
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


def quoted(name: str) -> str:
    """Return an identifier as it stands in a statement."""
    return "`" + name.replace("`", "``") + "`"


def describe(cursor: Any, database: str, table: str, flavour: Flavour) -> Target | None:
    """Return a table; None if there is none of this name."""

    def ask(statement: str) -> Sequence[Sequence[Any]]:
        cursor.execute(statement, (database, table))
        found: Sequence[Sequence[Any]] = cursor.fetchall()
        return found

    found = ask("SELECT table_type, engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s")
    if not found:
        return None
    kind, engine = found[0]
    if kind not in ("BASE TABLE", "SYSTEM VERSIONED") or str(engine).lower() != "innodb":
        expectation = "a table of the engine InnoDB: others have no transactions, and a view takes no rows"
        raise OptionError("INVALID_OPTION", owner=NAME, option="dbtable", value=table, expectation=expectation)
    columns = [Column(*row) for row in ask(COLUMNS)]
    parts: dict[str, list[tuple[Any, Any]]] = {}
    for index, column, part in ask(KEYS):
        parts.setdefault(index, []).append((column, part))
    keys = [
        Index(name, frozenset(c for c, _ in each if c), all(c and part is None for c, part in each))
        for name, each in parts.items()
    ]
    checks = [str(text) if flavour.mariadb else re.sub(r"\\(.)", r"\1", str(text)) for (text,) in ask(flavour.checks)]
    return Target(f"{quoted(database)}.{quoted(table)}", database, table, columns, keys, checks)


def has_trigger(cursor: Any, target: Target, flavour: Flavour) -> bool | None:
    """Return whether a table has a trigger; None if this user can't see it: MySQL hides triggers without the right TRIGGER."""
    place = target.database, target.plain
    cursor.execute(TRIGGERS, place)
    if cursor.fetchone():
        return True
    if flavour.mariadb:
        return False
    cursor.execute(MAY_SEE_TRIGGERS, (target.database, *place))
    return False if cursor.fetchone() else None


def fit_table(schema: pa.Schema, target: Target, key: Sequence[str]) -> list[Column]:
    """Return the columns of the table that the query's columns go into, in their order."""
    found = fit(NAME, schema, target, why_not, shown)
    if key:
        written = {column.name for column in found}
        check_key(NAME, found, target, key, lambda names: why_no_key(target, written, names))
    return found


def why_no_key(target: Target, written: Collection[str], names: Sequence[str]) -> str:
    """Return why columns do not make a key of upserts; empty if they do."""
    own = [index for index in target.keys if index.whole and index.columns == frozenset(names)]
    if not own:
        return (
            f"{target.name} has no unique index of exactly {', '.join(names)}, whole: "
            f"ALTER TABLE {target.name} ADD PRIMARY KEY ({', '.join(map(quoted, names))})"
        )
    counted = {column.name for column in target.columns if column.counted and column.name not in written}
    others = [index.name for index in target.keys if index not in own and not index.columns & counted]
    if not others:
        return ""
    return (
        f"{target.name} has another unique index ({', '.join(others)}): ON DUPLICATE KEY UPDATE would replace rows of "
        "other keys, too"
    )


def why_not(kind: pa.DataType, column: Column) -> str:
    """Return why values of a type can't go into a column as they are; empty if they can.

    What the database would refuse by value (a number that is too large, text that is no date) is not refused here. What it
    would change without a word is.
    """
    if pa.types.is_nested(kind):
        return "has to be converted, with to_json for a column of type json or text"
    if pa.types.is_decimal(kind):
        holds = column.base == "decimal" and (column.scale or 0) >= kind.scale
        return "" if holds else f"the table's is {column.type}"
    wanted = next((names for has, names in SAFE if has(kind)), None)
    if wanted is None:
        return "the database has no such type"
    if column.base in ("datetime", "timestamp", "time") and column.base in wanted:
        return "" if column.precision == 6 else f"the table's is {column.type}, which rounds"
    if column.base in ("float", "double") and "(" in column.type:
        return f"the table's is {column.type}, which rounds"
    hint = ': cast it to "timestamp"' if column.base == "timestamp" and pa.types.is_timestamp(kind) else ""
    return "" if column.base in wanted else f"the table's is {column.type}{hint}"


SAFE: Final = (
    (pa.types.is_boolean, ("tinyint",)),
    (pa.types.is_integer, WHOLE),
    (pa.types.is_float32, ("float", "double")),
    (pa.types.is_float64, ("double",)),
    (pa.types.is_date, ("date",)),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, ("datetime", "timestamp")),
    (pa.types.is_timestamp, ("datetime",)),
    (pa.types.is_time, ("time",)),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), BYTES),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), READ_FROM_TEXT),
)
"""Types of rows, and those of columns that hold each of their values, or refuse it."""


def type_for(kind: pa.DataType, key: bool = False) -> str:
    """Return the type of a column of a new table, which may be one of its key; empty if there is none."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if key and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return "varchar(255)"
    if key and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return "varbinary(255)"
    return next((name for has, name in NEW if has(kind)), "")


NEW: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "tinyint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "longtext"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "longblob"),
    (pa.types.is_date, "date"),
    (pa.types.is_timestamp, "datetime(6)"),  # timestamp ends in 2038, and begins in 1970
    (pa.types.is_time, "time(6)"),
)


def create_statement(schema: pa.Schema, name: str, key: Sequence[str], flavour: Flavour) -> str:
    """Return the statement that creates a table for these columns."""
    columns = definitions(NAME, schema, key, type_for, quoted, "MySQL")
    return f"CREATE TABLE IF NOT EXISTS {name} ({columns}) {flavour.table_options}"


def staging_statement(staging: str, target: Target, written: Sequence[Column], flavour: Flavour) -> str:
    """Return the statement that creates a staging table."""
    columns = [OWN_COLUMNS, *(column.staged(flavour) for column in written)]
    for number, clause in enumerate(target.checks_on(written)):
        said = f"{number} on {' '.join(_named_in(clause))}"[:64].strip()  # MariaDB's error says no more than this
        name = f"CONSTRAINT {quoted(said)} " if flavour.mariadb else ""  # MySQL allows a name once in a schema
        columns.append(f"{name}CHECK ({clause})")
    return f"CREATE TABLE IF NOT EXISTS {staging} ({', '.join(columns)}) {flavour.table_options}"


def shown(kind: pa.DataType) -> str:
    """Return a type as people call it."""
    if pa.types.is_struct(kind):
        return "a struct"
    if pa.types.is_map(kind):
        return "a map"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "an array"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return type_for(kind) or str(kind)
