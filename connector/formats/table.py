"""The table of this package's formats. To add a format, add a row here; CONTRIBUTING.md lists the other places to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

__all__ = ["FORMATS", "SINKS", "Format", "format_of"]


@dataclass(frozen=True)
class Format:
    """A format of this package. Users select it with ``format(name)``.

    Parameters
    ----------
    name : str
    path : str
        The import path ``package.module:Class`` of the format's sink or, for a source, of its data source.
    shown_by : Sequence[str]
        Options by which `barrier doctor` recognizes the format. One of these options is enough.
    schemes : Sequence[str]
        URL schemes that identify the format in the option ``url``, if several formats have the same options.
    """

    name: str
    path: str
    shown_by: Sequence[str] = ()
    schemes: Sequence[str] = ()

    def load(self) -> Any:
        """Import the class at `path`, and return it."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)

    def is_shown_by(self, options: Mapping[str, str]) -> bool:
        """Return whether these options fit this format."""
        scheme = options.get("url", "").removeprefix("jdbc:").partition("://")[0]
        return any(name in options for name in self.shown_by) and (not self.schemes or scheme in self.schemes)


SINKS: Final[Sequence[Format]] = (
    Format("2pc-multi", "connector.multi.sink:MultiSink", ("sinks",)),
    Format("2pc-kafka", "connector.kafka.sink.kafka_sink:KafkaSink", ("topic", "kafka.bootstrap.servers")),
    Format("2pc-delta", "connector.delta.sink:DeltaSink", ("path",)),
    Format("2pc-mysql", "connector.sql.mysql_sink:MysqlSink", ("dbtable",), ("mysql", "mariadb")),
    Format("2pc-postgresql", "connector.sql.postgresql_sink:PostgresqlSink", ("dbtable",)),
)

FORMATS: Final[Sequence[Format]] = (
    Format(
        "barrier-kafka",
        "connector.kafka.source.data_source:BarrierKafkaDataSource",
        ("subscribe", "subscribePattern", "assign"),
    ),
    *SINKS,
)
"""All formats of this package, in the order in which `format_of` tries them."""


def format_of(options: Mapping[str, str]) -> str | None:
    """Return the name of the first format that these options fit; None if there is none."""
    return next((each.name for each in FORMATS if each.is_shown_by(options)), None)
