"""The clusters that a command asks about transactions, and the queries whose journals it reads."""

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

__all__ = ["Cluster", "clusters_of", "configs_of", "of_cluster"]


@dataclass(frozen=True)
class Cluster:
    """A cluster, and the queries that write into it.

    Parameters
    ----------
    admin : KafkaAdmin
    owners : Sequence[Owner]
    """

    admin: KafkaAdmin
    owners: Sequence[Owner]

    @property
    def config(self) -> ClientConfig:
        """The configuration of clients."""
        return self.admin.config

    def look(self, topics: Sequence[str] = (), only: bool = False) -> tuple[ClusterView, list[Assessment]]:
        """Return what the brokers show, and how each open transaction stands; see `on_brokers.look`."""
        written = set() if only else {place.topic for owner in self.owners for place in owner.written}
        view = look(self.admin, {*topics, *written}, also_written=not only)
        return view, [assess(each, self.owners, self.config.bootstrap_servers) for each in view.transactions]


def configs_of(owners: Sequence[Owner], servers: str | None, given: Mapping[str, str]) -> list[ClientConfig]:
    """Return the configuration of clients for the brokers at `servers`, or for those of each query's sink, each once."""
    from connector.kafka.sink.write_options import parse_write_options

    if servers is not None:
        return [parse_write_options(Options({**given, "kafka.bootstrap.servers": servers})).client]
    configs = [owner.sink.client for owner in owners if owner.sink is not None]
    return list({str(sorted(config.for_librdkafka().items())): config for config in configs}.values())


def of_cluster(admin: KafkaAdmin, owners: Sequence[Owner]) -> Cluster:
    """Return the cluster that a client is connected to, with its queries."""
    cluster = admin.cluster_id()
    return Cluster(admin, [owner for owner in owners if owner.cluster in ("", cluster)])


@contextmanager
def clusters_of(owners: Sequence[Owner], servers: str | None, given: Mapping[str, str]) -> Iterator[list[Cluster]]:
    """Connect to the brokers at `servers`, or to the brokers of each query's sink."""
    with ExitStack() as opened:
        admins: dict[str, KafkaAdmin] = {}
        for config in configs_of(owners, servers, given):
            admin = KafkaAdmin(config)
            opened.callback(admin.close)
            admins.setdefault(admin.cluster_id(), admin)
        yield [of_cluster(admin, owners) for admin in admins.values()]
