"""The options of ``2pc-multi``, including the options of each sink, which begin with the sink's name (``orders.topic``)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from connector.multi.names import NAME
from connector.sinks import HOST_OPTIONS, REQUIRED, Option, OptionTable, as_columns, as_str, hides_value, leads_out
from transactional import OptionError

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TAKEN: Final = ("kafka", "storage")
"""Names that no sink may have, because options with another meaning begin with them (``kafka.``, ``storage.``)."""


def _as_names(text: str) -> tuple[str, ...]:
    names = as_columns(text)
    for name in names:
        if _NAME.fullmatch(name) is None or name in _TAKEN:
            raise ValueError(
                "names of sinks, separated by commas. A name has at most 32 characters (a to z, 0 to 9, _), begins with a "
                f"letter, and is not {' or '.join(_TAKEN)}"
            )
        if hides_value(f"{name}.format") or leads_out(f"{name}.format", ""):
            raise ValueError(
                f"a name other than {name}: options that begin with this name look like secrets or addresses"
            )
    return names


def _as_projection(text: str) -> Sequence[tuple[str | None, str]]:
    if not text.strip().startswith("{"):
        return [(None, column) for column in as_columns(text)]
    pairs: list[tuple[str, Any]] = []
    with suppress(ValueError):
        json.loads(text, object_pairs_hook=pairs.extend)
    names = {name.lower() for name, _ in pairs}
    if (
        not pairs
        or len(names) < len(pairs)
        or not all(name and column and isinstance(column, str) for name, column in pairs)
    ):
        raise ValueError('columns separated by commas, or JSON: {"name for the sink": "column"}, each name once')
    return list(pairs)


WRITE_OPTIONS = OptionTable(
    NAME,
    (
        Option(
            "sinks",
            REQUIRED,
            _as_names,
            "Your names for the sinks, separated by commas: orders,audit. The options of a sink begin with its name: "
            "orders.topic.",
        ),
        Option(
            "routeColumn",
            None,
            as_str,
            "The column that names the sinks for a row: one name, or an array of names. A row with null goes to all sinks. "
            "Without this option, each sink gets every row.",
        ),
    ),
    passthrough_prefixes=(),
)

OF_EACH = OptionTable(
    f"a sink of {NAME}",
    (
        Option(
            "format",
            REQUIRED,
            as_str,
            "The format of the sink: 2pc-kafka, 2pc-delta, 2pc-postgresql, 2pc-mysql, or your own.",
        ),
        Option(
            "columns",
            None,
            _as_projection,
            'Columns for this sink, separated by commas, or JSON {"name for the sink": "column"}, such as '
            '{"value": "payload"}. Default: all columns except the routeColumn.',
        ),
    ),
    passthrough_prefixes=("",),
)
"""Options that each sink has in addition to the options of its format."""

_OF_THE_QUERY: Final = frozenset(option.key.lower() for option in HOST_OPTIONS.options) - {"path"}


@dataclass(frozen=True)
class SinkOptions:
    """The options of one sink."""

    name: str
    format: str
    # For each column, its new name for the sink (None to keep the name) and its name in the query. None if the option
    # ``columns`` is not set.
    columns: Sequence[tuple[str | None, str]] | None
    options: Mapping[str, str]  # The options of the sink's format, and the options of the query that all sinks share.

    def __repr__(self) -> str:  # values may be secrets
        return f"SinkOptions({self.name!r}, {self.format!r}, {sorted(self.options)})"


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of ``2pc-multi``."""

    sinks: Sequence[SinkOptions]  # In the order of the option ``sinks``.
    route_column: str | None
    # The option ``transactionalIdPrefix``. If the user does not set it, the framework fills in the default.
    prefix: str


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the user's options without connecting, and return them.

    Each sink later checks the options of its own format.
    """
    given = {key.lower(): value for key, value in options.items()}
    names = WRITE_OPTIONS.parse({"sinks": given["sinks"]} if "sinks" in given else {})["sinks"]
    table = OptionTable(
        NAME, WRITE_OPTIONS.options, tuple(f"{name.lower()}." for name in names), passed_to="the sink of that name"
    )
    parsed = table.parse(options, also=HOST_OPTIONS)
    if parsed["path"] is not None:
        raise table.invalid("path", parsed["path"], "no value here: set the path of one sink, for example orders.path")
    if parsed["deliveryGuarantee"] != "exactly-once":
        raise table.invalid("deliveryGuarantee", parsed["deliveryGuarantee"], "exactly-once, for all sinks")
    shared = {key: value for key, value in given.items() if key in _OF_THE_QUERY}
    sinks = [_sink(name, parsed.passthrough, shared) for name in names]
    return WriteOptions(sinks, parsed["routeColumn"], parsed["transactionalIdPrefix"] or "")


def _sink(name: str, passthrough: Mapping[str, str], shared: Mapping[str, str]) -> SinkOptions:
    start = f"{name.lower()}."
    own = {key[len(start) :]: value for key, value in passthrough.items() if key.startswith(start)}
    for key in own:
        if key in _OF_THE_QUERY:
            reason = f"the option applies to the whole query: leave out the prefix {name}."
            raise OptionError("FORBIDDEN_OPTION", owner=NAME, option=f"{name}.{key}", reason=reason)
    if "format" not in own:
        reason = f"the format of the sink {name}, such as 2pc-kafka"
        raise OptionError("MISSING_OPTION", owner=NAME, option=f"{name}.format", reason=reason)
    try:
        parsed = OF_EACH.parse(own)
    except OptionError as problem:
        raise problem.with_note(f"(Sink {name} of {NAME}.)") from None
    if parsed["format"].lower() == NAME:
        raise OF_EACH.invalid(f"{name}.format", parsed["format"], f"a format other than {NAME}: sinks can't be nested")
    return SinkOptions(name, parsed["format"], parsed["columns"], {**shared, **parsed.passthrough})
