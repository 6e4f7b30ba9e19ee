"""Checks a source's options before the query starts: the barriers to follow, the order of rows, and the first offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.topics import Partition
from connector.kafka.source.alignment.aim import AlignOptions
from connector.kafka.source.alignment.alignment import Alignment
from connector.kafka.source.bounds import OffsetBound, check_partitions
from connector.kafka.source.read_options import ReadOptions, parse_read_options
from connector.kafka.source.topic_reader import Retries, TopicReader
from connector.location.location import CheckpointLocation
from transactional.barrier import SourceLine
from transactional.clock import SystemClock
from transactional.errors import OptionError


def line_of(options: Mapping[str, str]) -> SourceLine:
    """Return a line of ``offsets/N`` as the source will write it, with only the fields that the options determine."""
    read = parse_read_options(options, "stream")
    offset: dict[str, Any] = {
        "interval": read.schedule.interval_ms,
        "minPause": read.schedule.min_pause_ms,
        "reordered": read.tasks.splits,
        "cut": None if read.align is None else _cut(read.align),
    }
    return SourceLine("", offset)


def _cut(align: AlignOptions) -> dict[str, Any]:
    """Return the line's field ``cut``. The query's id is not known yet, so the checkpoint location takes its place."""
    return {} if align.location is None else {"query": CheckpointLocation.from_options(align.location).path}


def check_together(sources: Sequence[Mapping[str, str]]) -> None:
    """Check that a query's sources can stop at the same barriers, and read all topics that the marks describe."""
    reads = [parse_read_options(options, "stream") for options in sources]
    if not reads or not all(read.align is not None and read.align.location is not None for read in reads):
        return
    for what, values in (
        ("alignOn", {tuple(sorted(read.align.topics)) for read in reads if read.align is not None}),
        ("startingOffsets", {_is_latest(read) for read in reads}),
    ):
        if len(values) > 1:
            raise OptionError(
                "INVALID_OPTION",
                owner="barrier-kafka",
                option=what,
                value="(not the same in all sources)",
                expectation=f"the same {what} in all sources of the query, because all these sources stop at the same barriers",
            )
    ids: dict[str, str] = {}
    for read in reads:
        topics = _topics_of(read)
        topics.partitions(read.subscription)
        ids |= topics.ids
    first = reads[0]
    if first.align is not None:
        alone = replace(first.align, location=None)
        Alignment(first, alone, SystemClock()).check(check_brokers(first.config), ids)


def _is_latest(read: ReadOptions) -> bool:
    return isinstance(read.starting, OffsetBound) and read.starting.at == "latest"


def check_bounds(options: Mapping[str, str]) -> None:
    """If the options give a start or end per partition, check that it names exactly the partitions that exist now."""
    read = parse_read_options(options, "stream")
    bounds = [bound for bound in (read.starting, read.ending) if isinstance(bound.at, Mapping)]
    if bounds:
        partitions = partitions_of(read)
        for bound in bounds:
            check_partitions(bound, partitions)


def partitions_of(read: ReadOptions) -> Sequence[Partition]:
    """Ask the brokers which partitions the source will read, and return them."""
    return _topics_of(read).partitions(read.subscription)


def _topics_of(read: ReadOptions) -> TopicReader:
    return TopicReader(check_brokers(read.config), read.config, Retries(0), patience=5.0)
