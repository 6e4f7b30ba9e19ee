"""What was found -> what to do. Pure: the ledger, Spark's logs and the store's answers go in, a decision comes out."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from transactional.barrier import offset_of_line, sources_digest
from transactional.errors import (
    AmbiguousOutcomeError,
    LocationError,
    OptionError,
    RetriableError,
    RewindRequiredError,
)
from transactional.ledger import BatchRecord, CheckpointRecord, Ledger, PartRecord, RunRecord
from transactional.sink import HandleState, Outcome
from transactional.versions import check_version

__all__ = [
    "Claim",
    "Judgement",
    "SparkView",
    "check_account",
    "check_place",
    "check_prefix",
    "check_recorded",
    "check_restored",
    "check_schedule",
    "check_sources",
    "committed_behind",
    "committed_undecided",
    "judge_checkpoint",
    "judge_prepared",
    "lost_batches",
    "other_sources",
    "out_of_order",
    "replaced_since_planned",
    "topics_of",
    "unrecorded_repartitions",
    "whose_run",
]

WAY_OUT_ADOPT = (
    "If the location was moved or Spark's logs were changed on purpose, stop every query on it and run "
    "`barrier adopt LOCATION --claim` (this place goes on as the query) or `--no-claim` (a copy, with "
    "an identity of its own)."
)
WAY_OUT_RESOLVE = "`barrier resolve LOCATION` lists what can be accepted, and with what consequence."


WAY_OUT_REWIND = (
    "Stop the query and run `barrier rewind LOCATION`: it goes back to where nothing is written twice, and the query that "
    "is started then writes the lost rows again."
)


@dataclass(frozen=True)
class SparkView:
    """What Spark's own logs say, read at planning and at commit.

    Parameters
    ----------
    queryId : str
        From ``<checkpointLocation>/metadata``.
    location : str
        Canonical checkpoint location.
    batch : int
        The micro-batch at work: the highest of ``offsets/``.
    committed : int
        The highest of ``commits/``; -1 where there is none.
    lines : Sequence[str]
        Source lines of ``offsets/<batch>``; empty where Spark has not begun it: the query has stopped.
    previous : Sequence[str] or None
        Those of ``offsets/<batch - 1>``.
    gaps : bool
        Whether numbers of batches may be left out: the versions of batch writes. Then `committed` says nothing.
    oldest : int
        The lowest of ``offsets/``: what is below was purged, and no rewind gets there.
    repartitions : Callable[[], Sequence[int]]
        The micro-batches directly before `batch`, in order, that Spark's repartition of a stopped query has added: they
        have the sources of the one before them, were written by no sink, and are committed.
    text : str
        The whole of ``offsets/<batch>``, for the journal; empty where there is none to keep.
    """

    queryId: str
    location: str
    batch: int
    committed: int
    lines: Sequence[str]
    previous: Sequence[str] | None
    gaps: bool = False
    oldest: int = 0
    repartitions: Callable[[], Sequence[int]] = tuple
    text: str = ""

    @property
    def sources(self) -> str:
        """Digest of the micro-batch's source lines."""
        return sources_digest(self.lines)


class Claim(enum.Enum):
    """What a planning driver does about the run."""

    TAKE = "the newest run is this driver's: take its token"
    FENCED = "another driver's run came after ours: record it and stop"
    NEW = "claim a new run"


def whose_run(ledger: Ledger, driver: str, settings: str) -> tuple[Claim, RunRecord | None]:
    """Whose the location is, told by the journal alone, never by a process's memory.

    Returns
    -------
    tuple[Claim, RunRecord or None]
        With TAKE the newest run; with FENCED our older run that has no `fenced` entry yet.
    """
    newest = ledger.newest_run
    if newest is None or newest.ended:
        return Claim.NEW, None
    if newest.driver == driver:
        return (Claim.TAKE, newest) if newest.settings == settings else (Claim.NEW, None)
    ours = [run for run in ledger.runs.values() if run.driver == driver and not run.ended]
    if ours:
        return Claim.FENCED, max(ours, key=lambda run: run.token)
    return Claim.NEW, None


