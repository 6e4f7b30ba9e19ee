"""The table of this package's formats. A new one is a row here; CONTRIBUTING.md names the other places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

__all__ = ["FORMATS", "SINKS", "Format", "format_of"]


@dataclass(frozen=True)
class Format:
    """A format: what users write into ``format(...)``.

    Parameters
    ----------
    name : str
    path : str
        The import path of its sink, or of the data source that reads it: ``package.module:Class``.
    shown_by : Sequence[str]
        Options that only this format has: `barrier doctor` recognises it by any of them.
    schemes : Sequence[str]
        Of the option ``url``, if several formats have the same options.
    """

    name: str
    path: str
    shown_by: Sequence[str] = ()
    schemes: Sequence[str] = ()

    def load(self) -> Any:
        """Import what `path` names."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)

    def is_shown_by(self, options: Mapping[str, str]) -> bool:
        """Return whether these options are of this format."""
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
"""In the order in which options are compared with `Format.shown_by`."""


def format_of(options: Mapping[str, str]) -> str | None:
    """Return the name of the format that these options are of; None if they do not show it."""
    return next((each.name for each in FORMATS if each.is_shown_by(options)), None)
