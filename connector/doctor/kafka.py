"""Checks of the topics that a query reads, and of open transactions that block a topic's consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.cluster_admin import TOPIC
from connector.kafka.client.errors import missing_right
from connector.kafka.source.read_options import ReadOptions
from connector.transactions.on_brokers import look
from transactional.finding import Finding, good, problem, unknown, warning

SHORTEST_RETENTION_MS: Final = 24 * 3_600_000
"""One day, in milliseconds. If a topic keeps rows for a shorter time, a query that is stopped overnight may lose
rows."""


def check_readers(admin: KafkaAdmin, topic: str) -> Finding:
    """Check whether open transactions block the consumers of an output topic now."""
    view = look(admin, [topic], also_written=False)
    if view.denied:
        return unknown("open-transactions", f"This user is not allowed to read {topic}.")
    if not view.held:
        return good("open-transactions", f"no consumer of {topic} is blocked")
    names = sorted({holder.shown_name for each in view.held for holder in each.holders})
    return warning(
        "open-transactions",
        f"Open transactions block consumers in {len(view.held)} partitions of {topic}: {', '.join(names[:5])}.",
        f"Run `barrier transactions explain {topic} LOCATION...`.",
    )


def check_read_topics(admin: KafkaAdmin, options: ReadOptions, topics: Sequence[str]) -> Iterator[Finding]:
    """Check that this user may read the input topics, and that each topic keeps rows long enough."""
    allowed = {topic: info.allows("READ") for topic, info in admin.topics(topics, ()).items()}
    denied = [topic for topic in topics if allowed.get(topic) is False]
    if denied:
        right = missing_right("READ", f"topic {', '.join(denied)}")
        yield problem("rights", right.message, "", right.condition)
    elif None in allowed.values():
        yield unknown("rights", "The brokers do not report the rights of this user.")
    else:
        yield good("rights", "the source has all rights that it needs")
    for topic in topics:
        settings = admin.settings_of(TOPIC, topic, ["retention.ms", "retention.bytes", "cleanup.policy"])
        if settings is None:
            allow = f"Grant DESCRIBE_CONFIGS on topic {topic}."
            yield unknown("retention", f"This user is not allowed to see the retention of {topic}.", allow)
            continue
        age = int(settings.get("retention.ms", -1))
        consequence = "fail with DATA_LOST" if options.fail_on_data_loss else "skip them"
        if "delete" in settings.get("cleanup.policy", "delete") and 0 <= age < SHORTEST_RETENTION_MS:
            yield warning(
                "retention",
                f"{topic} keeps rows for {age / 3_600_000:g} hours. If rows expire while the query is stopped, the query "
                f"would {consequence}.",
                "Raise the topic's retention.ms above the longest stop of the query.",
            )
        elif "delete" in settings.get("cleanup.policy", "delete") and int(settings.get("retention.bytes", -1)) >= 0:
            yield warning(
                "retention",
                f"{topic} keeps only {settings['retention.bytes']} bytes per partition, even if rows are new. If rows expire "
                f"before the query has read them, the query would {consequence}.",
                "Raise the topic's retention.bytes.",
            )
        else:
            kept = "forever" if age < 0 else f"for {age / 3_600_000:g} hours"
            yield good("retention", f"{topic} keeps rows {kept}")