def check_place(ledger: Ledger, view: SparkView) -> None:
    """The journal is tied to its place.

    Raises
    ------
    LocationError
        The location was copied or moved, or is another query's.
    """
    if ledger.query not in ("", view.queryId):
        raise LocationError(
            "LOCATION_OF_ANOTHER_QUERY",
            f"the journal at {ledger.location} is of query {ledger.query}, and Spark's metadata there says {view.queryId}: "
            f"metadata was deleted, or comes from another location. {WAY_OUT_ADOPT}",
            recorded=ledger.query,
            found=view.queryId,
        )
    if ledger.position and ledger.location != view.location:
        raise LocationError(
            "LOCATION_MOVED",
            f"the journal was written at {ledger.location}, and is read at {view.location}. {WAY_OUT_ADOPT}",
            recorded=ledger.location,
            found=view.location,
        )


def check_prefix(ledger: Ledger, prefix: str) -> None:
    """An adopted copy does not use the prefix of its original.

    Raises
    ------
    OptionError
    """
    if prefix in ledger.originals:
        raise OptionError(
            "PREFIX_OF_THE_ORIGINAL",
            f"this location is a copy (`adopt --no-claim`), and transactionalIdPrefix={prefix} is its original's: each would "
            "abort the other's transactions. Set another one, or leave it out",
            option="transactionalIdPrefix",
        )


def check_account(ledger: Ledger, view: SparkView) -> None:
    """The journal accounts for every micro-batch from its first to N - 1, and N has the recorded sources.

    Raises
    ------
    LocationError
        Half of the location was deleted, restored or rewound by hand.
    """
    if view.committed > view.batch - 1:
        raise LocationError(
            "SPARK_LOGS_INCONSISTENT",
            f"commits/{view.committed} exists beside the newest offsets/{view.batch}: another driver runs this query right now "
            "(then stop one of the two), or files of offsets/ were deleted. Restore them from a backup; without one, start the "
            "query on a new checkpoint location",
            committed=view.committed,
            batch=view.batch,
        )
    last = ledger.accounted
    last += len(unrecorded_repartitions(ledger, view))
    if view.gaps:
        check_version(ledger, view.batch)
        return
    if view.batch > last + 1 and last + 1 in ledger.voided:
        raise RewindRequiredError(
            "PREPARED_LOST",
            f"the prepared transactions of micro-batch {last + 1} were lost, and Spark has moved past it to {view.batch}. "
            f"{WAY_OUT_REWIND}",
            batches=sorted(ledger.voided),
        )
    if not ledger.position and view.batch > 0:
        raise LocationError(
            "NO_JOURNAL",
            f"Spark is at micro-batch {view.batch}, and there is no journal at {view.location}: the query had another sink "
            "so far, or barrier/ was deleted. Run `barrier adopt LOCATION --claim`: it says what that means "
            "for the rows, and lets this sink go on from here",
            batch=view.batch,
        )
    first = last if ledger.replay is None else ledger.replay
    if view.batch > last + 1 and view.committed <= last:
        raise LocationError(
            "SPARK_LOGS_AHEAD",
            f"Spark is at micro-batch {view.batch}, the journal accounts for micro-batches up to {last}, and no later one was "
            "committed: this query, or a driver that still ran, was at work while the location was rewound. Stop it and run "
            "`barrier rewind LOCATION`, which takes Spark's logs back to the journal; nothing is written twice",
            batch=view.batch,
            accounted=last,
        )
    if not first <= view.batch <= last + 1:
        raise LocationError(
            "BATCHES_NOT_ACCOUNTED",
            f"Spark is at micro-batch {view.batch}, the journal accounts for micro-batches up to {last}: part of the "
            f"checkpoint location was deleted, or restored from a backup; or another driver runs this query right now (then "
            f"stop one of the two). {WAY_OUT_ADOPT}",
            batch=view.batch,
            accounted=last,
        )
    check_sources(ledger, view)


