"""Find consumer groups that an open transaction probably blocks, from the offsets that the groups have committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.transactions.on_brokers import HeldPartition
from transactional.clock import Deadline
from transactional.errors import StoreError

REQUEST_SECONDS: Final = 5.0

ALL_SECONDS: Final = 20.0
"""Time limit in seconds for asking about all groups. Each group costs one request, and its coordinator may be down."""


def waiting_groups(config: ClientConfig, held: Sequence[HeldPartition]) -> Mapping[Partition, list[str]]:
    """Return, for each partition, the consumer groups whose committed offset is the partition's last stable offset.

    After 20 seconds, the remaining groups are skipped. A reader that commits no offsets is not found (Spark and Flink keep
    their own offsets). A group that has committed this offset by chance is included.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    if not held:
        return {}
    admin = check_brokers(config)
    try:
        listed = admin.list_consumer_groups(request_timeout=REQUEST_SECONDS).result()
    except KafkaException as problem:
        raise StoreError(
            "KAFKA_REFUSED", reason=f"the consumer groups can't be listed: {problem.args[0].str()}"
        ) from None
    stable = {each.partition: each.stable for each in held}
    found: dict[Partition, list[str]] = {}
    limit = Deadline(ALL_SECONDS)
    for group in sorted(each.group_id for each in listed.valid):
        if limit.passed():
            break
        places = [TopicPartition(place.topic, place.number) for place in stable]
        asked = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=REQUEST_SECONDS
        )
        try:
            positions = asked[group].result().topic_partitions
        except KafkaException:  # the group was deleted in the meantime, or this user may not see it
            continue
        for at in positions:
            place = Partition(at.topic, at.partition)
            if at.error is None and at.offset == stable.get(place):
                found.setdefault(place, []).append(group)
    return found
