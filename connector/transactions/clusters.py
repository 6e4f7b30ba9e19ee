"""Connect to the clusters whose transactions a command examines, and find the queries that write into each cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from connector.transactions.assessment import Assessment, assess
from connector.transactions.in_journals import Owner
from connector.transactions.on_brokers import ClusterView, look
from transactional.sink import Options


@dataclass(frozen=True)
class Cluster:
    """A cluster, and the queries that write into it."""

    admin: KafkaAdmin  # A client that is connected to the cluster.
    owners: Sequence[Owner]  # The queries.

    @property
    def config(self) -> ClientConfig:
        """The configuration of this cluster's clients."""
        return self.admin.config

    def look(self, topics: Sequence[str] = (), only: bool = False) -> tuple[ClusterView, list[Assessment]]:
        """Ask the brokers for open transactions (see `on_brokers.look`), and assess each.

        Parameters
        ----------
        topics : Sequence[str]
            Topics to examine.
        only : bool
            True to examine no other topics. By default, the topics to which the queries and the open transactions have
            written are examined as well.
        """
        written = set() if only else {place.topic for owner in self.owners for place in owner.written}
        view = look(self.admin, {*topics, *written}, also_written=not only)
        return view, [assess(each, self.owners, self.config.bootstrap_servers) for each in view.transactions]


def configs_of(owners: Sequence[Owner], servers: str | None, given: Mapping[str, str]) -> list[ClientConfig]:
    """Return the client configuration for `servers` or, if that is None, those of all sinks, without duplicates.

    `given` has the user's other options, which are used only with `servers`.
    """
    from connector.kafka.sink.write_options import parse_write_options

    if servers is not None:
        return [parse_write_options(Options({**given, "kafka.bootstrap.servers": servers})).client]
    configs = [owner.sink.client for owner in owners if owner.sink is not None]
    return list({str(sorted(config.for_librdkafka().items())): config for config in configs}.values())


def of_cluster(admin: KafkaAdmin, owners: Sequence[Owner]) -> Cluster:
    """Return a client's cluster with the queries that write into it. A query whose cluster is unknown is included."""
    cluster = admin.cluster_id()
    return Cluster(admin, [owner for owner in owners if owner.cluster in ("", cluster)])


@contextmanager
def clusters_of(owners: Sequence[Owner], servers: str | None, given: Mapping[str, str]) -> Iterator[list[Cluster]]:
    """Connect to `servers` or, if that is None, to the brokers of the queries' sinks. Yield a list of the clusters."""
    with ExitStack() as opened:
        admins: dict[str, KafkaAdmin] = {}
        for config in configs_of(owners, servers, given):
            admin = KafkaAdmin(config)
            opened.callback(admin.close)
            admins.setdefault(admin.cluster_id(), admin)
        yield [of_cluster(admin, owners) for admin in admins.values()]
