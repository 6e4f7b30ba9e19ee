"""The data source ``2pc-delta``. PySpark imports it in every worker, so it brings neither pyarrow nor deltalake."""

from __future__ import annotations

from connector.spark.host import HostedSinkDataSource
from connector.spark.hosted_sink import SinkType

__all__ = ["NAME", "TwoPhaseDeltaDataSource"]

NAME = "2pc-delta"


class TwoPhaseDeltaDataSource(HostedSinkDataSource):
    """The data source through which Spark reaches `connector.delta.sink.DeltaSink`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def sink_type(self) -> SinkType:
        """See `HostedSinkDataSource`."""
        from connector.delta.sink import DeltaSink

        return DeltaSink
