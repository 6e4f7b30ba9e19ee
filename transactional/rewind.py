"""Rewinds: a stopped query goes back to an earlier checkpoint, at the same location. The durable steps, in order:

R1 choose the target, check that the query can go back to it and that the location is not an older copy
R2 journal `rewind begun`, which ends every run (a process that resumes the rewind journals it again)
R3 settle or void every decision
R4 abort everything that is prepared, and sweep
R5 restore the sink's store, if the user requested it
R6 roll back the query's logs, from the highest micro-batch down
R7 journal `rewind done`

Between R2 and R7, the rewind owns the location, and every attempt to start the query fails. Every step can be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from transactional import entries, faults
from transactional.comparison import compare_histories
from transactional.errors import (
    FencedError,
    LocationError,
    PutBackError,
    StoreError,
    StoreUnreachableError,
    SupersededError,
)
from transactional.journal import Journal
from transactional.ledger import CheckpointRecord, Ledger, Rewind
from transactional.ownership import Judge, must_be_at, must_own, rewinding
from transactional.recovery import committed_undecided, is_late_commit
from transactional.settlement import Settlement
from transactional.sink import Cutoff, TwoPhaseCommitSink, restorable, routes_of

log = logging.getLogger(__name__)


class NothingToRewindError(LocationError):
    """Nothing is to be rewound: no transaction is open, and no rewind has begun."""


class QueryLogs(Protocol):
    """The query's own logs, as a rewind reads and changes them. Every call can be repeated."""

    def highest(self) -> tuple[int, int]:
        """Return the highest micro-batch in ``offsets/`` and the highest one in ``commits/``; -1 for an empty folder."""

    def repartitions(self, before: int) -> Sequence[int]:
        """Return the micro-batches directly before `before` that Spark added when it repartitioned the state."""

    def check_can_go_back(self, batch: int) -> None:
        """Raise LocationError if the query can no longer continue after this micro-batch."""

    def delete_after(self, batch: int) -> None:
        """Delete all later micro-batches from the logs, so that `batch` is the last one."""

    def replay(self, first: int, last: int) -> None:
        """Make the query run the micro-batches `first` to `last` again with the same offsets, and delete all later ones."""

    def is_replaced(self, batch: int, text: str) -> bool:
        """Return whether ``offsets/<batch>`` exists and its source lines differ from the recorded `text`."""

    def put_back(self, batch: int, text: str) -> None:
        """Replace the content of ``offsets/<batch>`` with the recorded `text`."""


@dataclass(frozen=True)
class Preview:
    """The effects that a rewind would have."""

    # The target that the user has chosen. If None, the rewind finds the newest point from which the query can continue without
    # writing a row twice.
    checkpoint: int | None
    # The micro-batch after which the query would continue. Without a named target, the rewind may find a later one.
    batch: int
    rewritten: Sequence[int]  # The micro-batches that may run again.
    # The checkpoints whose rows would be written again, although the rows are committed or may be committed.
    emitted: Sequence[CheckpointRecord]
    restored: CheckpointRecord | None  # The record of the named target.


