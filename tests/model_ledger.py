"""The fold of the journal model: `transactional.ledger` without figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Entry", "Ledger", "Part", "Record", "Rewinding", "lost_parts", "open_handles"]

Entry = tuple[Any, ...]  # (kind, ...)
Part = tuple[int, int]  # (batch, partition)


class Rewinding(NamedTuple):
    """A rewind that was begun and is not done."""

    token: int  # Number of its entry.
    target: int  # The checkpoint to go back to; 0 for none.
    named: tuple[int, ...]  # Checkpoints whose rows it said would be written again.


@dataclass
class Record:
    """A micro-batch in the ledger; `chains` holds per partition the handles with their verdicts."""

    entry: int
    chains: dict[int, list[tuple[int, str]]]
    checkpoint: int = 0


@dataclass
class Ledger:
    """The fold."""

    position: int = 0
    runs: dict[int, tuple[str, bool]] = field(default_factory=dict)
    batches: dict[int, Record] = field(default_factory=dict)
    checkpoints: dict[int, tuple[tuple[int, ...], bool]] = field(default_factory=dict)
    newest: int = 0
    unsettled: int = 0
    undecided: tuple[int, ...] = ()
    known: frozenset[int] = frozenset()
    decided: frozenset[int] = frozenset()
    voided: frozenset[int] = frozenset()
    ever: frozenset[int] = frozenset()
    rewinding: Rewinding | None = None
    replay: int | None = None
    stop: int = 0
    moved: bool = False
    restoring: bool = False
    opened: bool = False

    @property
    def stopping(self) -> bool:
        """The newest run was asked to stop, and has not ended."""
        return self.live > 0 and self.live == self.stop

    @property
    def live(self) -> int:
        """Token of the newest run if it has not ended."""
        return self.newest if self.newest and not self.runs[self.newest][1] else 0

    @property
    def accounted(self) -> int:
        """The last micro-batch in the journal; -1 for none."""
        return max(self.batches, default=-1)

    def chains(self, checkpoint: int) -> Iterator[tuple[Part, list[tuple[int, str]]]]:
        """Of a checkpoint's parts."""
        for batch in self.checkpoints[checkpoint][0]:
            for partition, chain in sorted(self.batches[batch].chains.items()):
                yield (batch, partition), chain

    def apply(self, entry: Entry) -> Ledger:
        """The next ledger."""
        after = Ledger(
            self.position + 1,
            dict(self.runs),
            {
                b: Record(r.entry, {p: list(c) for p, c in r.chains.items()}, r.checkpoint)
                for b, r in self.batches.items()
            },
            dict(self.checkpoints),
            voided=self.voided,
            ever=self.ever,
            rewinding=self.rewinding,
            replay=self.replay,
            stop=self.stop,
            moved=self.moved,
            restoring=self.restoring,
            opened=self.opened,
        )
        after._fold(entry)
        after.newest = max(after.runs, default=0)
        after.unsettled = min((c for c, (_, settled) in after.checkpoints.items() if not settled), default=0)
        after.undecided = tuple(b for b, r in sorted(after.batches.items()) if not r.checkpoint)
        decided = {h for r in after.batches.values() if r.checkpoint for h in open_handles(r)}
        after.decided = frozenset(decided)
        after.known = frozenset(decided | {h for b in after.undecided for h in open_handles(after.batches[b])})
        return after

    def _fold(self, entry: Entry) -> None:
        kind, number = entry[0], self.position
        if kind == "mark":
            return
        if kind == "run":
            self.runs[number] = (entry[1], False)
        elif kind == "stop":
            self.stop = entry[1]
        elif kind in ("fenced", "aborted", "stopped"):
            if entry[1] in self.runs:
                self.runs[entry[1]] = (self.runs[entry[1]][0], True)
        elif kind == "prepared":
            self._record(entry)
        elif kind == "decided":
            covered = [b for b, r in sorted(self.batches.items()) if not r.checkpoint]
            number = entry[3] if len(entry) > 3 else number  # ids-counted
            if entry[1] not in covered:
                self._record(entry)
                covered.append(entry[1])
            elif entry[2]:  # drain-writes
                self.batches[entry[1]].chains.update({p + 10: [(h, "")] for p, h in entry[2]})
            for batch in covered:
                self.batches[batch].checkpoint = number
            self.checkpoints[number] = (tuple(covered), False)
            self.ever |= {number}
        elif kind == "begun":
            self._begun(entry)
        elif kind == "done":
            self._done(entry)
        elif kind == "away":
            self._end_runs()
            self.moved, self.rewinding = True, None
        elif kind == "restoring":
            self.restoring = True
        elif kind == "opened":
            self._opened(entry)
        elif entry[1] not in (self.batches if kind == "void-prepared" else self.checkpoints):
            return  # only by a break
        elif kind == "settled":
            self.checkpoints[entry[1]] = (self.checkpoints[entry[1]][0], True)
            for batch in self.checkpoints[entry[1]][0]:
                self.batches[batch].chains = {}
        elif kind == "verdict":
            for batch, partition, verdict in entry[2]:
                chain = self.batches[batch].chains[partition]
                chain[-1] = (chain[-1][0], verdict)
        elif kind == "repair":
            for batch, partition, handle in entry[2]:
                self.batches[batch].chains[partition].append((handle, ""))
        elif kind == "void":
            for batch in self.checkpoints.pop(entry[1])[0]:
                del self.batches[batch]
                self.voided |= {batch}
        elif kind == "void-prepared":
            del self.batches[entry[1]]
            self.voided |= {entry[1]}

    def _begun(self, entry: Entry) -> None:
        self.rewinding = Rewinding(self.position, *entry[1:3])
        if len(entry) == 3:  # else begun-ignored
            self._end_runs()

    def _end_runs(self) -> None:
        self.runs = {token: (driver, True) for token, (driver, _) in self.runs.items()}

    def _opened(self, entry: Entry) -> None:
        """A journal goes on from what a savepoint holds, at a number of the old journal's."""
        number, batches, checkpoints, ever = entry[1:]
        self.position = max(number, self.position)
        self.batches = {batch: Record(taken, {}, checkpoint) for batch, taken, checkpoint in batches}
        self.checkpoints = {checkpoint: (covered, True) for checkpoint, covered in checkpoints}
        self.ever, self.runs = frozenset(ever), {}
        self.restoring, self.opened = False, True

    def _done(self, entry: Entry) -> None:
        """Entries about later micro-batches are void, but for those of the checkpoint that it keeps."""
        last, kept = entry[1:3]
        self.rewinding = None
        if len(entry) > 3:  # done-forgets
            return
        self.batches = {b: r for b, r in self.batches.items() if b <= last or (kept and r.checkpoint == kept)}
        self.checkpoints = {c: x for c, x in self.checkpoints.items() if max(x[0]) <= last or c == kept}
        self.voided = frozenset(b for b in self.voided if b <= last)
        self.replay = last + 1 if kept else None

    def _record(self, entry: Entry) -> None:
        if entry[1] > self.accounted:
            self.replay = None
        self.batches[entry[1]] = Record(self.position, {p: [(h, "")] for p, h in entry[2]})
        self.voided -= {entry[1]}


def open_handles(record: Record) -> list[int]:
    """Last handles that nobody has judged."""
    return [chain[-1][0] for _, chain in sorted(record.chains.items()) if not chain[-1][1]]


def lost_parts(record: Record) -> list[int]:
    """Partitions whose last handle was judged lost."""
    return [p for p, chain in sorted(record.chains.items()) if chain[-1][1] == "lost"]