def unrecorded_repartitions(ledger: Ledger, view: SparkView) -> list[int]:
    """Micro-batches that follow the journal's last, and that no sink has to account for; in order."""
    if view.batch - 1 <= ledger.accounted or ledger.accounted + 1 in ledger.voided:
        return []
    found = [batch for batch in view.repartitions() if batch > ledger.accounted]
    return found if found and found[0] == ledger.accounted + 1 else []


def check_restored(ledger: Ledger, view: SparkView, hooks: Collection[str]) -> None:
    """The first micro-batch after a restore takes all that the checkpoint holds.

    Parameters
    ----------
    hooks : Collection[str]
        Identifiers of the query's hooks.

    Raises
    ------
    LocationError
        ``STATE_NOT_RESTORED``
    """
    restored = ledger.restored
    if restored is None or any(batch > restored.batch for batch in ledger.batches):
        return
    checkpoint = ledger.checkpoints.get(restored.checkpoint)
    orphans = sorted(set(checkpoint.hooks if checkpoint else ()) - set(hooks))
    left = sorted(topics_of(view.previous or ()) - topics_of(view.lines))
    told = [f"the state of the hook {orphan}, which checkpointHooks does not name" for orphan in orphans]
    told += [f"the position in the topic {topic}, which no source of the query reads" for topic in left]
    if told:
        raise LocationError(
            "STATE_NOT_RESTORED",
            f"the savepoint that was restored here holds {'; '.join(told)}. Nothing was written. Name them again, or "
            "leave them behind: start the query with the option allowNonRestoredState=true",
            hooks=orphans,
            topics=left,
        )


def topics_of(lines: Sequence[str]) -> set[str]:
    """The topics whose positions our sources' lines hold."""
    return {topic for line in lines for topic in (offset_of_line(line) or {}).get("topics", {})}


def check_sources(ledger: Ledger, view: SparkView) -> None:
    """Spark's files of this micro-batch and of the one before are those that the journal recorded.

    Spark writes a file of ``offsets/`` by looking for it and renaming another over it: a driver that stood still in between
    replaces what its successor has written, and has committed.

    Raises
    ------
    RewindRequiredError
        A rewind puts back the file, of which the journal has a copy.
    LocationError
        The journal has none.
    """
    for batch, lines in ((view.batch, view.lines), (view.batch - 1, view.previous)):
        if lines:
            check_recorded(ledger, batch, lines)


def check_recorded(ledger: Ledger, batch: int, lines: Sequence[str]) -> None:
    """One file of ``offsets/`` is the one that the journal recorded, where it did; see `check_sources`.

    Parameters
    ----------
    ledger : Ledger
    batch : int
    lines : Sequence[str]
        Source lines of the file.

    Raises
    ------
    RewindRequiredError, LocationError
        ``BATCH_HAS_OTHER_SOURCES``
    """
    record = ledger.batches.get(batch)
    if record is None or record.sources == sources_digest(lines):
        return
    what = f"the one that the journal recorded (entry {record.entry})"
    if batch not in ledger.logs:
        raise other_sources(batch, what)
    raise RewindRequiredError(
        "BATCH_HAS_OTHER_SOURCES",
        f"{_replaced(batch, what)} Stop every driver of the query and run `barrier rewind LOCATION`: it puts the file "
        f"back, and nothing is lost or written twice. {WAY_OUT_ADOPT}",
        batches=[batch],
    )


def other_sources(batch: int, wanted: str) -> LocationError:
    """The error of an ``offsets/`` file that is not what was read: Spark would go on where it ends."""
    return LocationError("BATCH_HAS_OTHER_SOURCES", f"{_replaced(batch, wanted)} {WAY_OUT_ADOPT}", batch=batch)


def replaced_since_planned(batch: int) -> RetriableError:
    """The error of an ``offsets/`` file that is not the one by which a micro-batch's tasks were planned."""
    return RetriableError(
        "BATCH_HAS_OTHER_SOURCES",
        f"{_replaced(batch, 'the one that its tasks were planned by')} Nothing of the micro-batch is committed. Stop the other "
        "driver, and start the query again: it runs the micro-batch as the file says now",
        batch=batch,
    )


