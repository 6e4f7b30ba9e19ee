"""Pure functions that check, before a task starts, that the query's logs, its options and the journal fit together."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

from transactional.barrier import SourceLine, by_name, sources_digest
from transactional.errors import LocationError, OptionError, RetriableError, RewindRequiredError
from transactional.ledger import Ledger, RunRecord
from transactional.recovery.versions import check_version
from transactional.recovery.view import QueryView


class Claim(enum.Enum):
    """The ways in which the planning of a micro-batch can get a run."""

    TAKE = "the newest run belongs to this driver: continue it"
    FENCED = "another driver claimed a run after ours: journal `fenced` and stop"
    NEW = "claim a new run"


def whose_run(ledger: Ledger, driver: str, settings: str) -> tuple[Claim, RunRecord | None]:
    """Return how the planning of a micro-batch gets its run, and the run to continue or to fence (None for a new run).

    `driver` is the id of the planning driver, and `settings` is the digest of its settings.
    """
    newest = ledger.newest_run
    if newest is None or newest.ended:
        return Claim.NEW, None
    if newest.driver == driver:
        guarded = newest.mark is not None and not newest.overtaken
        return (Claim.TAKE, newest) if guarded and newest.settings == settings else (Claim.NEW, None)
    ours = [run for run in ledger.runs.values() if run.driver == driver and not run.ended]
    if ours:
        return Claim.FENCED, max(ours, key=lambda run: run.token)
    return Claim.NEW, None


def check_location(ledger: Ledger, view: QueryView) -> None:
    """Check that the journal belongs to this query and to this location."""
    if ledger.query not in ("", view.queryId):
        raise LocationError("LOCATION_MOVED", what="query", recorded=ledger.query, found=view.queryId)
    if ledger.position and ledger.location != view.location:
        raise LocationError("LOCATION_MOVED", what="location", recorded=ledger.location, found=view.location)


def check_prefix(ledger: Ledger, prefix: str) -> None:
    """Check that a copied query does not use the prefix of the original query."""
    if prefix in ledger.originals:
        raise OptionError("PREFIX_OF_THE_ORIGINAL", option="transactionalIdPrefix", prefix=prefix)


def check_account(ledger: Ledger, view: QueryView) -> None:
    """Check that the journal has every micro-batch before the current one, and that the query's source lines are unchanged."""
    added = unrecorded_repartitions(ledger, view)
    last, late = ledger.accounted + len(added), is_late_commit(ledger, view.committed, added)
    if view.committed > view.batch - 1 and not late:
        raise LocationError(
            "LOGS_INCONSISTENT",
            reason=f"commits/{view.committed} exists, but the newest file in offsets/ is {view.batch}",
            committed=view.committed,
            batch=view.batch,
        )
    if view.gaps:
        check_version(ledger, view.batch, view.compare)
        return
    if view.batch > last + 1 and last + 1 in ledger.voided:
        reason = f"the prepared transactions of micro-batch {last + 1} were lost, and the query is at micro-batch {view.batch}"
        raise RewindRequiredError("PREPARED_LOST", batches=sorted(ledger.voided), reason=reason)
    if not ledger.position and view.batch > 0:
        raise LocationError(
            "NO_JOURNAL",
            location=view.location,
            reason=f"the query is already at micro-batch {view.batch}, so it used another sink before, or barrier/ was deleted",
            batch=view.batch,
        )
    first = last if ledger.replay is None else ledger.replay
    if late or (view.batch > last + 1 and view.committed <= last):
        raise LocationError("LOGS_AHEAD", batch=view.batch, accounted=last)
    if not first <= view.batch <= last + 1:
        reason = f"the query is at micro-batch {view.batch}, but the journal ends at micro-batch {last}"
        raise LocationError("BATCHES_NOT_ACCOUNTED", reason=reason, batch=view.batch, accounted=last)
    check_sources(ledger, view)


def is_late_commit(ledger: Ledger, committed: int, added: Collection[int]) -> bool:
    """Return whether a paused driver wrote ``commits/<committed>`` after a rewind had deleted that micro-batch.

    `added` has the micro-batches that a repartition added.
    """
    return ledger.accounted < committed <= ledger.reached and committed not in added


def unrecorded_repartitions(ledger: Ledger, view: QueryView) -> list[int]:
    """Return the micro-batches that a repartition added after the journal's last one, in order. No sink wrote them."""
    if view.batch - 1 <= ledger.accounted or ledger.accounted + 1 in ledger.voided:
        return []
    found = [batch for batch in view.repartitions() if batch > ledger.accounted]
    return found if found and found[0] == ledger.accounted + 1 else []


def check_restored(ledger: Ledger, view: QueryView, hooks: Collection[str]) -> None:
    """Check that the first micro-batch after a restore uses all hook states and topic positions of the restored checkpoint."""
    restored = ledger.restored
    if restored is None or any(batch > restored.batch for batch in ledger.batches):
        return
    checkpoint = ledger.checkpoints.get(restored.checkpoint)
    orphans = sorted(set(checkpoint.hooks if checkpoint else ()) - set(hooks))
    left_topics = sorted(_topics(view.previous or ()) - _topics(view.lines))
    left = [f"the state of the hook {orphan}, which is not in checkpointHooks" for orphan in orphans]
    left += [f"the position in the topic {topic}, which no source of the query reads" for topic in left_topics]
    if left:
        raise LocationError("STATE_NOT_RESTORED", left="; ".join(left), hooks=orphans, topics=left_topics)


