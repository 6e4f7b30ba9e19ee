"""Check, before a query starts, which problems it would have with the brokers. The checks change nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from connector.kafka.client.admin import Description, KafkaAdmin
from connector.kafka.client.cluster_admin import TOPIC
from connector.kafka.sink.transaction import timeout_of
from connector.kafka.sink.transactional_ids import BUSY, ids_under, run_id
from connector.kafka.sink.write_options import LONGEST_TIMEOUT_MS
from transactional.finding import Finding, good, problem, unknown, warning

MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default for message.max.bytes, the largest batch of rows that a broker accepts."""


def check_timeout(admin: KafkaAdmin, asked_ms: int | None, interval_ms: int) -> Finding:
    """Check whether the transaction timeout is long enough. `KafkaSink.identify` checks whether the brokers allow it."""
    most = admin.longest_timeout_ms()
    timeout = timeout_of(asked_ms, admin)
    if timeout == LONGEST_TIMEOUT_MS == most:
        return good("transaction-timeout", "prepared transactions never expire")
    if interval_ms * 2 > timeout:
        return problem(
            "transaction-timeout",
            f"A transaction may take {timeout / 1000:g} s. A checkpoint has to be decided within half of that, but "
            f"barrierInterval is {interval_ms / 1000:g} s.",
            "Lower barrierInterval, or raise kafka.transaction.timeout.ms and the brokers' transaction.max.timeout.ms.",
        )
    if timeout < 60_000:
        return warning(
            "transaction-timeout",
            f"A transaction may take {timeout / 1000:g} s: if a crashed query is not restarted within that "
            "time, its prepared rows are lost, and it has to write them again.",
            "Raise kafka.transaction.timeout.ms to several minutes.",
        )
    if most is None:
        return unknown(
            "transaction-timeout",
            "This user is not allowed to read the brokers' transaction.max.timeout.ms, so it is unknown whether the brokers "
            f"accept {timeout / 1000:g} s.",
            "Grant DESCRIBE_CONFIGS on the cluster.",
        )
    return good("transaction-timeout", f"{timeout / 1000:g} s; the brokers allow {most / 1000:g} s")


def check_prefix(admin: KafkaAdmin, prefix: str | None, own: Collection[str]) -> Finding:
    """Check whether another query uses the prefix, or has used it. `own` contains the prefixes of this checkpoint location."""
    if prefix is None:
        return good("prefix", "the query's id, which no other query has")
    if prefix in own:
        return good("prefix", f"{prefix}, which belongs to this location")
    name = run_id(prefix)
    known: dict[str, Description] = admin.describe([name, *ids_under(prefix, admin.transactional_ids(sorted(BUSY)))])
    if name not in known:
        return good("prefix", f"{prefix}, which no query has used as far as the brokers remember")
    busy = any(each.state in BUSY for each in known.values())
    state = "now has open transactions with the prefix" if busy else "has used the prefix"
    return problem(
        "prefix",
        f"Another checkpoint location {state} {prefix}. Two queries with the same prefix fence each other.",
        "Choose a different transactionalIdPrefix, or pass the location that the prefix belongs to.",
    )


def check_topic(admin: KafkaAdmin, topic: str) -> Iterator[Finding]:
    """Check an output topic's settings: unclean elections, message size, replication."""
    settings = admin.settings_of(
        TOPIC, topic, ["min.insync.replicas", "unclean.leader.election.enable", "max.message.bytes", "cleanup.policy"]
    )
    if settings is None:
        allow = f"Grant DESCRIBE_CONFIGS on topic {topic}."
        yield unknown("replication", f"This user is not allowed to read the settings of {topic}.", allow)
    else:
        yield from _settings(topic, settings)
        yield from check_replicas(
            topic, admin.topics([topic], ())[topic].replicas, int(settings.get("min.insync.replicas", 1))
        )


def _settings(topic: str, settings: dict[str, str]) -> Iterator[Finding]:
    if settings.get("unclean.leader.election.enable") == "true":
        yield problem(
            "unclean-election",
            f"{topic} allows unclean leader elections: rows that were acknowledged, prepared or committed can be lost.",
            f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config "
            "unclean.leader.election.enable=false",
        )
    else:
        yield good("unclean-election", f"{topic} allows no unclean leader elections")
    size = int(settings.get("max.message.bytes", MESSAGE_BYTES))
    if size < MESSAGE_BYTES:
        yield warning(
            "message-size",
            f"{topic} accepts batches of at most {size} bytes, less than Kafka's default: larger rows fail the query.",
            "Raise the topic's max.message.bytes.",
        )
    else:
        yield good("message-size", f"{topic} accepts batches of up to {size} bytes")


def check_replicas(topic: str, replicas: Mapping[int, tuple[int, int]], least: int) -> Iterator[Finding]:
    """Check each partition's numbers of replicas and of in-sync replicas. `least` is the value of min.insync.replicas."""
    # If min.insync.replicas exceeds the number of replicas, brokers use that number instead (since Kafka 3.7).
    offline = [number for number, (count, in_sync) in replicas.items() if in_sync < min(least, count)]
    fewest = min((count for count, _ in replicas.values()), default=0)
    older = (
        f" With min.insync.replicas={least}, brokers before Kafka 3.7 accept no rows at all." if least > fewest else ""
    )
    if offline:
        yield problem(
            "replication",
            f"{topic}: partitions {offline[:10]} accept no rows: fewer replicas are in sync than min.insync.replicas={least}.",
            "Check that all brokers are running.",
        )
    elif fewest == 1:
        yield warning(
            "replication",
            f"{topic} has one replica: if its broker loses its disk, committed rows are lost for good.{older}",
            "Use three replicas and min.insync.replicas=2.",
        )
    elif least == 1:
        yield warning(
            "replication",
            f"{topic} has min.insync.replicas=1: rows count as written even if only one replica has them.",
            "Set min.insync.replicas=2.",
        )
    elif least >= fewest:
        yield warning(
            "replication",
            f"{topic} has {fewest} replicas, and min.insync.replicas={least}: if one broker is down, the query stops.{older}",
            "Use one replica more than min.insync.replicas.",
        )
    else:
        yield good("replication", f"{topic}: {fewest} replicas, min.insync.replicas={least}")
