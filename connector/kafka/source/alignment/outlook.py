"""`Outlook`: the facts that decide how far a query reads if it follows barriers of other queries. All methods are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from connector.kafka.client.topics import Partition
from connector.kafka.marks.channel import Channel, Followed, marks_before, marks_within
from connector.kafka.marks.cuts import Lineage, newest_cut, next_cut
from connector.kafka.source.alignment.cut import Cut
from connector.kafka.source.offsets import Positions


@dataclass(frozen=True)
class Outlook:
    """The state before a micro-batch: the marks that have arrived, the query's position, and the offsets that can be read."""

    channels: Mapping[str, Channel]  # Barrier topic → its channel.
    cut: Cut  # The query's current cut.
    begin: Positions  # The query's position: the offsets to read next.
    visible: Positions  # The ends of the rows that can be read now.
    now: int  # The time, in milliseconds since the epoch.
    limit: int | None = None  # The maximum number of offsets in a micro-batch.
    # In a run that ends by itself: barrier topic → the checkpoint of the last mark to read. None in other runs.
    final: Mapping[str, int] | None = None
    ahead: Mapping[str, Sequence[Followed]] = field(init=False)

    def __post_init__(self) -> None:
        ahead: dict[str, Sequence[Followed]] = {name: channel.ahead for name, channel in self.channels.items()}
        if self.final is not None:
            last = self.final
            ahead = {
                name: [mark for mark in marks if mark.checkpoint.checkpoint <= last.get(name, 0)]
                for name, marks in ahead.items()
            }
        object.__setattr__(self, "ahead", ahead)

    @property
    def at(self) -> dict[str, Lineage | None]:
        """Barrier topic → the barriers in the last mark that the query has passed there; None if it has not passed a mark."""
        return {name: None if c.at is None else c.at.lineage for name, c in self.channels.items()}

    def of(self, name: str, positions: Positions) -> dict[Partition, int]:
        """Return the `positions` in those topics that the marks of the barrier topic `name` describe."""
        return {
            partition: offset for partition, offset in positions.items() if partition.topic in self.channels[name].ids
        }

    def lineages(self, cut: Mapping[str, int]) -> list[Lineage]:
        """Return the barriers in each mark of a cut (one mark per barrier topic).

        `cut` maps each barrier topic to the number of marks to pass.
        """
        return [self.ahead[name][passed - 1].lineage if passed else self.at[name] or {} for name, passed in cut.items()]

    def behind(self, name: str, ends: Positions) -> dict[Partition, int]:
        """Return, per partition, the offset in `ends` or the query's position, whichever is later.

        The result has the partitions that the marks of the barrier topic `name` describe.
        """
        begin = self.of(name, {**dict.fromkeys(ends, 0), **dict.fromkeys(self.visible, 0), **self.begin})
        return {partition: max(offset, ends.get(partition, 0)) for partition, offset in begin.items()}

    def targets(self, cut: Mapping[str, int]) -> dict[Partition, int]:
        """Return, per partition, the offset at which the query reaches a cut, but at least the query's position.

        `cut` maps each barrier topic to the number of marks to pass.
        """
        found: dict[Partition, int] = {}
        for name, passed in cut.items():
            found |= self.behind(name, self.ahead[name][passed - 1].ends if passed else {})
        return found

    def least(self) -> dict[str, int]:
        """Return, per barrier topic, the minimum number of marks that the query must pass until it can stop."""
        found = {}
        for name, channel in self.channels.items():
            begin, ends = self.of(name, self.begin), channel.at_ends
            known = self.cut.exact if ends is None else all(offset <= ends.get(p, 0) for p, offset in begin.items())
            stands = channel.at is not None and known
            found[name] = 0 if stands else marks_before(self.ahead[name], begin) + 1
        return found

    def has_cut(self) -> bool:
        """Return whether the marks in memory contain the cut (one mark per barrier topic) up to which the query is reading.

        If the query has not chosen a cut yet, any next cut counts.
        """
        if self.cut.toward:
            newest = {
                name: channel.newest.checkpoint if channel.newest else 0 for name, channel in self.channels.items()
            }
            return all(newest.get(name, checkpoint) >= checkpoint for name, checkpoint in self.cut.toward.items())
        return next_cut(self.at, self.ahead, self.least()) is not None

    def newest(self) -> dict[str, int] | None:
        """Return the newest cut (one mark per barrier topic) at or after the query's position that the query can reach now.

        Return None if there is none.
        """
        most = {name: marks_within(marks, self.of(name, self.visible)) for name, marks in self.ahead.items()}
        cut, least = newest_cut(self.at, self.ahead, most), self.least()
        return cut if cut is not None and all(passed >= least[name] for name, passed in cut.items()) else None

    def passing(self, cut: Mapping[str, int]) -> Cut:
        """Return the query's `Cut` after the query has passed `cut[topic]` marks of each barrier topic."""
        marks = dict(self.cut.marks)
        for name, passed in cut.items():
            if passed:
                marks[name] = self.ahead[name][passed - 1].passed
        return Cut(marks, exact=True, waited=self.waits(cut), query=self.cut.query)

    def waits(self, cut: Mapping[str, int]) -> dict[str, int]:
        """Return how many milliseconds each mark of a cut waited for the cut's last mark; omit zeros.

        A cut has one mark per barrier topic, and `cut` maps each barrier topic to the number of marks to pass.
        """
        seen = {name: self.ahead[name][passed - 1].seen for name, passed in cut.items() if passed}
        last = max(seen.values(), default=0)
        return {name: last - at for name, at in seen.items() if last > at}

    def complete(self, end: Positions) -> Cut:
        """Return the newest cut (one mark per barrier topic) at or before `end`.

        The cut is exact if no row lies between the cut and `end`.
        """
        most = {name: marks_within(marks, self.of(name, end)) for name, marks in self.ahead.items()}
        cut = newest_cut(self.at, self.ahead, most)
        if cut is None:
            stays = end == self.begin
            marks, exact = self.cut.marks, stays and self.cut.exact
            if not stays and len(marks) == len(self.channels):
                exact = all(self._is_at(name, 0, end) for name in self.channels)
            return replace(self.cut, marks=marks, exact=exact, toward={}, waited={})
        exact = all(self._is_at(name, passed, end) for name, passed in cut.items())
        return replace(self.passing(cut), exact=exact, taken=self.cut.taken, late=self.cut.late)

    def _is_at(self, name: str, passed: int, end: Positions) -> bool:
        ends = self.ahead[name][passed - 1].ends if passed else self.channels[name].at_ends
        return ends is not None and all(ends.get(p, 0) == offset for p, offset in self.of(name, end).items())
