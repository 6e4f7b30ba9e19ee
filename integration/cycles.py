"""Whether what was read can have been seen in one order: cycles among transactions that append and read lists.

After Elle (Kingsbury and Alvaro, "Elle: inferring isolation anomalies from experimental observations", VLDB 2020). A list shows
the order of the appends to it. So from reads alone follows which append came before which, which read has seen an append (wr),
and which append a read came before (rw). If these have a cycle, no serial order explains what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

__all__ = ["Anomaly", "Transaction", "check_serializable"]

Key = Any
"""Of a list: anything that can be one of a mapping."""


class Anomaly(AssertionError):
    """No serial order explains what was read; the message names the transactions."""


@dataclass(frozen=True)
class Transaction:
    """What one transaction did at once."""

    name: str
    # To each list at most one value, which no other transaction appends there.
    appends: Mapping[Key, str] = field(default_factory=dict)
    reads: Mapping[Key, Sequence[str]] = field(default_factory=dict)  # Whole lists.


def check_serializable(transactions: Iterable[Transaction]) -> None:
    """Raise if what was read fits no serial order.

    Raises
    ------
    Anomaly
        A cycle; two reads of a list, neither of which begins with the other; a value that is there twice, or that no
        transaction has appended.
    """
    known = list(transactions)
    writers = {(key, value): each.name for each in known for key, value in each.appends.items()}
    orders: dict[Key, Sequence[str]] = {}
    for each in known:
        for key, values in each.reads.items():
            longest = max(orders.get(key, ()), values, key=len)
            if any(list(longest[: len(other)]) != list(other) for other in (orders.get(key, ()), values)):
                raise Anomaly(f"{each.name} has read {values} in {key}, and another read has {orders[key]}")
            orders[key] = longest
    for key, values in orders.items():
        strange = [value for value in values if (key, value) not in writers]
        if strange or len(set(values)) < len(values):
            raise Anomaly(f"{key} has {values}, of which {strange} no transaction has appended")
    before: dict[str, set[str]] = {each.name: set() for each in known}
    for key, values in orders.items():
        for earlier, later in pairwise(values):
            before[writers[key, later]].add(writers[key, earlier])
    for each in known:
        for key, seen in each.reads.items():
            if seen:
                before[each.name].add(writers[key, seen[-1]])
            order = orders[key]
            unseen = [order[len(seen)]] if len(seen) < len(order) else []
            # Not read by anybody yet: all of these come after each read of the list.
            unseen = unseen or [value for (of, value) in writers if of == key and value not in order]
            for value in unseen:
                before[writers[key, value]].add(each.name)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as cycle:
        raise Anomaly(f"a cycle: {' -> '.join(reversed(cycle.args[1]))}") from None
