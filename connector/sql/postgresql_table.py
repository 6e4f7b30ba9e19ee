"""The dialect of PostgreSQL: how the catalog describes a table, and which types fit which columns."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from connector.sql import dialect
from connector.sql.dialect import DELETES, OWN_COLUMNS, Index, Kind, is_array, is_bytes, is_moment, is_text
from transactional import OptionError

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
SELECT a.attname, format_type(a.atttypid, a.atttypmod), k.arrays || b.typname, a.attnotnull,
       a.attgenerated <> '' OR a.attidentity = 'a', a.atthasdef OR a.attidentity <> '', k.modifier,
       coalesce(quote_ident(n.nspname) || '.' || quote_ident(c.collname), ''), t.typtype = 'd'
FROM wanted a JOIN kinds k USING (attnum) JOIN pg_type b ON b.oid = k.type JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation AND c.oid <> t.typcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE b.typtype <> 'd' AND NOT (b.typcategory = 'A' AND b.typelem <> 0) ORDER BY a.attnum
"""
"""The query for a table's columns. If a column's type is a domain, the result also has the domain's base type."""

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
"""The query for a table's columns of variable length that an index, or the expression of an index, uses."""

REFUSES: Final = """
SELECT c.relkind = 'p' OR c.relhasrules OR row_security_active(c.oid)
       OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
       OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)),
       (SELECT count(*) FROM pg_constraint x WHERE x.conrelid = c.oid AND x.contype = 'c'),
       row_security_active(c.oid),
       EXISTS (SELECT FROM pg_constraint f WHERE f.contype = 'f' AND f.conrelid = c.oid AND f.confrelid = c.oid)
FROM pg_class c WHERE c.oid = %s
"""

CHECKS: Final = """
SELECT pg_get_constraintdef(c.oid), array(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey))
FROM pg_constraint c
WHERE c.conrelid = %s AND c.contype = 'c' AND c.convalidated AND NOT 0 = ANY (c.conkey) ORDER BY c.conname
"""


SHOWN: Final = 20
"""If a column's name has more bytes than this, the name of its check constraint contains a digest instead, because
names in PostgreSQL have at most 63 bytes."""

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
"""Column type that silently changes some strings -> advice for the user. `Postgresql.why_not` itself handles
``numeric`` and ``interval``."""

ONE_FORM: Final = frozenset(
    {"bool", "int2", "int4", "int8", "text", "varchar", "bytea", "date", "timestamp", "timestamptz", "uuid"}
)


@dataclass(frozen=True)
class Column(dialect.Column):
    """A column of a table. For a domain, `base` is the domain's base type; for an array of text, `base` is ``_text``."""

    modifier: int = -1  # The type's modifier, as the catalog encodes it; -1 for none.
    collation: str = ""  # The collation, qualified and quoted; empty if it is the type's default.
    domain: bool = False  # Whether the column's type is a domain.

    @property
    def cuts(self) -> bool:
        """True if the column silently cuts spaces from a string. The staging column is then ``text`` with a check."""
        return self.base in ("varchar", "bpchar") and self.modifier > 0

    @property
    def one_form(self) -> bool:
        """True if equal values are always identical; False for ``numeric``, because 1.0 equals 1.00, but is not identical."""
        return self.base in ONE_FORM and not self.collation


@dataclass(frozen=True)
class Target(dialect.Target[Column]):
    """A table, as the catalog describes it. `keys` are only the unique indexes that an upsert can use."""

    oid: int
    unlogged: bool  # Whether a crash of the server empties the table.
    acts: bool  # Whether the table may do more with a row than store it, because of triggers, rules or partitions.
    # The columns of variable length in indexes. A value that fits into the table may be too long for an index.
    indexed: frozenset[str]
    # Whether a trigger, a rule, a policy, partitions or an index's expression may reject a row that the columns allow.
    refuses: bool
    unique: bool  # Whether a unique index or an exclusion constraint may reject a row that the columns allow.
    conditions: int  # The number of check constraints.
    hides: bool  # Whether row-level security may hide rows from this user.
    partitioned: bool  # Whether the rows are in partitions of the table. (A table that inherits from it is not one.)

    def may_refuse(self, written: Sequence[Column], key: Sequence[str]) -> bool:
        """Return whether the table may reject a row that its staging table has accepted.

        `key` is empty without upserts.
        """
        return self.refuses or (self.unique and not key) or self.conditions > len(self.checks_on(written))

    def shows_order(self, written: Collection[str]) -> bool:
        """Return whether the table can show the order of inserts, for example in a column with a sequence."""
        return self.acts or any(column.name not in written and column.filled for column in self.columns)


WHOLE: Final = ("int2", "int4", "int8", "numeric")


