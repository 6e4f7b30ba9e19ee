"""The data source of ``2pc-multi``. PySpark imports it in every worker: it brings neither pyarrow nor a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from connector.multi.names import NAME
from connector.spark.host import HostedSinkDataSource
from connector.spark.hosted_sink import SinkType

__all__ = ["TwoPhaseMultiDataSource", "with_sinks"]


class TwoPhaseMultiDataSource(HostedSinkDataSource):
    """The data source through which Spark reaches `connector.multi.sink.MultiSink`."""

    own: ClassVar[Mapping[str, SinkType]] = {}
    """The user's own sinks, by format."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def sink_type(self) -> SinkType:
        """See `HostedSinkDataSource`."""
        from connector.multi.sink import MultiSink

        if not self.own:
            return MultiSink
        return type("MultiSinkWithOwn", (MultiSink,), {"own": self.own, "__module__": __name__})


def with_sinks(own: Mapping[str, SinkType]) -> type[TwoPhaseMultiDataSource]:
    """Return the data source that knows sinks of the user's own, too: they travel to the workers with it."""
    return type(
        "TwoPhaseMultiDataSourceWithOwn", (TwoPhaseMultiDataSource,), {"own": dict(own), "__module__": __name__}
    )
