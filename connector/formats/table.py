"""The table of this package's formats. To add a format, add a row here; CONTRIBUTING.md lists the other places to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final


@dataclass(frozen=True)
class Format:
    """A format of this package. Users select it with ``format(name)``."""

    name: str
    path: str  # The import path ``package.module:Class`` of the format's sink or, for a source, of its data source.
    # Options by which `barrier doctor` recognizes the format. One of these options is enough.
    shown_by: Sequence[str] = ()
    schemes: Sequence[str] = ()  # URL schemes of the option ``url`` that identify the format.

    def load(self) -> Any:
        """Import the class at `path`, and return it."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)


SINKS: Final[Sequence[Format]] = (
    Format("2pc-multi", "connector.multi.sink:MultiSink", ("sinks",)),
    Format("2pc-kafka", "connector.kafka.sink.kafka_sink:KafkaSink", ("topic", "kafka.bootstrap.servers")),
    Format("2pc-delta", "connector.delta.sink:DeltaSink", ("path",)),
    Format("2pc-postgresql", "connector.sql.postgresql_sink:PostgresqlSink", ("dbtable",), ("postgresql", "postgres")),
    Format("2pc-mysql", "connector.sql.mysql_sink:MysqlSink", (), ("mysql", "mariadb")),
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
    """Return the name of the format to which these options belong; None if no format matches.

    The scheme of the option ``url`` is checked first, then the options in `Format.shown_by`.
    """
    scheme = options.get("url", "").strip().removeprefix("jdbc:").partition("://")[0].lower()
    by_scheme = (each.name for each in FORMATS if scheme in each.schemes)
    by_option = (each.name for each in FORMATS if any(name in options for name in each.shown_by))
    return next(by_scheme, None) or next(by_option, None)
