"""Where a query stands among other queries' barriers: a part of its offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from connector.kafka.marks.channel import Passed
from connector.kafka.marks.cuts import Lineage

__all__ = ["Cut", "lineage_of"]


@dataclass(frozen=True)
class Cut:
    """The newest cut that is read completely.

    Parameters
    ----------
    marks : Mapping[str, Passed]
        The mark of each channel, by barrier topic; empty before the first cut.
    exact : bool
        Whether nothing behind it is read.
    toward : Mapping[str, int]
        The cut that is read now: a checkpoint of each channel. A new run goes on to the same one, as parts of it are read.
    taken : Lineage
        The newest barriers for which a checkpoint was taken, perhaps before all of their marks had come
        (``alignment=unaligned``).
    late : Mapping[str, int or None]
        Channels that such a barrier has overtaken: what lies between the position and the mark of this checkpoint belongs to
        the barrier, too (Flink's channel state), and a new run reads it first; None if that mark had not come.
    waited : Mapping[str, int]
        How many milliseconds the marks of a channel have waited for those of others. It informs people.
    """

    marks: Mapping[str, Passed] = field(default_factory=dict)
    exact: bool = False
    toward: Mapping[str, int] = field(default_factory=dict)
    taken: Lineage = field(default_factory=dict)
    late: Mapping[str, int | None] = field(default_factory=dict)
    waited: Mapping[str, int] = field(default_factory=dict)

    def same_marks(self, other: Cut | None) -> bool:
        """Return whether the same barriers are complete, and the same were taken."""
        before = other or Cut()
        return (self.marks, self.taken) == (before.marks, before.taken)

    def to_json(self) -> dict[str, Any]:
        """Return the form that the offset log keeps."""
        return {
            "exact": self.exact,
            **({"late": dict(sorted(self.late.items()))} if self.late else {}),
            "lineage": lineage_of(self.marks),
            "marks": {topic: self.marks[topic].to_json() for topic in sorted(self.marks)},
            **({"taken": dict(sorted(self.taken.items()))} if self.taken else {}),
            **({"toward": dict(sorted(self.toward.items()))} if self.toward else {}),
            **({"waited": dict(sorted(self.waited.items()))} if self.waited else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cut:
        """Parse what `to_json` returned."""
        late = {topic: None if at is None else int(at) for topic, at in value.get("late", {}).items()}
        return cls(
            marks={topic: Passed.from_json(mark) for topic, mark in value["marks"].items()},
            exact=bool(value["exact"]),
            toward={topic: int(at) for topic, at in value.get("toward", {}).items()},
            taken={origin: int(barrier) for origin, barrier in value.get("taken", {}).items()},
            late=late,
            waited={topic: int(ms) for topic, ms in value.get("waited", {}).items()},
        )


def lineage_of(marks: Mapping[str, Passed]) -> Lineage:
    """Return the newest barrier of each origin in a cut, whose channels agree."""
    found: dict[str, int] = {}
    for passed in marks.values():
        found |= passed.lineage
    return dict(sorted(found.items()))
