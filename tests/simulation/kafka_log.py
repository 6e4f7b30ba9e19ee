"""One replica's log of a simulated partition: what it holds, what its leader says of it, and what readers see."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Entry", "Log", "Producer", "Record", "RowLog", "packed"]


@dataclass(frozen=True)
class Record:
    """One record, at one offset."""

    leader_epoch: int  # Of the leader that appended it.
    producer: int = -1
    epoch: int = -1
    row: int = -1  # -1 if it is a marker.
    commits: bool | None = None  # Of a marker: whether it commits.
    coordinator_epoch: int = -1  # Of a marker: that of the coordinator which sent it.


@dataclass
class Producer:
    """What a leader knows of a producer: its newest epoch, and where its open transaction begins (-1 if none is)."""

    epoch: int = -1
    start: int = -1
    coordinator_epoch: int = -1


Entry = TypeVar("Entry")


class Log(Generic[Entry]):
    """A replica: `entries` with their leaders' epochs, of which readers see those before `high`."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, Entry]] = []
        self.epochs: list[tuple[int, int]] = []
        self.high = 0

    @property
    def end(self) -> int:
        """The offset of the next entry."""
        return len(self.entries)

    def lead(self, epoch: int) -> None:
        """Become the leader's log: its epoch begins here."""
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, len(self.entries)))

    def append(self, epoch: int, entry: Entry) -> int:
        """Append an entry of a leader, and return its offset."""
        self.lead(epoch)
        self.entries.append((epoch, entry))
        return len(self.entries) - 1

    def follow(self, leader: Log[Entry]) -> None:
        """Fetch what the leader has; cut off what it has not."""
        end = min(len(self.entries), len(leader.entries))
        while end and self.entries[end - 1] is not leader.entries[end - 1]:
            end -= 1
        if end < len(self.entries):
            assert end >= self.high, "a clean election keeps what readers have seen"
            self.cut(end)
        for epoch, entry in leader.entries[end:]:
            self.append(epoch, entry)
            self.entries[-1] = leader.entries[len(self.entries) - 1]
        self.high = max(self.high, min(len(self.entries), leader.high))

    def cut(self, end: int) -> None:
        """Cut off the entries from an offset on."""
        kept = self.entries[:end]
        self.entries, self.epochs = [], []
        for place, (epoch, entry) in enumerate(kept):
            self.append(epoch, entry)
            self.entries[place] = kept[place]

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the newest epoch up to this one, and where it ends, as a follower asks a leader."""
        ends = [*(start for _, start in self.epochs[1:]), len(self.entries)]
        found = [(known, end) for (known, _), end in zip(self.epochs, ends, strict=True) if known <= epoch]
        return found[-1] if found else (-1, -1)


class RowLog(Log[Record]):
    """A replica of a topic's partition."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: dict[int, Producer] = {}
        self.committed: dict[int, bool] = {}
        """By offset of a row whose transaction has ended: whether it was committed."""
        self.ended: list[tuple[int, int, int, bool]] = []
        """Ended transactions: producer, first offset, the marker's, whether it commits."""
        self.written: set[tuple[int, int, int]] = set()
        """Producer, epoch and row of every row: what is sent again is not written again."""
        self._rows: dict[int, list[int]] = {}

    def append(self, epoch: int, entry: Record) -> int:
        """See `Log`."""
        at = super().append(epoch, entry)
        known = self.producers.setdefault(entry.producer, Producer())
        known.epoch = max(known.epoch, entry.epoch)
        if entry.commits is None:
            if known.start < 0:
                known.start = at
            self.written.add((entry.producer, entry.epoch, entry.row))
            self._rows.setdefault(entry.producer, []).append(at)
        else:
            known.coordinator_epoch = entry.coordinator_epoch
            if known.start >= 0:
                self.ended.append((entry.producer, known.start, at, entry.commits))
                known.start = -1
            for row in self._rows.pop(entry.producer, ()):
                self.committed[row] = entry.commits
        return at

    def cut(self, end: int) -> None:
        """See `Log`."""
        self.producers, self.committed, self.ended, self.written, self._rows = {}, {}, [], set(), {}
        super().cut(end)

    def stable(self) -> int:
        """Return the offset before which every transaction has ended, and its marker is below the high watermark."""
        starts = [known.start for known in self.producers.values() if known.start >= 0]
        late = [first for _, first, marker, _ in self.ended[-50:] if marker >= self.high]
        return min([self.high, *starts, *late])

    def visible(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield offset and row of what a `read_committed` reader gets from an offset on."""
        for at in range(begin, self.stable()):
            row = self.entries[at][1].row
            if row >= 0 and self.committed[at]:
                yield at, row


def packed(log: RowLog, begin: int) -> bytes:
    """Return a log's records from an offset to the high watermark as a broker sends them: a batch each."""
    parts = []
    for at in range(begin, log.high):
        record = log.entries[at][1]
        control = record.commits is not None
        key = struct.pack(">hh", 0, int(bool(record.commits))) if control else b""
        # Lengths and deltas are zigzag numbers of one byte.
        body = bytes((0, 0, 0, len(key) * 2)) + key + bytes((0, 0))
        rest = struct.pack(
            ">ibIhiqqqhii",
            *(record.leader_epoch, 2, 0, 0x30 if control else 0x10, 0, 0, 0),
            *(record.producer, record.epoch, -1, 1),
        )
        rest += bytes((len(body) * 2,)) + body
        parts.append(struct.pack(">qi", at, len(rest)) + rest)
    return b"".join(parts)
