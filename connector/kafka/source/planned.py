"""Facts that the source's options show before a query starts: its barriers, its order of rows, and where it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connector.kafka.client.topics import Partition
from connector.kafka.source.bounds import check_partitions
from connector.kafka.source.read_options import ReadOptions, parse_read_options
from transactional.barrier import SourceLine


def line_of(options: Mapping[str, str]) -> SourceLine:
    """Return a line of ``offsets/N`` as the source will write it, with only the fields that the options determine."""
    read = parse_read_options(options, "stream")
    offset: dict[str, Any] = {
        "interval": read.schedule.interval_ms,
        "minPause": read.schedule.min_pause_ms,
        "reordered": read.tasks.splits,
        "cut": None if read.align is None else {},
    }
    return SourceLine("", offset)


def check_bounds(options: Mapping[str, str]) -> None:
    """If a bound has one value per partition, ask the brokers, and check that it names exactly the existing partitions."""
    read = parse_read_options(options, "stream")
    bounds = [bound for bound in (read.starting, read.ending) if isinstance(bound.at, Mapping)]
    if bounds:
        partitions = partitions_of(read)
        for bound in bounds:
            check_partitions(bound, partitions)


def partitions_of(read: ReadOptions) -> Sequence[Partition]:
    """Ask the brokers which partitions the source will read, and return them."""
    from connector.kafka.client.brokers import check_brokers
    from connector.kafka.source.topic_reader import Retries, TopicReader

    topics = TopicReader(check_brokers(read.config), read.config, Retries(0), patience=5.0)
    return topics.partitions(read.subscription)
