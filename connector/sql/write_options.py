"""The options of ``2pc-postgresql`` and ``2pc-mysql``, with the names that Spark's JDBC source uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from connector.sinks import REQUIRED, Option, OptionTable, as_columns, as_str

_PART: Final = r'(?:"(?:[^"]|"")+"|[A-Za-z_\u0080-\uffff][\w$]*)'
_TABLE: Final = re.compile(rf"{_PART}(?:\.{_PART})?")


def _as_table(text: str) -> str:
    if _TABLE.fullmatch(text.strip()) is None:
        raise ValueError(
            'the name of a table, with or without its schema: orders, sales.orders, "Orders" (not a query)'
        )
    return text.strip()


_MYSQL_PART: Final = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_MYSQL_TABLE: Final = re.compile(rf"{_MYSQL_PART}(?:\.{_MYSQL_PART})?")


def _as_mysql_table(text: str) -> str:
    if _MYSQL_TABLE.fullmatch(text.strip()) is None:
        raise ValueError(
            "the name of a table, with or without its database: orders, shop.orders, `my orders` (not a query)"
        )
    return text.strip()


def _as_schema(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", text.strip()) is None:
        raise ValueError("the name of a schema, made of letters, digits and _")
    return text.strip()


def _as_password(text: str) -> str:
    return text


def _options(owner: str, url: str, dbtable: str, as_table: Callable[[str], str]) -> OptionTable:
    return OptionTable(
        owner,
        (
            Option("url", REQUIRED, as_str, url),
            Option("dbtable", REQUIRED, as_table, f"{dbtable} The sink creates the table if it does not exist."),
            Option("user", None, as_str, "The database user, unless the address contains it."),
            Option("password", None, _as_password, "The user's password, unless the address contains it."),
            Option(
                "upsertKey",
                (),
                as_columns,
                "The columns of a unique index. A new row replaces the table's row with the same key. By default, rows are "
                "appended.",
            ),
            Option(
                "deleteColumn",
                None,
                as_str,
                "With upsertKey: a boolean column of the query. A row in which this column is true deletes the table's row "
                "with the same key. The sink does not write this column.",
            ),
            Option(
                "stagingSchema",
                "barrier",
                _as_schema,
                "The schema of the staging and control tables. The sink creates it, and these tables, if they do not exist.",
            ),
        ),
        passthrough_prefixes=(),
    )


POSTGRESQL_OPTIONS = _options(
    "2pc-postgresql",
    "The database's address: postgresql://host:port/database, with libpq's parameters, or jdbc:postgresql://...",
    'The target table, written as in SQL: orders, sales.orders, "Orders".',
    _as_table,
)

MYSQL_OPTIONS = _options(
    "2pc-mysql",
    "The database's address: mysql://host:port/database, jdbc:mysql://... or jdbc:mariadb://...",
    "The target table, written as in SQL: orders, shop.orders, `my orders`.",
    _as_mysql_table,
)
