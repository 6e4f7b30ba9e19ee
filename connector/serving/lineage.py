"""OpenLineage events: which topics and tables the rows of a query's checkpoints come from, and go to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from connector.location.location import CheckpointLocation
from connector.options import as_columns
from connector.serving.facts import QueryFacts, look_at_query
from connector.spark.listener import CheckpointListener
from connector.sql.mysql_url import is_mysql, named

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

    from transactional.stats import CheckpointHistory

__all__ = ["LineageListener"]

PRODUCER: Final = "https://pypi.org/project/barrier-kafka"
SERVERS: Final = "kafka.bootstrap.servers"


class LineageListener(CheckpointListener):
    """Emits an event for each completed checkpoint. Attach it with `barrier_kafka.listen`; needs the extra ``openlineage``.

    The first event of a run of the query is ``START``, the others are ``RUNNING``. Each names the source's topics, the
    topics or the table that were written, and the rows and bytes of the checkpoint.

    Parameters
    ----------
    checkpointLocation : str
        The query's.
    client : OpenLineageClient
        Of the package ``openlineage-python``.
    job : str
        The job's name in lineage.
    namespace : str
        The job's namespace.
    source_servers : str, optional
        Brokers of the source, if they are not those of the sink.
    """

    def __init__(
        self,
        checkpointLocation: str,
        client: OpenLineageClient,
        job: str,
        *,
        namespace: str = "barrier-kafka",
        source_servers: str | None = None,
    ) -> None:
        self._client, self._servers = client, source_servers
        self._job, self._namespace = job, namespace
        self._location = CheckpointLocation(checkpointLocation)
        self._journal = self._location.journal()
        self._run: uuid.UUID | None = None

    def onCheckpointCompleted(self, checkpoint: CheckpointHistory) -> None:
        """Emit its event."""
        from openlineage.client.event_v2 import InputDataset, OutputDataset, RunState
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

        query = look_at_query(self._location, self._journal)
        run = query.ledger.newest_run
        if run is None:
            return
        options: dict[str, str] = dict(run.setup.get("options", {}))
        written = statistics.OutputStatisticsOutputDatasetFacet(
            rowCount=checkpoint.rows, size=checkpoint.bytes, producer=PRODUCER
        )
        outputs = _outputs(options, checkpoint.output)
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
        """Emit that the last run is complete, or has failed. Without an event before it there is nothing to say."""
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
    """Return the source's topics as OpenLineage names datasets: namespace and name."""
    return sorted({(_kafka(servers), place.topic) for source in query.sources for place in source.topics})


def _outputs(options: Mapping[str, str], output: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    if "sinks" in options:
        names = as_columns(options["sinks"])
        return sorted({each for name in names for each in _outputs(_of(name, options), output.get(name, {}))})
    if SERVERS in options:
        topics = {name.rpartition("-")[0] for name in output}
        return sorted((_kafka(options[SERVERS]), topic) for topic in topics)
    if "dbtable" in options:
        return _table(options.get("url", ""), options["dbtable"])
    if "path" not in options:
        return []
    where = urlsplit(options["path"])
    if where.scheme in ("", "file"):
        return [("file", where.path)]
    return [(f"{where.scheme}://{where.netloc}", where.path.lstrip("/"))]


def _of(name: str, options: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(f"{name}."): value for key, value in options.items() if key.startswith(f"{name}.")}


def _table(url: str, table: str) -> Sequence[tuple[str, str]]:
    """Name a database's table; an address with a password is in no journal."""
    where = urlsplit(url.removeprefix("jdbc:"))
    if where.hostname is None:
        return []
    if is_mysql(url):
        database, name = named(table, where.path.lstrip("/"))
        return [(f"mysql://{where.hostname}:{where.port or 3306}", f"{database}.{name}")]
    plain = table.replace('"', "")
    whole = plain if "." in plain else f"public.{plain}"
    return [(f"postgres://{where.hostname}:{where.port or 5432}", f"{where.path.lstrip('/')}.{whole}")]


def _kafka(servers: str) -> str:
    return f"kafka://{servers.partition(',')[0].strip()}"
