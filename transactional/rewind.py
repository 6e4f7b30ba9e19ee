"""Going back: a stopped query returns to an earlier checkpoint, in place. The durable steps, in order:

R1 choose the target, see that the query can go back to it  R2 `rewind begun`: it fences every run (again by who resumes)
R3 settle or void what is decided                           R4 abort what is prepared, sweep
R5 take the sink's store back, if that was asked for        R6 the query's logs, from the highest micro-batch down
R7 `rewind done`

Between R2 and R7 only the rewind owns the location: a query that starts is refused. Every step can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from transactional import entries, faults
from transactional.errors import LocationError
from transactional.journal import Journal
from transactional.ledger import CheckpointRecord, Ledger, Rewind
from transactional.ownership import must_own, rewinding
from transactional.recovery import committed_undecided, is_late_commit
from transactional.settlement import Settlement
from transactional.sink import Cutoff, TwoPhaseCommitSink, restorable

__all__ = [
    "NothingToRewindError",
    "Preview",
    "QueryLogs",
    "Rewinder",
    "out_of_step",
    "output_ranges",
    "replaced",
]


class NothingToRewindError(LocationError):
    """Nothing is open, and no rewind was begun."""


class QueryLogs(Protocol):
    """The actions of a rewind on the query's own logs. Every call can be repeated."""

    def highest(self) -> tuple[int, int]:
        """Return the highest micro-batch of ``offsets/`` and of ``commits/``; -1 if there is none."""

    def repartitions(self, before: int) -> Sequence[int]:
        """Return the micro-batches directly before this one that the engine's repartition of the state has added."""

    def check_can_go_back(self, batch: int) -> None:
        """Raise LocationError if the query can't go on after that micro-batch any more."""

    def delete_after(self, batch: int) -> None:
        """Make that micro-batch the last one, and done."""

    def replay(self, first: int, last: int) -> None:
        """Let these micro-batches run again, with the offsets that they had, and forget later ones."""

    def is_replaced(self, batch: int, text: str) -> bool:
        """Return whether ``offsets/<batch>`` is there, and has other sources than this text of it."""

    def put_back(self, batch: int, text: str) -> None:
        """Make this the text of ``offsets/<batch>``."""


@dataclass(frozen=True)
class Preview:
    """The effects that a rewind would have.

    Parameters
    ----------
    checkpoint : int or None
        The target; None if the rewind finds it: the newest from which nothing is written twice.
    batch : int
        The micro-batch after which the query goes on; without a named target the earliest that it can be.
    rewritten : Sequence[int]
        Micro-batches that may run again.
    emitted : Sequence[CheckpointRecord]
        Checkpoints whose rows are, or may be, committed and would be written again.
    restored : CheckpointRecord or None
        The target's record.
    """

    checkpoint: int | None
    batch: int
    rewritten: Sequence[int]
    emitted: Sequence[CheckpointRecord]
    restored: CheckpointRecord | None