def _replaced(batch: int, wanted: str) -> str:
    return (
        f"offsets/{batch} is not {wanted}: Spark's logs were changed or rewound by hand, or a former driver that stood "
        "still has written the file late, over the present one."
    )


def check_schedule(view: SparkView, targets: Collection[str], lifetime: float | None) -> None:
    """The source's ``barrierInterval`` and ``minPauseBetweenCheckpoints`` fit this query.

    Parameters
    ----------
    targets : Collection[str]
        Ids of the topics that the sink writes to.
    lifetime : float or None
        Seconds that a prepared transaction lives at the sink's store.

    Raises
    ------
    OptionError
    """
    offsets = [offset_of_line(line) for line in view.lines]
    ours = [offset for offset in offsets if offset is not None]
    longest = max((max(each.get("interval", 0), each.get("minPause", 0)) for each in ours), default=0)
    if not longest:
        return
    if len(ours) < len(offsets):
        raise OptionError(
            "INTERVAL_WITH_ANOTHER_SOURCE",
            "barrierInterval (or minPauseBetweenCheckpoints) is set, and one of the query's sources is not barrier-kafka: it "
            "carries no barriers, so that every micro-batch closes a checkpoint. Read it with barrier-kafka, or leave the "
            "option out",
            option="barrierInterval",
        )
    if lifetime is not None and longest > lifetime * 500:
        raise OptionError(
            "INTERVAL_OVER_TIMEOUT",
            f"barrierInterval or minPauseBetweenCheckpoints is {longest} ms, and a prepared transaction lives {lifetime:g} s: "
            f"it has to be decided in half of that, {lifetime / 2:g} s. Shorten the one, or raise the sink's transaction "
            "timeout (kafka.transaction.timeout.ms)",
            option="barrierInterval",
            interval=longest,
            lifetime=lifetime,
        )
    topics = {identity: topic for each in ours for topic, identity in each.get("ids", {}).items()}
    own = sorted(topics[identity] for identity in targets if identity in topics)
    if own:
        raise OptionError(
            "READS_ITS_OUTPUT",
            f"barrierInterval (or minPauseBetweenCheckpoints) is set, and the query reads {', '.join(own)}, which it writes "
            "to: its own open transactions would hold it back. Leave the option out, so that every micro-batch is committed "
            "before the next is read",
            option="barrierInterval",
            topics=own,
        )


class Judgement(enum.Enum):
    """What to do with a decided checkpoint's handles."""

    COMMIT = "none is lost: commit all"
    REPAIR = "some are lost, others committed or of batches behind: commit the living, write the lost parts again"
    VOID = "some are lost, none committed, none behind: abort the living, and if that proves it, void the decision"


def judge_checkpoint(
    ledger: Ledger, checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]], batch: int
) -> Judgement:
    """Judge a decided checkpoint from its open parts' states.

    Parameters
    ----------
    states : Sequence[tuple[PartRecord, HandleState]]
        Of every open part.
    batch : int
        The micro-batch that Spark is about to run; what lies behind it is not written again.

    Raises
    ------
    AmbiguousOutcomeError
        A handle's outcome can't be told.
    RewindRequiredError
        Lost parts belong to micro-batches that Spark has moved past.
    """
    parts = ledger.parts_of(checkpoint)
    for part, state in states:
        if state.outcome is Outcome.UNKNOWN:
            raise AmbiguousOutcomeError(
                "OUTCOME_UNKNOWN",
                f"nobody can tell whether the transaction of micro-batch {part.batch}, partition {part.partition} "
                f"({part.rows} rows) of checkpoint {checkpoint.id} was committed: {state.evidence}. {WAY_OUT_RESOLVE}",
                checkpoint=checkpoint.id,
                batch=part.batch,
                partition=part.partition,
                rows=part.rows,
                handle=dict(part.handles[-1]),
                evidence=state.evidence,
            )
    lost = lost_batches(ledger, checkpoint, states)
    if not lost:
        return Judgement.COMMIT
    committed = any(state.outcome is Outcome.COMMITTED for _, state in states)
    committed = committed or any({"committed", "accepted"} & {*part.verdicts} for part in parts)
    # Spark has moved past the others: where nothing of them is lost they need no void
    behind = min(checkpoint.batches) < batch
    repairable = committed or (behind and min(lost) >= batch)
    rewritten = lost if repairable else set(checkpoint.batches)
    if min(rewritten) < batch:
        disordered = committed_behind(ledger, checkpoint, states)
        raise RewindRequiredError(
            "LOST_BEHIND",
            f"transactions of micro-batches {sorted(lost)} (checkpoint {checkpoint.id}) were lost, "
            f"and Spark is at micro-batch {batch}: micro-batches {sorted(rewritten)} have to run again. {WAY_OUT_REWIND}"
            + (f" {out_of_order(min(lost), disordered)}" if disordered else ""),
            batches=sorted(rewritten),
            checkpoint=checkpoint.id,
        )
    return Judgement.REPAIR if repairable else Judgement.VOID


