"""A table of PostgreSQL as its catalog describes it, and how a query's columns fit."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from connector.sql.fitting import check_key, definitions, fit
from transactional.errors import OptionError

__all__ = ["Column", "Target", "create_statement", "describe", "fit_table", "longest", "quoted", "type_for"]

NAME: Final = "2pc-postgresql"

COLUMNS: Final = """
WITH RECURSIVE
wanted AS (SELECT * FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped),
kinds (attnum, type, modifier, arrays) AS (
    SELECT attnum, atttypid, atttypmod, '' FROM wanted
    UNION ALL
    SELECT k.attnum, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
           CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE k.modifier END,
           k.arrays || CASE t.typtype WHEN 'd' THEN '' ELSE '_' END
    FROM kinds k JOIN pg_type t ON t.oid = k.type WHERE t.typtype = 'd' OR t.typcategory = 'A' AND t.typelem <> 0
)
SELECT a.attname, format_type(a.atttypid, a.atttypmod), k.arrays || b.typname, k.modifier, a.attnotnull, a.atthasdef,
       a.attidentity::text, a.attgenerated::text, coalesce(quote_ident(n.nspname) || '.' || quote_ident(c.collname), ''),
       t.typtype = 'd'
FROM wanted a JOIN kinds k USING (attnum) JOIN pg_type b ON b.oid = k.type JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation AND c.oid <> t.typcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE b.typtype <> 'd' AND NOT (b.typcategory = 'A' AND b.typelem <> 0) ORDER BY a.attnum
"""
"""Domains are what they are made of."""

KEYS: Final = """
SELECT array_agg(a.attname::text)
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""

INDEXED: Final = """
SELECT DISTINCT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND (
    a.attnum = ANY (i.indkey) OR EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
WHERE i.indrelid = %s AND a.attnum > 0 AND a.attlen < 0
"""
"""Columns of some length in indexes, or in their expressions."""

REFUSES: Final = """
SELECT c.relkind = 'p' OR c.relhasrules OR row_security_active(c.oid)
       OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
       OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)),
       (SELECT count(*) FROM pg_constraint x WHERE x.conrelid = c.oid AND x.contype = 'c')
FROM pg_class c WHERE c.oid = %s
"""

CHECKS: Final = """
SELECT pg_get_constraintdef(c.oid), array(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey))
FROM pg_constraint c
WHERE c.conrelid = %s AND c.contype = 'c' AND c.convalidated AND NOT 0 = ANY (c.conkey) ORDER BY c.conname
"""


SHOWN: Final = 20
"""Bytes of a column's name in the name of a check, of 63."""

ROUNDS: Final = {
    "float4": 'cast it to "float"',
    "float8": 'cast it to "double"',
    "date": 'cast it to "date"',
    "timestamp": 'cast it to "timestamp_ntz"',
    "timestamptz": 'cast it to "timestamp"',
    "time": "keep it in a column of type text",
    "timetz": "keep it in a column of type text",
    "money": "make the column numeric",
    "name": "make the column text",
    "char": "make the column text",
    "oid": "make the column bigint",
    "xid": "make the column bigint",
    "cid": "make the column bigint",
}
"""Types that make another value of some texts, without a word -> what to do. Those without a type of Spark's are not here."""