def _topics(lines: Sequence[SourceLine]) -> frozenset[str]:
    return frozenset().union(*(line.topics for line in lines))


def check_sources(ledger: Ledger, view: QueryView) -> None:
    """Check that the ``offsets/`` files of this micro-batch and the previous one are those that the journal recorded.

    To write such a file, Spark checks that the file does not exist, then renames a temporary file to its name. If a
    driver is paused between these two steps, it later replaces the file of its successor. The successor may already
    have committed the micro-batch.
    """
    for batch, lines in ((view.batch, view.lines), (view.batch - 1, view.previous)):
        if lines:
            check_recorded(ledger, batch, lines)


def check_recorded(ledger: Ledger, batch: int, lines: Sequence[SourceLine]) -> None:
    """If the journal has recorded ``offsets/<batch>``, check that the file is still the same; see `check_sources`."""
    record = ledger.batches.get(batch)
    if record is None or record.sources == sources_digest(lines):
        return
    if batch in ledger.logs:
        raise RewindRequiredError("OFFSETS_REPLACED", batch=batch, batches=[batch], entry=record.entry)
    reason = f"offsets/{batch} is not the file that the journal recorded (entry {record.entry})"
    raise LocationError("BATCHES_NOT_ACCOUNTED", reason=reason, batch=batch)


def replaced_since_planned(batch: int) -> RetriableError:
    """Return the error for an ``offsets/`` file that was replaced after the tasks of its micro-batch were planned."""
    reason = (
        f"offsets/{batch} is not the file from which the tasks of the micro-batch were planned: another driver has "
        "replaced it"
    )
    return RetriableError("CONCURRENT_COMMIT", reason=reason, batch=batch)


PLANNED = (
    ". A micro-batch was already planned with this option: rewind the query to the newest checkpoint. If there is no "
    "checkpoint, nothing was written: start the query at a new location"
)


def check_schedule(
    lines: Sequence[SourceLine],
    targets: Collection[str],
    lifetime: float | None,
    replaces: bool = False,
    planned: bool = True,
    query: str = "",
    previous: Sequence[SourceLine] | None = None,
) -> None:
    """Check that the query can use ``barrierInterval``, ``minPauseBetweenCheckpoints``, ``alignOn`` and ``allowReordering``.

    Parameters
    ----------
    lines : Sequence[SourceLine]
    targets : Collection[str]
        Ids of the topics that the sink writes to.
    lifetime : float or None
        The time for which the store keeps a prepared transaction, in seconds; None if the store keeps it forever.
    replaces : bool
        True if a row replaces the earlier row of its key.
    query : str
        If several sources follow barriers: the name that each of them must have in its cut. It is the id of this query, or
        its checkpoint location before the first start.
    previous : Sequence[SourceLine] or None
        The lines of the previous micro-batch. A copy of the query has a new id. A line contains this id only after the
        source's position has changed.
    planned : bool
        True if Spark has already planned the micro-batch. In that case, the message also says how to continue.
    """
    _stop_together(lines, previous or (), query)
    if replaces and any(line.is_reordered for line in lines):
        raise OptionError(
            "INVALID_OPTION",
            owner="barrier-kafka",
            option="allowReordering",
            value="true",
            expectation="false, because the sink replaces earlier rows of a key: without an order, an older row could "
            "replace a newer one. Also remove minPartitions and maxRecordsPerPartition" + (PLANNED if planned else ""),
        )
    longest = max((line.longest_wait for line in lines), default=0)
    if not longest:
        return
    reason = _why_no_interval(lines, targets, lifetime, longest)
    if reason:
        raise OptionError("INTERVAL_NOT_POSSIBLE", option="barrierInterval", interval=longest, reason=reason)


def _stop_together(lines: Sequence[SourceLine], previous: Sequence[SourceLine], query: str) -> None:
    """If a source of a query with several sources follows barriers, check that all do, and that all name this query.

    See `check_schedule`.
    """
    before = by_name(previous)
    queries = [None if line.cut is None else line.cut.get("query", "") for line in lines]
    own = [
        query if each and before.get(name) == line else each
        for (name, line), each in zip(by_name(lines).items(), queries, strict=True)
    ]
    agreed = all(each == query for each in own) or (len(lines) == 1 and queries[0] in (None, ""))
    if not agreed and any(each is not None for each in queries):
        raise OptionError("NOT_ALIGNED", streams=len(lines))


def _why_no_interval(
    lines: Sequence[SourceLine], targets: Collection[str], lifetime: float | None, longest: int
) -> str:
    """Return why checkpoints can't wait for barriers that are `longest` milliseconds apart; empty if they can."""
    if any(line.offset is None for line in lines):
        return "one of the query's sources does not support barriers, so every micro-batch closes a checkpoint"
    if lifetime is not None and longest > lifetime * 500:
        return (
            f"a prepared transaction times out after {lifetime:g} s, and must be decided within half of that, "
            f"{lifetime / 2:g} s. Raise the sink's transaction timeout, or shorten the interval"
        )
    topics = {identity: topic for line in lines for topic, identity in line.topic_ids.items()}
    own = sorted(topics[identity] for identity in targets if identity in topics)
    return f"it reads and writes {', '.join(own)}, so its own open transactions would block its reads" if own else ""
