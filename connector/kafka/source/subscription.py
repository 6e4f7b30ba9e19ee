"""The topics and partitions that the user wants to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from connector.kafka.client.topics import Partition, listed
from transactional.errors import OptionError

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, which a pattern never matches."""


@dataclass(frozen=True)
class Subscription:
    """The topics or partitions that the options name. Exactly one field is set."""

    topics: tuple[str, ...] = ()  # The option ``subscribe``.
    # The option ``subscribePattern``, as a Python regular expression that has to match whole names.
    pattern: str | None = None
    assigned: tuple[Partition, ...] = ()  # The option ``assign``.

    @property
    def option(self) -> str:
        """The name of the option that is set, for error messages."""
        return "assign" if self.assigned else "subscribe" if self.pattern is None else "subscribePattern"

    def words(self) -> list[str]:
        """Return the values of the option that is set, always in the same order."""
        return [*self.topics, *([] if self.pattern is None else [self.pattern]), *map(str, self.assigned)]

    def names(self) -> list[str]:
        """Return the topics that must exist, sorted; empty for a pattern."""
        return sorted({*self.topics, *(partition.topic for partition in self.assigned)})

    def means(self, topic: str) -> bool:
        """Return whether the subscription includes this topic. The topic need not exist."""
        return self.matches(topic) if self.pattern is not None else topic in self.names()

    def matches(self, topic: str) -> bool:
        """Return whether the pattern matches this topic. As in Spark, a pattern never matches Kafka's own topics."""
        return self.pattern is not None and topic not in INTERNAL and re.fullmatch(self.pattern, topic) is not None

    def check(self, partitions: Iterable[Partition]) -> None:
        """Reject assigned partitions that do not exist."""
        strange = sorted(set(self.assigned) - set(partitions))
        if strange:
            raise wrong_partitions("assign", listed(strange), "existing partitions, whose numbers begin at 0", strange)


def wrong_partitions(option: str, value: str, expectation: str, partitions: Sequence[Partition]) -> OptionError:
    """Return the error for an option whose value is wrong for some partitions."""
    return OptionError(
        "INVALID_OPTION",
        owner="barrier-kafka",
        option=option,
        value=value,
        expectation=expectation,
        partitions=[str(partition) for partition in partitions],
    )