ONE_FORM: Final = frozenset(
    {"bool", "int2", "int4", "int8", "text", "varchar", "bytea", "date", "timestamp", "timestamptz", "uuid"}
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name : str
    type : str
        As a statement names it, with its modifiers: ``numeric(10,2)``.
    base : str
        The type's name in the catalog, of a domain that of its base: ``numeric``, ``_text`` (an array).
    modifier : int
        Of the type; -1 for none.
    not_null, has_default : bool
    identity : str
        ``a``: always generated; ``d``: by default; or empty.
    generated : str
        Not empty if it is computed from other columns.
    collation : str
        Qualified and quoted; empty for the type's own.
    domain : bool
        Whether its type is a domain.
    """

    name: str
    type: str
    base: str
    modifier: int
    not_null: bool
    has_default: bool
    identity: str
    generated: str
    collation: str = ""
    domain: bool = False

    @property
    def computed(self) -> bool:
        """Whether only the database gives it values."""
        return bool(self.generated) or self.identity == "a"

    @property
    def filled(self) -> bool:
        """Whether the database gives it a value where a row has none."""
        return self.has_default or bool(self.identity)

    @property
    def staged(self) -> str:
        """Its definition in a staging table."""
        collation = f" COLLATE {self.collation}" if self.collation else ""
        null, name = " NOT NULL" if self.not_null else "", quoted(self.name)
        if not self.cuts or self.domain:
            return f"{self.type}{collation}{null}"
        said = self.name if len(self.name.encode()) <= SHOWN else hashlib.sha256(self.name.encode()).hexdigest()[:12]
        check = f"char_length({name}) <= {self.modifier - 4}" + (
            f" AND {name} NOT LIKE '% '" if self.base == "bpchar" else ""
        )
        return f"text{collation}{null} CONSTRAINT {quoted(f'too long for {self.type}: {said}')} CHECK ({check})"

    @property
    def cuts(self) -> bool:
        """Whether it would cut blanks from a text, without a word: a staging table has a text there, and a check."""
        return self.base in ("varchar", "bpchar") and self.modifier > 0

    @property
    def one_form(self) -> bool:
        """Whether values that are equal are the same: not so 1.0 and 1.00, or texts of some collations."""
        return self.base in ONE_FORM and not self.collation


@dataclass(frozen=True)
class Target:
    """A table.

    Parameters
    ----------
    oid : int
    unlogged : bool
        Whether a crash of the server empties it.
    name : str
        Qualified and quoted.
    columns : Sequence[Column]
    keys : Sequence[frozenset[str]]
        Columns of each unique index that an upsert can use.
    checks : Sequence[tuple[str, frozenset[str]]]
        Check constraints, and the columns in them.
    acts : bool
        Whether it, or a partition of it, may do more with a row than keep it: a trigger, a rule.
    indexed : frozenset[str]
        Columns of some length that an index has: it can't hold each value that the table can.
    refuses : bool
        Whether it has what may refuse a row that its columns allow: a trigger, a rule, a policy, partitions, an expression.
    unique : bool
        Whether a key, or an exclusion, may.
    conditions : int
        How many check constraints it has.
    """

    oid: int
    unlogged: bool
    name: str
    columns: Sequence[Column]
    keys: Sequence[frozenset[str]]
    checks: Sequence[tuple[str, frozenset[str]]]
    acts: bool
    indexed: frozenset[str]
    refuses: bool
    unique: bool
    conditions: int

    def may_refuse(self, written: Sequence[Column], key: Sequence[str]) -> bool:
        """Return whether it may refuse a row that its staging table has taken."""
        return self.refuses or (self.unique and not key) or self.conditions > len(self.checks_on(written))

    def shows_order(self, written: Collection[str]) -> bool:
        """Return whether one can see in which order rows of these columns were inserted: a sequence counts them, say."""
        return self.acts or any(column.name not in written and column.filled for column in self.columns)

    def checks_on(self, columns: Sequence[Column]) -> list[str]:
        """Return the check constraints that name only these columns."""
        names = {column.name for column in columns}
        return [text for text, used in self.checks if used and used <= names]

    def column(self, name: str) -> Column | None:
        """Return the column of this name; in another case only if no other has that."""
        exact = [column for column in self.columns if column.name == name]
        near = exact or [column for column in self.columns if column.name.lower() == name.lower()]
        return near[0] if len(near) == 1 else None


def quoted(name: str) -> str:
    """Return an identifier as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


def describe(cursor: Any, table: str) -> Target | None:
    """Return a table; None if there is none of this name."""
    found = cursor.execute(
        "SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relhastriggers OR c.relhasrules "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        (table,),
    ).fetchone()
    if found is None:
        return None
    oid, schema, name, kind, persistence, acts = found
    if kind not in ("r", "p") or persistence == "t":
        raise OptionError(
            "INVALID_OPTION",
            owner=NAME,
            option="dbtable",
            value=table,
            expectation="a table, and no view, foreign or temporary table",
        )
    columns = [Column(*row) for row in cursor.execute(COLUMNS, (oid,)).fetchall()]
    keys = [frozenset(names) for (names,) in cursor.execute(KEYS, (oid,)).fetchall()]
    checks = [(text, frozenset(names)) for text, names in cursor.execute(CHECKS, (oid,)).fetchall()]
    whole = f"{quoted(schema)}.{quoted(name)}"
    indexed = frozenset(name for (name,) in cursor.execute(INDEXED, (oid,)).fetchall())
    refuses, unique, conditions = cursor.execute(REFUSES, (oid,)).fetchone()
    acts = acts or kind == "p"
    return Target(oid, persistence == "u", whole, columns, keys, checks, acts, indexed, refuses, unique, conditions)


def longest(values: pa.Array) -> int:
    """Return the bytes of the longest value, about."""
    kind = values.type
    if pa.types.is_nested(kind) or not len(values):
        return int(values.nbytes)
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind) or is_large(kind)):
        return 32
    return int(pc.max(pc.binary_length(values)).as_py() or 0)


def is_large(kind: pa.DataType) -> bool:
    """Return whether it is a text, or bytes, whose places are 64 bits."""
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def fit_table(schema: pa.Schema, target: Target, key: Sequence[str]) -> list[Column]:
    """Return the columns of the table that the query's columns go into, in their order."""
    found = fit(NAME, schema, target, why_not, shown)

    def why_no_key(names: Sequence[str]) -> str:
        if frozenset(names) in target.keys:
            return ""
        return (
            f"{target.name} has no unique index of exactly {', '.join(names)} (not partial, not deferrable): "
            f"ALTER TABLE {target.name} ADD PRIMARY KEY ({', '.join(map(quoted, names))})"
        )

    if key:
        check_key(NAME, found, target, key, why_no_key)
    return found