class Rewinder:
    """Takes one stopped query back.

    Parameters
    ----------
    journal : Journal
        Loaded.
    sink : TwoPhaseCommitSink
    logs : QueryLogs
    queryId, prefix : str
    """

    def __init__(
        self, journal: Journal, sink: TwoPhaseCommitSink[Any, Any], logs: QueryLogs, queryId: str, prefix: str
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._logs = logs
        self._query_id = queryId
        self._settlement = Settlement(journal, sink, queryId, prefix, -1)

    def preview(self, checkpoint: int | None = None) -> Preview:
        """Preview going back to a checkpoint (R1); None for the newest from which nothing is written twice."""
        ledger = self._journal.ledger
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        target = None if checkpoint is None else _settled(ledger, checkpoint)
        batch = max(target.batches) if target is not None else self._last_whole(ledger)
        self._logs.check_can_go_back(batch)
        later = [c for c in ledger.checkpoints.values() if target is not None and c.id > target.id]
        emitted = [c for c in later if c.rows or not c.settled]
        return Preview(checkpoint, batch, range(batch + 1, ledger.accounted + 1), emitted, target)

    def _last_whole(self, ledger: Ledger) -> int:
        """Return the micro-batch before the first that may run again if nothing is to be written twice."""
        unsettled = ledger.unsettled()
        if not (unsettled or ledger.undecided() or ledger.voided or out_of_step(ledger, self._logs)):
            reason = f"everything up to micro-batch {ledger.accounted} is committed"
            raise NothingToRewindError("NOTHING_TO_REWIND", reason=reason, accounted=ledger.accounted)
        firsts = [*(min(c.batches) for c in unsettled), *ledger.voided]
        firsts += [ledger.replay] if ledger.replay is not None else []
        return min([ledger.decided, *(first - 1 for first in firsts)])

    def begin(self, preview: Preview, request: Mapping[str, Any]) -> int:
        """R2: from here on only the rewind owns the location."""
        position = self._journal.ledger.position

        def judge(ledger: Ledger) -> None:
            if ledger.position != position:
                raise LocationError(
                    "LOCATION_BUSY", reason="another process has added to its journal", position=position
                )

        fact = entries.RewindBegun(checkpoint=preview.checkpoint, request=request)
        token = self._journal.append(fact, judge).number
        faults.reach("rewind.begun")
        return token

    def again(self, request: Mapping[str, Any]) -> int:
        """R2 once more, before `finish` in another process; the newest such entry counts.

        Otherwise a create that the killed process has sent could still arrive, and end the rewind while this one runs.
        """
        begun = self.begun()
        return self.begin(Preview(begun.checkpoint, -1, [], [], None), {**begun.request, **request})

    def begun(self) -> Rewind:
        """Return the rewind that was begun and is not done."""
        begun = self._journal.ledger.rewinding
        if begun is None:
            raise NothingToRewindError("NOTHING_TO_REWIND", reason="no rewind was started here, or it has finished")
        return begun

    def finish(self) -> int:
        """R3 to R7; return the micro-batch after which the query goes on. `begin` or `again` in this process comes before."""
        rewind = self.begun()
        self._leave_nothing_open(rewind.token)
        target = self._journal.ledger.checkpoints[rewind.checkpoint] if rewind.checkpoint is not None else None
        if target is not None and rewind.request.get("restoreTables"):
            # R5: take the store back.
            restorable(self._sink).restoreOutput(target.output, rewind.token)
            faults.reach("rewind.restored")
        # R6: take Spark's logs back, from the highest micro-batch down.
        batch, keep = self._rewrite_logs(target)
        faults.reach("rewind.deleted")
        self._rewrite_logs(target)  # a query that was started in between has written offsets that are deleted
        done = entries.RewindDone(begun=rewind.token, batch=batch, keep=keep)
        # R7: write "rewind done". From here entries about later micro-batches count for nothing.
        self._journal.append(done, must_own(rewind.token))
        return batch

    def _leave_nothing_open(self, token: int) -> None:
        """R3 and R4."""
        for checkpoint in self._journal.ledger.unsettled():
            # R3: settle or void every decision.
            self._settlement.settle(checkpoint.id, token)
        faults.reach("rewind.settled")
        # R4: abort everything that is prepared.
        self._abort_prepared(token)
        faults.reach("rewind.aborted")

    def _abort_prepared(self, token: int) -> None:
        ledger = self._journal.ledger
        prepared = [part for record in ledger.undecided() for part in record.parts if part.open]
        found = self._sink.abort([part.handles[-1] for part in prepared]) if prepared else []
        if found:
            committed = next(part for part in prepared if part.handles[-1] in found)
            raise committed_undecided(committed, "going back")
        kept = [part.handles[-1] for c in ledger.unsettled() for part in ledger.parts_of(c) if part.open]
        self._sink.sweep(kept, Cutoff(ledger.identity(self._query_id), token, 0))

    def _kept(self) -> CheckpointRecord | None:
        """Return the checkpoint whose micro-batches run again as they were: parts are lost, or an earlier rewind has it run."""
        ledger = self._journal.ledger
        unsettled = ledger.unsettled()
        if unsettled or ledger.replay is None:
            return unsettled[-1] if unsettled else None
        return ledger.checkpoints[ledger.batches[ledger.replay].checkpoint or 0]

    def _rewrite_logs(self, target: CheckpointRecord | None) -> tuple[int, int | None]:
        """R6: return the micro-batch after which the query goes on, and the part-committed checkpoint that is kept."""
        ledger = self._journal.ledger
        kept = self._kept() if target is None else None
        if kept is not None:  # the earliest micro-batch with lost parts, and all that follow it, run again as they were
            lost = [part.batch for part in ledger.parts_of(kept) if part.lost]
            # The query may not have come to the first of them since an earlier rewind: it is only planned.
            first = min([*lost, *([ledger.replay] if ledger.replay is not None else [])])
            self._logs.replay(first, max(kept.batches))
            batch = first - 1
        else:
            batch = ledger.decided if target is None else max(target.batches)
            if batch < 0:
                self._logs.replay(0, 0)
            else:
                self._logs.delete_after(batch)
        for number in replaced(ledger, self._logs):
            if number <= batch:
                self._logs.put_back(number, ledger.logs[number])
                faults.reach("rewind.put-back")
        return batch, kept.id if kept is not None else None


def _settled(ledger: Ledger, checkpoint: int) -> CheckpointRecord:
    found = ledger.checkpoints.get(checkpoint)
    if found is None or not found.settled:
        known = sorted(number for number, each in ledger.checkpoints.items() if each.settled)
        kept = f"{known[0]} to {known[-1]}" if known else "none"
        raise LocationError("UNKNOWN_CHECKPOINT", checkpoint=checkpoint, kept=kept, known=known)
    return found


def out_of_step(ledger: Ledger, logs: QueryLogs) -> bool:
    """Return whether a driver that stood still has changed the query's logs since: a rewind without a target puts them right.

    It has written an ``offsets/N`` or ``commits/N`` that a rewind had deleted, or an ``offsets/N`` that its successor had
    written and recorded.
    """
    offsets, commits = logs.highest()
    if commits <= ledger.accounted:
        late = offsets > ledger.accounted + 1
    else:
        late = is_late_commit(ledger, commits, logs.repartitions(commits + 1))
    return late or bool(replaced(ledger, logs))


def replaced(ledger: Ledger, logs: QueryLogs) -> list[int]:
    """Return the micro-batches whose ``offsets/`` file a driver that stood still wrote late, over the recorded one."""
    return [
        number for number, text in ledger.logs.items() if number in ledger.batches and logs.is_replaced(number, text)
    ]


def output_ranges(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[int | None, int]]:
    """Return the output of the checkpoints behind an earlier one."""
    known = _furthest(before)
    return {name: (known.get(name), last) for name, last in sorted(_furthest(after).items())}


def _flat(output: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return what an output names; of several sinks with the sink's name: ``audit.version``."""
    for name, position in output.items():
        if isinstance(position, Mapping):
            yield from ((f"{name}.{own}", each) for own, each in position.items() if own != "partitions")
        else:
            yield name, position


def _furthest(outputs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for output in outputs:
        for name, position in _flat(output):
            if isinstance(position, int) and not isinstance(position, bool) and name != "partitions":
                found[name] = max(position, found.get(name, position))
    return found
