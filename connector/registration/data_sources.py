"""The data source classes of all formats, for Spark: this package's formats, and the user's own sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSource

from connector.formats.discovery import SinkType
from connector.formats.table import FORMATS, SINKS, Format
from connector.spark.host import HostedSinkDataSource, data_source_for

SEVERAL: Final = "2pc-multi"
"""The format that combines several sinks. Some of them may be the user's own sinks."""

_own: dict[str, type[HostedSinkDataSource]] = {}
"""The data source classes of the user's own registered sinks, by format."""


def _made(row: Format) -> type[HostedSinkDataSource]:
    """Create the data source class of a sink's format. Spark's workers import the class from this module, by name."""
    name = f"{row.path.partition(':')[2]}DataSource"
    made = type(name, (HostedSinkDataSource,), {"format": row.name, "__module__": __name__})
    globals()[name] = made
    return made


_SINKS: Final[Mapping[str, type[DataSource]]] = {row.name: _made(row) for row in SINKS}


def source_of(name: str) -> type[DataSource]:
    """Return the data source class of one of this package's formats."""
    if name in _SINKS:
        return _SINKS[name]
    found: type[DataSource] = {row.name: row for row in FORMATS}[name].load()
    return found


def known_sources() -> Mapping[str, type[DataSource]]:
    """Return all data source classes, by format."""
    found = {row.name: source_of(row.name) for row in FORMATS}
    if _own:
        found[SEVERAL] = with_sinks({name: each.sink_type() for name, each in _own.items()})
    return {**found, **_own}


def add_sinks(sinks: Iterable[SinkType]) -> None:
    """Add the user's own sinks, each as the format that its ``name()`` returns."""
    _own.update({each.name().lower(): data_source_for(each) for each in sinks})


def sink_of(source: type[DataSource] | None) -> SinkType | None:
    """Return the sink class of a data source; None if the data source has no sink, like ``barrier-kafka``."""
    return source.sink_type() if source is not None and issubclass(source, HostedSinkDataSource) else None


def travels(source: type[DataSource]) -> bool:
    """Return whether Spark pickles this class into the plan, because the sink is the user's own and may be in no package."""
    return issubclass(source, HostedSinkDataSource) and source.sink is not None


def with_sinks(own: Mapping[str, SinkType]) -> type[HostedSinkDataSource]:
    """Return a data source class of ``2pc-multi`` with the user's own sinks. Spark pickles the sinks with the class."""
    from connector.multi.sink import MultiSink

    body: dict[str, Any] = {"own": own, "__module__": __name__}
    return data_source_for(type("MultiSinkWithOwn", (MultiSink,), body))