def committed_undecided(part: PartRecord, what: str, first: str = "") -> AmbiguousOutcomeError:
    """Make the error of a transaction that was committed without a decision; `what` would write its rows again.

    `first` is what comes before `barrier resolve`: that lists prepared transactions only while the query is rewound.
    """
    return AmbiguousOutcomeError(
        "COMMITTED_UNDECIDED",
        f"the transaction of micro-batch {part.batch}, partition {part.partition} ({part.rows} rows) "
        f"was committed by somebody else: no checkpoint has decided it, and {what} would write its rows again. "
        f"{first}{WAY_OUT_RESOLVE}",
        batch=part.batch,
        partition=part.partition,
    )


def lost_batches(
    ledger: Ledger, checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]]
) -> set[int]:
    """Micro-batches of a decided checkpoint of which parts are lost, by the store's answers or by an earlier verdict."""
    lost = {part.batch for part, state in states if state.outcome is Outcome.LOST}
    return lost | {part.batch for part in ledger.parts_of(checkpoint) if part.lost}


def committed_behind(
    ledger: Ledger, checkpoint: CheckpointRecord, states: Sequence[tuple[PartRecord, HandleState]]
) -> list[int]:
    """Micro-batches of a decided checkpoint that are committed, in part or whole, behind the first lost one.

    Commits go out in order, so there are none unless an older version, or another tool, has committed them.
    """
    committed = {part.batch for part, state in states if state.outcome is Outcome.COMMITTED}
    committed |= {part.batch for part in ledger.parts_of(checkpoint) if part.committed}
    gap = min(lost_batches(ledger, checkpoint, states), default=None)
    return sorted(batch for batch in committed if gap is not None and batch > gap)


def out_of_order(gap: int, batches: Sequence[int]) -> str:
    """What it means that micro-batches behind the first lost one are committed, in words."""
    return (
        f"Micro-batches {list(batches)} were committed already, before the lost rows of micro-batch {gap}: every row is "
        "still written exactly once, but the rows that are written again come after theirs. A reader that keeps the last "
        "value of a key keeps an older one if both have rows of that key: compare these keys with the input."
    )


def judge_prepared(record: BatchRecord, states: Sequence[HandleState], view: SparkView) -> bool:
    """Whether a prepared, undecided micro-batch keeps its handles; False: write it anew.

    Raises
    ------
    AmbiguousOutcomeError
        One was committed, by nobody's decision: to write it anew would double its rows.
    RewindRequiredError
        Some are gone and Spark has ``commits/<batch>``.
    """
    for part, state in zip([part for part in record.parts if part.handles], states, strict=True):
        if state.outcome is Outcome.COMMITTED:
            rewind = "Run `barrier rewind LOCATION`, which stops at it, too; then "
            raise committed_undecided(part, "writing the micro-batch again", rewind)
    if all(state.ready for state in states):
        return True
    if record.batch <= view.committed:
        raise RewindRequiredError(
            "PREPARED_LOST",
            f"prepared transactions of micro-batch {record.batch} are gone or too old, and Spark has moved past it. Nothing "
            f"of it was committed. {WAY_OUT_REWIND}",
            batches=[record.batch],
        )
    return False
