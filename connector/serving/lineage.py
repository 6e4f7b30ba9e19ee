"""Emit OpenLineage events, which name the topics and tables that a query reads from and writes to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from connector.formats.discovery import datasets_of
from connector.kafka.client.topics import lineage_namespace
from connector.location.location import CheckpointLocation
from connector.operations.listener import CheckpointListener
from connector.serving.facts import QueryFacts, look_at_query
from transactional.sink import Options

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

    from transactional.ledger import RunRecord
    from transactional.stats import CheckpointHistory

PRODUCER: Final = "https://pypi.org/project/barrier-kafka"
SERVERS: Final = "kafka.bootstrap.servers"


class LineageListener(CheckpointListener):
    """Emits an OpenLineage event for each completed checkpoint. Attach it with `barrier_kafka.add_listener`.

    This needs the extra ``barrier-kafka[openlineage]``. The first event of a run is ``START``; later events are
    ``RUNNING``. Each event names the source topics and the target topics or tables. If there is only one target, the
    event also has the numbers of rows and bytes in the checkpoint.

    Parameters
    ----------
    location : str
        The query's checkpoint location.
    client : OpenLineageClient
        A client of the package ``openlineage-python``.
    job : str
        The job's name in the events.
    namespace : str
        The job's namespace in the events.
    source_servers : str, optional
        The brokers of the source (``host:port``, separated by commas), if they differ from those of the sink.
    """

    def __init__(
        self,
        location: str,
        client: OpenLineageClient,
        job: str,
        *,
        namespace: str = "barrier-kafka",
        source_servers: str | None = None,
    ) -> None:
        self._client, self._servers = client, source_servers
        self._job, self._namespace = job, namespace
        self._location = CheckpointLocation(location)
        self._journal = self._location.journal()
        self._run: uuid.UUID | None = None

    def onCheckpointCompleted(self, checkpoint: CheckpointHistory) -> None:
        """Emit the event for a completed checkpoint."""
        from openlineage.client.event_v2 import InputDataset, OutputDataset, RunState
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

        query = look_at_query(self._location, self._journal)
        run = query.ledger.newest_run
        if run is None:
            return
        options = Options(run.setup.get("options", {}))
        written = statistics.OutputStatisticsOutputDatasetFacet(
            rowCount=checkpoint.rows, size=checkpoint.bytes, producer=PRODUCER
        )
        outputs = _outputs(run, checkpoint.output)
        facets: dict[str, Any] = {"outputStatistics": written} if len(outputs) == 1 else {}
        identity = uuid.uuid5(uuid.NAMESPACE_URL, f"{query.ledger.query}/{run.token}")
        state = RunState.RUNNING if identity == self._run else RunState.START
        self._run = identity
        self._emit(
            state,
            inputs=[InputDataset(*each) for each in _inputs(query, self._servers or options.get(SERVERS, ""))],
            outputs=[OutputDataset(*each, outputFacets=facets) for each in outputs],
        )

    def close(self, *, failed: bool = False) -> None:
        """Emit ``COMPLETE`` for the last run, or ``FAIL`` if `failed`. If no event was emitted before, do nothing."""
        from openlineage.client.event_v2 import RunState

        if self._run is not None:
            self._emit(RunState.FAIL if failed else RunState.COMPLETE)
            self._run = None

    def _emit(self, state: Any, **datasets: Any) -> None:
        from openlineage.client.event_v2 import Job, Run, RunEvent

        self._client.emit(
            RunEvent(
                eventTime=datetime.now(timezone.utc).isoformat(),
                producer=PRODUCER,
                eventType=state,
                run=Run(str(self._run)),
                job=Job(self._namespace, self._job),
                **datasets,
            )
        )


def _inputs(query: QueryFacts, servers: str) -> list[tuple[str, str]]:
    """Return the topics of the query's sources as OpenLineage datasets: pairs of namespace and name."""
    return sorted({(lineage_namespace(servers), place.topic) for source in query.sources for place in source.topics})


def _outputs(run: RunRecord, output: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the output datasets of the run's sink: pairs of namespace and name; none if the sink does not name datasets."""
    return sorted(datasets_of(run.sink, Options(run.setup.get("options", {})), output))
