"""The data sources of all formats: those of the table, and those of the user's own sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSource

from connector.formats.discovery import SinkType
from connector.formats.table import FORMATS, SINKS, Format
from connector.spark.host import HostedSinkDataSource, data_source_for

__all__ = ["add_sinks", "known_sources", "sink_of", "source_of", "travels", "with_sinks"]

SEVERAL: Final = "2pc-multi"
"""A format whose sinks may be the user's own."""

_own: dict[str, type[HostedSinkDataSource]] = {}
"""Of the user's own sinks that were registered, by format."""


def _made(row: Format) -> type[HostedSinkDataSource]:
    """Make the class of a sink's format. Workers find it by its name in this module."""
    name = f"{row.path.partition(':')[2]}DataSource"
    made = type(name, (HostedSinkDataSource,), {"format": row.name, "__module__": __name__})
    globals()[name] = made
    return made


_SINKS: Final[Mapping[str, type[DataSource]]] = {row.name: _made(row) for row in SINKS}


def source_of(name: str) -> type[DataSource]:
    """Return the data source of a format of the table."""
    if name in _SINKS:
        return _SINKS[name]
    found: type[DataSource] = {row.name: row for row in FORMATS}[name].load()
    return found


def known_sources() -> Mapping[str, type[DataSource]]:
    """Return all data sources, by format."""
    found = {row.name: source_of(row.name) for row in FORMATS}
    if _own:
        found[SEVERAL] = with_sinks({name: each.sink_type() for name, each in _own.items()})
    return {**found, **_own}


def add_sinks(sinks: Iterable[SinkType]) -> None:
    """Make sinks of the user's own known, each as the format of its ``name()``."""
    _own.update({each.name().lower(): data_source_for(each) for each in sinks})


def sink_of(source: type[DataSource] | None) -> SinkType | None:
    """Return the sink behind a data source; None if there is none, as behind our source."""
    return source.sink_type() if source is not None and issubclass(source, HostedSinkDataSource) else None


def travels(source: type[DataSource]) -> bool:
    """Return whether workers get the class with the plan, as it has a sink of the user's own: no package has it."""
    return issubclass(source, HostedSinkDataSource) and source.sink is not None


def with_sinks(own: Mapping[str, SinkType]) -> type[HostedSinkDataSource]:
    """Return the data source of several sinks that knows the user's own: they travel to the workers with it."""
    from connector.multi.sink import MultiSink

    body: dict[str, Any] = {"own": own, "__module__": __name__}
    return data_source_for(type("MultiSinkWithOwn", (MultiSink,), body))