def why_not(kind: pa.DataType, column: Column) -> str:
    """Return why values of a type can't go into a column as they are; empty if they can.

    What the database would refuse by value (a number that is too large, text that is no date) is not refused here. What it
    would change without a word is.
    """
    base = column.base
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not base.startswith("_"):
            return f"the table's is {column.type}"
        inner = kind.value_type
        if pa.types.is_list(inner) or pa.types.is_large_list(inner):
            return "PostgreSQL keeps no empty arrays in arrays: convert it with to_json, for a column of type jsonb"
        element = replace(column, base=base[1:])
        if element.cuts:
            return f"the table's is {column.type}, which cuts blanks: make it an array of text"
        return why_not(inner, element)
    if pa.types.is_nested(kind):
        return "has to be converted, with to_json for a column of type json or jsonb"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if base.startswith("_"):
            element = replace(column, base=base[1:])
            changes = element.cuts or why_not(kind, element)
            return f"the table's is {column.type}, which changes some texts: make it an array" if changes else ""
        if base == "interval" and column.modifier >= 0:
            return f"the table's is {column.type}, which rounds texts: make the column interval"
        if base == "bytea":
            return f"the table's is {column.type}"
        if column.cuts and column.domain:
            return f"the table's is {column.type}, which cuts blanks: make the domain one of text"
        if base == "numeric" and column.modifier >= 0:
            digits, scale = (column.modifier - 4) >> 16, _scale(column.modifier)
            cast = (
                f'cast it to "decimal({min(digits, 38)},{scale})"'
                if 0 <= scale <= digits
                else "make the column numeric"
            )
            return f"the table's is {column.type}, which rounds texts: {cast}"
        return f"the table's is {column.type}, which changes some texts: {ROUNDS[base]}" if base in ROUNDS else ""
    if pa.types.is_decimal(kind):
        return "" if base == "numeric" and _holds(column.modifier, kind.scale) else f"the table's is {column.type}"
    wanted = next((names for has, names in SAFE if has(kind)), None)
    if wanted is None:
        return "PostgreSQL has no such type"
    if base == "numeric" and base in wanted and not _holds(column.modifier, 0):
        return f"the table's is {column.type}"
    if base in ("timestamp", "timestamptz", "time") and column.modifier not in (-1, 6):
        return f"the table's is {column.type}, which rounds"
    zones = {"timestamp": 'cast it to "timestamp_ntz"', "timestamptz": 'cast it to "timestamp"'}
    hint = f": {zones[base]}" if base in zones and pa.types.is_timestamp(kind) else ""
    return "" if base in wanted else f"the table's is {column.type}{hint}"


SAFE: Final = (
    (pa.types.is_boolean, ("bool",)),
    (pa.types.is_integer, ("int2", "int4", "int8", "numeric")),
    (pa.types.is_float32, ("float4", "float8")),
    (pa.types.is_float64, ("float8",)),
    (pa.types.is_date, ("date",)),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, ("timestamptz",)),
    (pa.types.is_timestamp, ("timestamp",)),
    (pa.types.is_time, ("time",)),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), ("bytea",)),
)
"""Types of rows, and those of columns that hold each of their values, or refuse it."""


def _holds(modifier: int, scale: int) -> bool:
    """Return whether a numeric of this modifier keeps as many digits behind the point, or all."""
    if modifier < 0:
        return True
    return _scale(modifier) >= scale


def _scale(modifier: int) -> int:
    """Return how many digits behind the point a numeric keeps; negative if it rounds before the point."""
    own = (modifier - 4) & 0x7FF
    return own if own < 1024 else own - 2048


def type_for(kind: pa.DataType) -> str:
    """Return the type of a column of a new table; empty if there is none."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = "" if pa.types.is_nested(kind.value_type) else type_for(kind.value_type)
        return f"{inner}[]" if inner else ""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return next((name for has, name in NEW if has(kind)), "")


NEW: Final = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: kind == pa.int8() or kind == pa.int16(), "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "text"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytea"),
    (pa.types.is_date, "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "timestamp with time zone"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_time, "time"),
)


def create_statement(schema: pa.Schema, table: str, key: Sequence[str]) -> str:
    """Return the statement that creates a table for these columns."""
    columns = definitions(NAME, schema, key, lambda kind, _: type_for(kind), quoted, "PostgreSQL")
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns})"


def shown(kind: pa.DataType) -> str:
    """Return a type as people call it."""
    if pa.types.is_struct(kind):
        return "a struct"
    if pa.types.is_map(kind):
        return "a map"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return type_for(kind) or str(kind)
