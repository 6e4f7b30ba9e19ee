"""The data sources for databases. PySpark imports them in every worker: they bring neither pyarrow nor a client."""

from __future__ import annotations

from connector.spark.host import HostedSinkDataSource
from connector.spark.hosted_sink import SinkType

__all__ = ["MYSQL", "POSTGRESQL", "TwoPhaseMysqlDataSource", "TwoPhasePostgresqlDataSource"]

MYSQL = "2pc-mysql"
POSTGRESQL = "2pc-postgresql"


class TwoPhasePostgresqlDataSource(HostedSinkDataSource):
    """The data source through which Spark reaches `connector.sql.postgresql_sink.PostgresqlSink`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return POSTGRESQL

    def sink_type(self) -> SinkType:
        """See `HostedSinkDataSource`."""
        from connector.sql.postgresql_sink import PostgresqlSink

        return PostgresqlSink


class TwoPhaseMysqlDataSource(HostedSinkDataSource):
    """The data source through which Spark reaches `connector.sql.mysql_sink.MysqlSink`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return MYSQL

    def sink_type(self) -> SinkType:
        """See `HostedSinkDataSource`."""
        from connector.sql.mysql_sink import MysqlSink

        return MysqlSink