class Rewinder:
    """The rewind of one stopped query. Call `preview` and `begin`, or `again` to resume a rewind; then call `finish`.

    Parameters
    ----------
    journal : Journal
        The query's journal, already loaded.
    sink : TwoPhaseCommitSink
    logs : QueryLogs
    queryId, prefix : str
        The query's id and the value of its option ``transactionalIdPrefix``; see `TransactionContext`.
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
        """Step R1: check that the query can go back to a checkpoint; return what the rewind would do, and change nothing.

        Parameters
        ----------
        checkpoint : int or None
            The target. None means the newest point from which the query can continue without writing a row twice.

        Raises
        ------
        NothingToRewindError
            No target is named, and everything is committed.
        LocationError
            The journal has no such settled checkpoint, or the query's logs no longer reach back to the target.
        PutBackError
            The location is an older copy: the store has later checkpoints of the query than the query's journal.
        FencedError
            Another rewind has begun and has not finished.
        """
        ledger = self._journal.ledger
        if ledger.rewinding is not None:
            raise rewinding(ledger)
        target = None if checkpoint is None else _settled(ledger, checkpoint)
        batch = max(target.batches) if target is not None else self._last_whole(ledger)
        self._logs.check_can_go_back(batch)
        self._must_be_newest()
        later = [c for c in ledger.checkpoints.values() if target is not None and c.id > target.id]
        emitted = [c for c in later if c.rows or not c.settled]
        return Preview(checkpoint, batch, range(batch + 1, ledger.accounted + 1), emitted, target)

    def _must_be_newest(self) -> None:
        """Raise if the location is an older copy, or if another process has written to the journal in the meantime."""
        position, older = self._journal.ledger.position, self.older_copy()
        if older is not None:
            raise older
        must_be_at(position)(self._journal.ledger)

    def older_copy(self) -> PutBackError | None:
        """If the location is an older copy, return the error for it; otherwise None.

        An older copy may list transactions as open that ended long ago, so a rewind of this copy could never finish.
        If a store is gone, nothing is compared. If the store is the older copy, this is only logged, because the rewind
        may be the remedy.

        Raises
        ------
        StoreUnreachableError
            The store does not answer.
        """
        run = self._journal.ledger.newest_run
        if run is None or not all(self._sink.isThere(route) for route in routes_of(self._sink)):
            return None
        try:
            compare_histories(self._journal, self._sink, self._query_id, run, rewind=True)
        except PutBackError as older:
            return older
        except StoreUnreachableError:
            raise
        except StoreError as problem:
            log.info("the rewind continues, although the store differs from the journal: %s", problem)
        return None

    def _last_whole(self, ledger: Ledger) -> int:
        """Return the earliest micro-batch after which the query may have to continue, if the user named no target.

        Raise NothingToRewindError if there is nothing to rewind.
        """
        unsettled = ledger.unsettled()
        if not (unsettled or ledger.undecided() or ledger.voided or out_of_step(ledger, self._logs)):
            reason = f"everything up to micro-batch {ledger.accounted} is committed"
            raise NothingToRewindError("NOTHING_TO_REWIND", reason=reason, accounted=ledger.accounted)
        firsts = [*(min(c.batches) for c in unsettled), *ledger.voided]
        firsts += [ledger.replay] if ledger.replay is not None else []
        return min([ledger.decided, *(first - 1 for first in firsts)])

    def begin(self, preview: Preview, request: Mapping[str, Any]) -> int:
        """R2: journal `rewind begun`; from then on, only the rewind owns the location. Return the rewind's token."""
        position = self._journal.ledger.position

        fact = entries.RewindBegun(checkpoint=preview.checkpoint, request=request)
        token = self._journal.append(fact, must_be_at(position)).number
        faults.reach("rewind.begun")
        return token

    def again(self, request: Mapping[str, Any]) -> int:
        """R2: journal `rewind begun` again, to resume the rewind of a process that was killed. The newest such entry counts.

        Otherwise a late request of the killed process could still journal `rewind done` while this process is rewinding.
        """
        self._must_be_newest()
        begun = self.begun()
        return self.begin(Preview(begun.checkpoint, -1, [], [], None), {**begun.request, **request})

    def begun(self) -> Rewind:
        """Return the rewind that has begun and has not finished. Raise NothingToRewindError if there is none."""
        begun = self._journal.ledger.rewinding
        if begun is None:
            raise NothingToRewindError("NOTHING_TO_REWIND", reason="no rewind is in progress here")
        return begun

    def finish(self) -> int:
        """Do R3 to R7; return the micro-batch after which the query continues. Call `begin` or `again` first.

        Raise ``LOCATION_BUSY`` if another process has resumed or finished the rewind while this process was paused.
        """
        try:
            return self._finish(self.begun())
        except SupersededError:
            raise FencedError("LOCATION_BUSY", reason="another process has finished this rewind") from None

    def _finish(self, rewind: Rewind) -> int:
        own = must_own(rewind.token)
        self._leave_nothing_open(rewind.token)
        position = self._journal.ledger.position
        target = self._journal.ledger.checkpoints[rewind.checkpoint] if rewind.checkpoint is not None else None
        if target is not None and rewind.request.get("restoreTables"):
            # R5: roll the store back.
            self._must_still_own(own, position)
            restorable(self._sink).restoreOutput(target.output, rewind.token)
            faults.reach("rewind.restored")
        # R6: roll Spark's logs back, from the highest micro-batch down.
        self._must_still_own(own, position)
        batch, keep = self._rewrite_logs(target)
        faults.reach("rewind.deleted")
        self._must_still_own(own, position)
        self._rewrite_logs(target)  # again, because a query that was started in the meantime may have written offsets
        done = entries.RewindDone(begun=rewind.token, batch=batch, keep=keep)
        # R7: write "rewind done". From here on, entries about later micro-batches are void.
        self._journal.append(done, own)
        return batch

    def _must_still_own(self, own: Judge, position: int) -> None:
        """Raise if another process has resumed the rewind, or has written to the journal since R4."""
        ledger = self._journal.load()
        own(ledger)
        must_be_at(position)(ledger)

    def _leave_nothing_open(self, token: int) -> None:
        """Do R3 and R4, so that no transaction of the query is open."""
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
            raise committed_undecided(committed, "a rewind")
        kept = [part.handles[-1] for c in ledger.unsettled() for part in ledger.parts_of(c) if part.open]
        self._sink.sweep(kept, Cutoff(ledger.identity(self._query_id), token, 0))

    def _kept(self) -> CheckpointRecord | None:
        """Return the decided checkpoint whose micro-batches have to run again with the same offsets; None if there is none.

        The checkpoint has lost parts, or an earlier rewind has kept it and some of its micro-batches have not run again yet.
        """
        ledger = self._journal.ledger
        unsettled = ledger.unsettled()
        if unsettled or ledger.replay is None:
            return unsettled[-1] if unsettled else None
        return ledger.checkpoints[ledger.batches[ledger.replay].checkpoint or 0]

    def _rewrite_logs(self, target: CheckpointRecord | None) -> tuple[int, int | None]:
        """R6: roll back the query's logs.

        Return the micro-batch after which the query continues, and the id of the checkpoint that runs again, or None.
        """
        ledger = self._journal.ledger
        kept = self._kept() if target is None else None
        if kept is not None:  # from the first micro-batch with lost parts, all run again with the same offsets
            again = [part.batch for part in ledger.parts_of(kept) if part.lost]
            # After an earlier rewind, the query may not have reached its first planned micro-batch yet. So start there.
            again += [ledger.replay] if ledger.replay is not None else []
            if not again:  # R3 has left lost parts, and an operator has accepted the last of them since
                raise LocationError("LOCATION_BUSY", reason="another process has written to its journal")
            first = min(again)
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
    """Return whether the query's logs contradict the journal. A rewind without a target corrects the logs.

    Only a driver that was paused can cause a contradiction. When that driver resumes, it may write an ``offsets/N`` or
    ``commits/N`` that a rewind has deleted. The driver may also replace an ``offsets/N`` that its successor has written
    and recorded.
    """
    offsets, commits = logs.highest()
    if commits <= ledger.accounted:
        late = offsets > ledger.accounted + 1
    else:
        late = is_late_commit(ledger, commits, logs.repartitions(commits + 1))
    return late or bool(replaced(ledger, logs))


def replaced(ledger: Ledger, logs: QueryLogs) -> list[int]:
    """Return the micro-batches whose ``offsets/N`` differs from the journal: a driver overwrote the file after a pause."""
    return [
        number for number, text in ledger.logs.items() if number in ledger.batches and logs.is_replaced(number, text)
    ]


def output_ranges(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[int | None, int]]:
    """Return the range of positions that later checkpoints have written, for each name in the outputs (such as ``version``).

    Parameters
    ----------
    before : Sequence[Mapping[str, Any]]
        The outputs of the earlier checkpoints, as `ReportsOutput.output` returned them.
    after : Sequence[Mapping[str, Any]]
        The outputs of the later checkpoints.

    Returns
    -------
    dict[str, tuple[int or None, int]]
        The highest position in `before` (None if no earlier output has the name), and the highest position in `after`.
    """
    known = _furthest(before)
    return {name: (known.get(name), last) for name, last in sorted(_furthest(after).items())}


def _flat(output: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and positions in an output. For combined sinks, a name begins with the sink's name: ``audit.version``."""
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
