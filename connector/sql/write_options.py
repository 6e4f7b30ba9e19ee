"""The options of the formats of this room, in the words of Spark's JDBC source."""

from __future__ import annotations

import re
from typing import Final

from connector.options import REQUIRED, Option, OptionTable, as_columns, as_str

__all__ = ["POSTGRESQL_OPTIONS"]


_PART: Final = r'(?:"(?:[^"]|"")+"|[A-Za-z_\u0080-\uffff][\w$]*)'
_TABLE: Final = re.compile(rf"{_PART}(?:\.{_PART})?")


def _as_table(text: str) -> str:
    if _TABLE.fullmatch(text.strip()) is None:
        raise ValueError('the name of a table, with its schema or without: orders, sales.orders, "Orders" (no query)')
    return text.strip()


def _as_schema(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", text.strip()) is None:
        raise ValueError("the name of a schema, of letters, digits and _")
    return text.strip()


def _as_password(text: str) -> str:
    return text


POSTGRESQL_OPTIONS = OptionTable(
    "2pc-postgresql",
    (
        Option(
            "url",
            REQUIRED,
            as_str,
            "The database's address: postgresql://host:port/database, with libpq's parameters, or jdbc:postgresql://...",
        ),
        Option(
            "dbtable",
            REQUIRED,
            _as_table,
            'The table, as a statement names it: orders, sales.orders, "Orders". It is created if it is not there.',
        ),
        Option("user", None, as_str, "The user, if the address does not have one."),
        Option("password", None, _as_password, "The user's password, if the address does not have it."),
        Option(
            "upsertKey",
            (),
            as_columns,
            "Columns of a unique index: a row replaces the one of the same key. Without it rows are appended.",
        ),
        Option(
            "stagingSchema",
            "barrier",
            _as_schema,
            "The schema of the staging and control tables. It is created if it is not there, and so are they.",
        ),
    ),
    passthrough_prefixes=(),
)
