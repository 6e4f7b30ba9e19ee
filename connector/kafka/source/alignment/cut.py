"""`Cut`: a query's position among the barriers of other queries, as the query's offsets record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from connector.kafka.marks.channel import Passed
from connector.kafka.marks.cuts import Lineage


@dataclass(frozen=True)
class Cut:
    """A query's position among the barriers of other queries: one mark from each barrier topic.

    The query has read all rows before these marks. If barriers of the same origin (the query or topic at which they begin)
    reach several barrier topics, the marks from these topics contain the same barrier.
    """

    # Barrier topic → the cut's mark in this topic; empty before the first cut.
    marks: Mapping[str, Passed] = field(default_factory=dict)
    exact: bool = False  # Whether the query has read no row after the cut.
    # Barrier topic → the checkpoint of its mark in the next cut, up to which the query reads. A restarted query reads up to
    # the same cut, because it has already read some of the rows before that cut.
    toward: Mapping[str, int] = field(default_factory=dict)
    # The newest barriers for which a checkpoint was taken, perhaps before all of their marks had arrived
    # (``alignment=unaligned``).
    taken: Lineage = field(default_factory=dict)
    # Only topics in which the query has not reached the mark of the barriers in `taken`: barrier topic → the checkpoint of
    # that mark, or None if the mark has not arrived. The rows before the mark also belong to these barriers (Flink's channel
    # state). A restarted query reads these rows first.
    late: Mapping[str, int | None] = field(default_factory=dict)
    # Spark's id of the query, if its sources agree on cuts (`alignment.meeting`); empty otherwise.
    query: str = ""
    # Barrier topic → how many milliseconds its mark waited for the marks of other topics. Only for display.
    waited: Mapping[str, int] = field(default_factory=dict)

    @property
    def checkpoints(self) -> dict[str, int]:
        """Barrier topic → the checkpoint of the cut's mark in this topic. Together, these checkpoints identify the cut."""
        return {topic: mark.checkpoint for topic, mark in self.marks.items()}

    def same_marks(self, other: Cut | None) -> bool:
        """Return whether both cuts have the same `marks` and the same `taken`. None counts as an empty cut."""
        before = other or Cut()
        return (self.marks, self.taken) == (before.marks, before.taken)

    def to_json(self) -> dict[str, Any]:
        """Return the cut as the offset log stores it."""
        return {
            "exact": self.exact,
            **({"late": dict(sorted(self.late.items()))} if self.late else {}),
            "lineage": lineage_of(self.marks),
            "marks": {topic: self.marks[topic].to_json() for topic in sorted(self.marks)},
            **({"query": self.query} if self.query else {}),
            **({"taken": dict(sorted(self.taken.items()))} if self.taken else {}),
            **({"toward": dict(sorted(self.toward.items()))} if self.toward else {}),
            **({"waited": dict(sorted(self.waited.items()))} if self.waited else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cut:
        """Parse the result of `to_json`."""
        late = {topic: None if at is None else int(at) for topic, at in value.get("late", {}).items()}
        return cls(
            marks={topic: Passed.from_json(mark) for topic, mark in value["marks"].items()},
            exact=bool(value["exact"]),
            toward={topic: int(at) for topic, at in value.get("toward", {}).items()},
            taken={origin: int(barrier) for origin, barrier in value.get("taken", {}).items()},
            late=late,
            query=str(value.get("query", "")),
            waited={topic: int(ms) for topic, ms in value.get("waited", {}).items()},
        )


def lineage_of(marks: Mapping[str, Passed]) -> Lineage:
    """Return the barriers in a cut's marks: origin (a query or topic at which barriers begin) → the barrier's number.

    The marks of a cut agree, so each origin has one barrier.
    """
    found: dict[str, int] = {}
    for passed in marks.values():
        found |= passed.lineage
    return dict(sorted(found.items()))
