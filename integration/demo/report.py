"""What a reader found, held against what had to be there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table

from integration.demo.flights import Row
from integration.demo.trial import TrialResult

__all__ = ["Report", "Tally", "tally"]

SHOWN = 5  # event ids named in a failure


@dataclass(frozen=True)
class Tally:
    """Rows of an output topic, counted by event id and by content."""

    # Rows.
    expected: int
    found: int
    # By event id: rows beyond the first of each, events without a row.
    doubled: int
    missing: int
    # By key and value, byte for byte: rows too many, rows too few. A row that was changed is one of each.
    doubled_content: int
    missing_content: int
    foreign: int = 0  # Rows whose key and value no expected row has.
    examples: tuple[str, ...] = ()  # Some of what is wrong.

    @property
    def exact(self) -> bool:
        """Every expected row once, and nothing else."""
        wrong = (self.doubled, self.missing, self.doubled_content, self.missing_content)
        return self.found == self.expected and not any(wrong)

    @property
    def only_doubled(self) -> bool:
        """Every expected row at least once, some more than once, and nothing else."""
        wrong = (self.missing, self.missing_content, self.foreign)
        return self.doubled > 0 and not any(wrong)


def tally(expected: Mapping[int, Row], found: Iterable[Row]) -> Tally:
    """Count.

    Parameters
    ----------
    expected : Mapping[int, Row]
        By event id.
    found : Iterable[Row]
        What a reader got.
    """
    contents = Counter(found)
    wanted = Counter(expected.values())
    events: Counter[object] = Counter()
    for (_, value), times in contents.items():
        events[_event(value)] += times
    doubled = {event: times - 1 for event, times in events.items() if times > 1}
    missing = [event for event in expected if event not in events]
    examples = [f"event {event} is there {times + 1} times" for event, times in list(doubled.items())[:SHOWN]]
    examples += [f"event {event} is missing" for event in missing[:SHOWN]]
    examples += [f"{row!r} is not what was expected" for row in list(contents - wanted)[:SHOWN] if row not in wanted]
    return Tally(
        expected=len(expected),
        found=contents.total(),
        doubled=sum(doubled.values()),
        missing=len(missing),
        doubled_content=(contents - wanted).total(),
        missing_content=(wanted - contents).total(),
        foreign=sum(times for row, times in contents.items() if row not in wanted),
        examples=tuple(examples),
    )


def _event(value: bytes | None) -> object:
    """Return the event id of a row, or the row itself where it has none."""
    try:
        return json.loads(value or b"")["event"]
    except (ValueError, KeyError, TypeError):
        return value


@dataclass(frozen=True)
class Report:
    """Both halves of the demo."""

    seed: int
    exactly_once: Tally
    at_least_once: Tally
    killed: TrialResult
    compared: TrialResult
    point: str

    @property
    def passed(self) -> bool:
        """Exactly-once was, and at-least-once shows that the demo can tell the difference."""
        return self.exactly_once.exact and self.at_least_once.only_doubled

    def table(self) -> Table:
        """Draw it for people."""
        left, right = self.exactly_once, self.at_least_once
        table = Table("", title=f"What a read_committed consumer found (seed {self.seed})")
        table.add_column(f"exactly-once,\nkilled at {self.killed.kills} random moments", justify="right")
        table.add_column(f"at-least-once,\nkilled once at {self.point}", justify="right")
        lines: list[tuple[str, int, int]] = [
            ("rows expected", left.expected, right.expected),
            ("rows found", left.found, right.found),
            ("doubled, by event id", left.doubled, right.doubled),
            ("doubled, by content", left.doubled_content, right.doubled_content),
            ("missing, by event id", left.missing, right.missing),
            ("missing, by content", left.missing_content, right.missing_content),
            ("kills (SIGKILL)", self.killed.kills, self.compared.kills),
            ("micro-batches", self.killed.batches, self.compared.batches),
        ]
        for name, one, other in lines:
            table.add_row(name, f"{one:,}", f"{other:,}")
        table.add_row("seconds", f"{self.killed.seconds:.0f}", f"{self.compared.seconds:.0f}")
        return table

    def verdict(self) -> str:
        """One sentence, or what is wrong."""
        if not self.exactly_once.exact:
            return "\n".join(["Exactly-once did not hold:", *self.exactly_once.examples])
        if self.at_least_once.doubled == 0:
            return "At-least-once doubled no row: the kill met no row already written, so this run proves little."
        if not self.at_least_once.only_doubled:
            return "\n".join(["At-least-once lost or changed rows:", *self.at_least_once.examples])
        return "Every row once, whatever was killed. Without two phases, one kill doubled rows."