class Postgresql(dialect.Dialect[Column]):
    """The dialect of PostgreSQL servers."""

    name: ClassVar[str] = NAME
    database: ClassVar[str] = "PostgreSQL"
    kinds: ClassVar = (
        Kind(pa.types.is_boolean, "boolean", ("bool",)),
        Kind(lambda kind: kind == pa.int8() or kind == pa.int16(), "smallint", WHOLE),
        Kind(pa.types.is_int32, "integer", WHOLE),
        Kind(pa.types.is_int64, "bigint", WHOLE),
        Kind(pa.types.is_integer, "", WHOLE),
        Kind(pa.types.is_float32, "real", ("float4", "float8")),
        Kind(pa.types.is_float64, "double precision", ("float8",)),
        Kind(is_text, "text", ()),  # most types take text: `why_not` names the others
        Kind(is_bytes, "bytea", ("bytea",)),
        Kind(pa.types.is_date, "date", ("date",)),
        Kind(is_moment, "timestamp with time zone", ("timestamptz",)),
        Kind(pa.types.is_timestamp, "timestamp", ("timestamp",)),
        Kind(pa.types.is_time, "time", ("time",)),
    )

    def has_schema(self, cursor: Any, schema: str) -> bool:
        """Return whether a schema with this name exists."""
        return cursor.execute("SELECT to_regnamespace(%s)", (self.quoted(schema),)).fetchone()[0] is not None

    def is_there(self, cursor: Any, table: str) -> bool:
        """Return whether a table with this name exists."""
        return cursor.execute("SELECT to_regclass(%s)", (table,)).fetchone()[0] is not None

    def describe(self, cursor: Any, table: str) -> Target | None:
        """Return a table's description; None if the table does not exist."""
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
                expectation="a table, not a view, a foreign table or a temporary table",
            )
        columns = [Column(*row) for row in cursor.execute(COLUMNS, (oid,)).fetchall()]
        keys = [Index("", frozenset(names)) for (names,) in cursor.execute(KEYS, (oid,)).fetchall()]
        checks = [(text, frozenset(names)) for text, names in cursor.execute(CHECKS, (oid,)).fetchall()]
        indexed = frozenset(name for (name,) in cursor.execute(INDEXED, (oid,)).fetchall())
        refuses, unique, conditions, hides, itself = cursor.execute(REFUSES, (oid,)).fetchone()
        whole = f"{self.quoted(schema)}.{self.quoted(name)}"
        is_partitioned = kind == "p"
        facts = (
            oid,
            persistence == "u",
            acts or is_partitioned,
            indexed,
            refuses,
            unique,
            conditions,
            hides,
            is_partitioned,
        )
        return Target(whole, whole.partition(".")[2], oid, columns, keys, checks, *facts, refers_to_itself=itself)

    def why_not(self, kind: pa.DataType, column: Column) -> str:
        """Return the reason why a column can't store values of an Arrow type unchanged; empty if it can."""
        if is_array(kind):
            return self._why_not_array(kind, column)
        if pa.types.is_nested(kind):
            return "has to be converted, for example with to_json for a column of type json or jsonb"
        if is_text(kind):
            return self._why_not_text(kind, column)
        if pa.types.is_decimal(kind):
            holds = column.base == "numeric" and _holds(column.modifier, kind.scale)
            return "" if holds else f"the table's column is {column.type}"
        found = self.kind(kind)
        return "PostgreSQL has no such type" if found is None else _why_not_into(found.into, kind, column)

    def _why_not_array(self, kind: pa.DataType, column: Column) -> str:
        if not column.base.startswith("_"):
            return f"the table's column is {column.type}"
        if is_array(kind.value_type):
            return "PostgreSQL can't store empty arrays in arrays: convert the column with to_json, for a column of type jsonb"
        element = replace(column, base=column.base[1:])
        if element.cuts:
            return f"the table's column is {column.type}, which cuts spaces: make it an array of text"
        return self.why_not(kind.value_type, element)

    def _why_not_text(self, kind: pa.DataType, column: Column) -> str:
        base = column.base
        if base.startswith("_"):
            element = replace(column, base=base[1:])
            changes = element.cuts or self.why_not(kind, element)
            return f"the table's column is {column.type}, which changes some strings: pass an array" if changes else ""
        if base == "interval" and column.modifier >= 0:
            return f"the table's column is {column.type}, which rounds values: make the column interval"
        if base == "bytea":
            return f"the table's column is {column.type}"
        if column.cuts and column.domain:
            return f"the table's column is {column.type}, which cuts spaces: make it a domain over text"
        if base == "numeric" and column.modifier >= 0:
            digits, scale = (column.modifier - 4) >> 16, _scale(column.modifier)
            can_cast = 0 <= scale <= digits
            cast = f'cast it to "decimal({min(digits, 38)},{scale})"' if can_cast else "make the column numeric"
            return f"the table's column is {column.type}, which rounds values: {cast}"
        return (
            f"the table's column is {column.type}, which changes some strings: {ROUNDS[base]}" if base in ROUNDS else ""
        )

    def why_no_key(self, target: dialect.Target[Column], written: Sequence[str], names: Sequence[str]) -> str:
        """Return the reason why ``ON CONFLICT`` can't use the columns `names` as the key; empty if it can."""
        if any(index.columns == frozenset(names) for index in target.keys):
            return ""
        return (
            f"{target.name} has no unique index on exactly {', '.join(names)} (not partial, not deferrable). Create one: "
            f"ALTER TABLE {target.name} ADD PRIMARY KEY ({', '.join(map(self.quoted, names))})"
        )

    def type_for(self, kind: pa.DataType, key: bool = False) -> str:
        """Return the type of a new table's column for an Arrow type; empty if PostgreSQL has no such type."""
        if is_array(kind):
            inner = "" if pa.types.is_nested(kind.value_type) else self.type_for(kind.value_type)
            return f"{inner}[]" if inner else ""
        return f"numeric({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else super().type_for(kind)

    @property
    def flag(self) -> Column:
        """The staging table's column `DELETES`, which is true in rows that are deletions."""
        return Column(DELETES, "boolean", "bool", not_null=True, computed=False, filled=False)

    def why_no_deletes(self, target: Any, key: Sequence[str]) -> str:
        """Return the reason why rows of the target can't be deleted by the columns `key`; empty if they can."""
        hidden = f"row-level security could hide rows of {target.name} from a delete" if target.hides else ""
        return hidden or super().why_no_deletes(target, key)

    def definition(self, column: Column, optional: bool = False) -> str:
        """Return a column's definition in a staging table. If the target would cut spaces, use ``text`` with a check."""
        collation = f" COLLATE {column.collation}" if column.collation else ""
        null, name = " NOT NULL" if column.not_null and not optional else "", self.quoted(column.name)
        if not column.cuts or column.domain:
            return f"{name} {column.type}{collation}{null}"
        said = f"too long for {column.type}: {_short(column.name)}"
        check = f"char_length({name}) <= {column.modifier - 4}"
        check += f" AND {name} NOT LIKE '% '" if column.base == "bpchar" else ""
        return f"{name} text{collation}{null} CONSTRAINT {self.quoted(said)} CHECK ({check})"

    def form(self, column: Column) -> object:
        """Return the properties of a column that determine its `definition` in a staging table."""
        return column.name, column.type, column.not_null, column.collation

    def staging_statements(
        self,
        staging: str,
        target: dialect.Target[Column],
        written: Sequence[Column],
        optional: Collection[str] | None = None,
    ) -> list[str]:
        """Return the statements that create a staging table, with the target's checks on the columns `written`."""
        nonce, row = OWN_COLUMNS
        columns = [f"{nonce} text NOT NULL, {row} bigint NOT NULL"]
        columns += [self.definition(each, each.name in (optional or ())) for each in written]
        if optional is None:
            columns += target.checks_on(written)
        else:
            conditions = [text.removeprefix("CHECK ").removesuffix(" NO INHERIT") for text in target.checks_on(written)]
            columns += [f"CHECK ({DELETES} OR {condition})" for condition in conditions]
            columns += [
                f"CONSTRAINT {self.quoted(f'null in {_short(name)}')} CHECK ({DELETES} OR {self.quoted(name)} IS NOT NULL)"
                for name in optional
            ]
        settings = "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000)"
        return [
            f"CREATE TABLE {staging} ({', '.join(columns)}) {settings}",
            f"ALTER TABLE {staging} REPLICA IDENTITY FULL",  # else a publication FOR ALL TABLES prevents every DELETE
        ]


def _short(name: str) -> str:
    """Return a column's name, or a digest if the name is too long to be a part of a constraint's name."""
    return name if len(name.encode()) <= SHOWN else hashlib.sha256(name.encode()).hexdigest()[:12]


def _why_not_into(wanted: Collection[str], kind: pa.DataType, column: Column) -> str:
    """Return the reason why a column can't store values unchanged; empty if it can.

    `wanted` has the base types that can.
    """
    base = column.base
    if base == "numeric" and base in wanted and not _holds(column.modifier, 0):
        return f"the table's column is {column.type}"
    if base in ("timestamp", "timestamptz", "time") and column.modifier not in (-1, 6):
        return f"the table's column is {column.type}, which rounds"
    zones = {"timestamp": 'cast it to "timestamp_ntz"', "timestamptz": 'cast it to "timestamp"'}
    hint = f": {zones[base]}" if base in zones and pa.types.is_timestamp(kind) else ""
    return "" if base in wanted else f"the table's column is {column.type}{hint}"


def _holds(modifier: int, scale: int) -> bool:
    """Return whether a ``numeric`` with this modifier keeps at least `scale` decimal places."""
    if modifier < 0:
        return True
    return _scale(modifier) >= scale


def _scale(modifier: int) -> int:
    """Return the number of decimal places of a ``numeric`` with this modifier; negative if it rounds whole digits."""
    own = (modifier - 4) & 0x7FF
    return own if own < 1024 else own - 2048
