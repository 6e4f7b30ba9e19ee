"""The fold over the journal: all that the coordinator knows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from transactional.checkpoint import CheckpointFailureReason, ClosingReason, ExpectedPart
from transactional.digest import digest_of_all
from transactional.errors import JournalError
from transactional.metadata import Entry, EntryKind, canonical

__all__ = [
    "BatchRecord",
    "CheckpointRecord",
    "Declined",
    "FailureRecord",
    "Ledger",
    "Moved",
    "Origin",
    "PartRecord",
    "RestartRecord",
    "Restoring",
    "Rewind",
    "RunRecord",
    "Written",
]

KEPT_BATCHES = 150  # Spark keeps 100 micro-batches by default; only the last can be replayed
KEPT_FAILURES = 50  # for people
KEPT_RESTARTS = 50  # for people
KEPT_RUNS = 50  # ended ones; enough to tell a fenced driver by which run


@dataclass
class RunRecord:
    """One driver's claim on the location.

    Attributes
    ----------
    lifetime : float or None
        Seconds that its prepared transactions live at the store; None for ever.
    process : dict[str, Any]
        The driver's process, as the adapter to Spark tells one from another.
    setup : dict[str, Any]
        Of the newest run only: what a command line needs to build the sink (class, options without secrets, schema).
    seen : dict[str, Any] or None
        What the store held of the query when it began: `TwoPhaseCommitSink.checkHistory`. None in an older format.
    binding : bool
        What the store holds beyond the journal is not accounted for. False since an operator has accepted it.
    marks : list[dict[str, Any]]
        Former ones: two processes of a driver can take the prefix, and record it in the other order.
    restored : int or None
        The checkpoint whose states its hooks got back; 0 where there was none, None as long as they were not asked.
    """

    token: int
    driver: str
    settings: str
    sink: str
    location: str
    prefix: str
    identity: dict[str, str]
    mark: dict[str, Any] | None = None
    ended: str | None = None
    lifetime: float | None = None
    process: dict[str, Any] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)
    restored: int | None = None
    seen: dict[str, Any] | None = None
    binding: bool = True
    marks: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PartRecord:
    """A prepared part: its handles (the original, then repairs) and what was judged of each.

    `verdicts[i]` belongs to `handles[i]`: ``committed``, ``lost``, None while it is open, or ``accepted`` if an operator has
    accepted that its rows may be missing.
    """

    batch: int
    partition: int
    rows: int
    bytes: int
    digest: str
    handles: list[dict[str, Any]]
    verdicts: list[str | None]
    free: bool = False

    @property
    def open(self) -> bool:
        """Its last handle is neither known to be committed nor known to be lost."""
        return bool(self.handles) and self.verdicts[-1] is None

    @property
    def lost(self) -> bool:
        """Its last handle was judged lost: a repair is due."""
        return bool(self.handles) and self.verdicts[-1] == "lost"

    @property
    def committed(self) -> bool:
        """Its last handle was judged committed, or counts as such."""
        return bool(self.handles) and self.verdicts[-1] in ("committed", "accepted")

    @property
    def accepted(self) -> bool:
        """An operator has accepted that its rows may be missing: it counts as committed."""
        return bool(self.handles) and self.verdicts[-1] == "accepted"

    def copy(self) -> PartRecord:
        """Return an independent record; its handles, which nothing changes, are shared."""
        part = copy(self)
        part.handles, part.verdicts = list(self.handles), list(self.verdicts)
        return part

    def expected(self) -> ExpectedPart:
        """What a repair has to equal."""
        return ExpectedPart(self.partition, self.rows, self.bytes, self.digest, self.free)


@dataclass(frozen=True)
class Written:
    """What a batch write has written under its version; kept when its parts are forgotten.

    Parameters
    ----------
    rows : int
    digest : str
        Of all its rows, however they were cut into parts; empty if it is unknown.
    frame : str
        Tells the transactions of this write from those of another that was planned under the same version.
    """

    rows: int
    digest: str
    frame: str

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Any]]) -> Written:
        """Sum up parts as they stand in the journal: `Part.to_json`."""
        ordered = sorted((dict(part) for part in parts), key=lambda part: int(part["partition"]))
        frame = hashlib.sha256(canonical(ordered).encode()).hexdigest()[:16]
        return cls(sum(p["rows"] for p in ordered), digest_of_all(p["digest"] for p in ordered), frame)


@dataclass
class BatchRecord:
    """A micro-batch whose handles the journal holds. `checkpoint` is None while it is prepared only.

    Attributes
    ----------
    written : Written or None
        Of a batch write: what its version holds. None if nobody knows: an earlier format did not keep it, or an operator
        has accepted a difference.
    """

    batch: int
    sources: str
    writers: int
    entry: int
    run: int
    parts: list[PartRecord]
    checkpoint: int | None = None
    time: int = 0
    written: Written | None = None


@dataclass
class CheckpointRecord:
    """A decided checkpoint. Times are milliseconds since the epoch.

    Attributes
    ----------
    time : int
        Of the decision.
    barrier : int or None
        When the source made the barrier that closed it; None where no barrier did.
    began : int
        When its last micro-batch was acknowledged by all its tasks.
    settled_at : int or None
        When all its handles were known to be committed.
    rows, bytes, handles : int
    reason : str
        Name of the `ClosingReason`; empty where an older format did not keep it.
    hooks : dict[str, str]
        States of the checkpoint's hooks, by their identifiers, in base64.
    output : dict[str, Any]
        Where its rows are, as its sink says.
    subsumed : list[int]
        Micro-batches whose own checkpoint had been declined.
    """

    id: int
    batches: list[int]
    time: int
    rows: int
    settled: bool = False
    barrier: int | None = None
    began: int = 0
    settled_at: int | None = None
    bytes: int = 0
    handles: int = 0
    reason: str = ""
    hooks: dict[str, str] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)
    subsumed: list[int] = field(default_factory=list)


@dataclass
class Declined:
    """A checkpoint that could not be decided, and whose micro-batch waits for the next one."""

    batch: int
    time: int
    reason: str
    detail: str


@dataclass
class FailureRecord:
    """A checkpoint that failed, for people: aborted before its decision, void after it, or declined."""

    entry: int
    time: int
    reason: str
    batches: list[int]
    detail: str = ""


@dataclass
class RestartRecord:
    """Why whoever keeps the query up started it again.

    Attributes
    ----------
    entry : int
    time : int
        Milliseconds since the epoch.
    by : str
        ``supervise`` or ``barrier run``.
    number : int
        How many restarts of its there were, with this one.
    delay : float
        Seconds that it waits.
    condition : str
        Of the error that the query failed with; empty where it was none of ours.
    reason : str
        The error, cut short.
    rewound : bool
        Whether the query was rewound first.
    """

    entry: int
    time: int
    by: str
    number: int
    delay: float
    condition: str
    reason: str
    rewound: bool


@dataclass
class Rewind:
    """A rewind that was begun and is not done.

    Attributes
    ----------
    token : int
        Number of its entry; who holds it works on the location.
    checkpoint : int or None
        The target that a user has named; None to find the newest from which nothing is written twice.
    request : dict[str, Any]
        What was allowed with it, and who does it.
    """

    token: int
    checkpoint: int | None
    request: dict[str, Any]


@dataclass
class Moved:
    """The query goes on elsewhere, for ever: no entry follows this one.

    Attributes
    ----------
    entry : int
        Its number; the journal at the new place begins there.
    location : str
        The new place.
    savepoint : str
        Identifier of the savepoint that was restored there.
    checkpoint : int
        The checkpoint that the query went on from.
    """

    entry: int
    location: str
    savepoint: str
    checkpoint: int


@dataclass
class Origin:
    """The journal was begun by a restore.

    Attributes
    ----------
    savepoint : str
        Its identifier.
    origin : str
        The location that it was taken of.
    checkpoint, batch : int
        Which was restored, and its last micro-batch.
    position : int
        Of the journal when it was begun.
    claim : bool
        Whether the query goes on here, or this is a copy.
    """

    savepoint: str
    origin: str
    checkpoint: int
    batch: int
    position: int
    claim: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Origin:
        """Return what a snapshot holds; an older release kept ``allowed`` with it, which is an option of the query now."""
        return cls(**{key: each for key, each in value.items() if key != "allowed"})


@dataclass(frozen=True)
class Restoring:
    """A restore has begun this journal, and has not opened it: no query starts here.

    Parameters
    ----------
    savepoint, origin, checkpoint, claim
        As in `Origin`.
    location : str
        Where the query, or its copy, goes on: here.
    query : str
        Spark's id of the query here.
    partitions : int or None
        Shuffle partitions that the state gets; None to keep its own.
    forced : bool
        A claim that goes on though nobody can see what was committed after the savepoint: a `moved` that names this location
        is not its own.
    ledger : Mapping[str, Any]
        The journal as of the checkpoint, with which this one goes on when it is opened.
    """

    savepoint: str
    origin: str
    checkpoint: int
    claim: bool
    location: str
    query: str
    partitions: int | None
    forced: bool
    ledger: Mapping[str, Any]

    def opened(self, position: int) -> Ledger:
        """Return the ledger with which the journal goes on.

        Parameters
        ----------
        position : int
            At least 2. Of a claim: no number of the origin's journal is above it.
        """
        found = Ledger.from_json(self.ledger)
        batch = max(found.checkpoints[self.checkpoint].batches)
        found.restored = Origin(self.savepoint, self.origin, self.checkpoint, batch, position, self.claim)
        found.location, found.position = self.location, position
        found.accept_store()  # runs that came after the savepoint have left their marks there
        if self.claim:
            for run in found.runs.values():
                run.ended = run.ended or EntryKind.MOVED
        else:  # another query, which must never use a prefix of the first
            found.originals = sorted({*found.originals, *(run.prefix for run in found.runs.values())})
            found.runs, found.query, found.identity_suffix = {}, "", ""
        return found


@dataclass
class Ledger:
    """The state after `position` entries.

    Attributes
    ----------
    position : int
        Number of the last folded entry; 0 for an empty journal.
    base : int
        Batches up to it need no record (adopted, or trimmed); -1 at the beginning.
    query : str
        Spark's id of the query; empty before the first run, and after `adopt`.
    originals : list[str]
        Prefixes of the query of which this location is an adopted copy.
    origin : str
        Of batch writes: the streaming query whose batch ids are their versions.
    voided : list[int]
        Micro-batches whose record was voided, until they are recorded anew.
    retained : int
        Settled checkpoints that are kept.
    counts : dict[str, int]
        Since the beginning: triggered, completed, failed, declined, restored.
    declined : list[Declined]
        Since the last decision, one after the other.
    failures : list[FailureRecord]
        The last ones.
    rewinding : Rewind or None
    replay : int or None
        A rewind kept a part-committed checkpoint: Spark runs its micro-batches from this one again.
    request : int or None
        Entry of a wish to close a checkpoint that no decision has fulfilled yet.
    moved : Moved or None
    restored : Origin or None
        Where a savepoint was restored.
    restoring : Restoring or None
        A restore to this location is unfinished.
    stop : int or None
        Token of the run that was asked to stop; it counts only while that run is the newest.
    restarts : list[RestartRecord]
        The last ones.
    stamp : int
        The highest of a settled checkpoint: `TwoPhaseCommitSink.stamp`.
    logs : dict[int, str]
        Spark's ``offsets/<batch>``, whole, of the last two micro-batches and of the last decided one: a driver that stood
        still may replace the file, and Spark would go on where the late one ends.
    """

    position: int = 0
    base: int = -1
    location: str = ""
    identity_suffix: str = ""
    query: str = ""
    originals: list[str] = field(default_factory=list)
    origin: str = ""
    voided: list[int] = field(default_factory=list)
    retained: int = 100
    counts: dict[str, int] = field(default_factory=dict)
    declined: list[Declined] = field(default_factory=list)
    failures: list[FailureRecord] = field(default_factory=list)
    rewinding: Rewind | None = None
    replay: int | None = None
    request: int | None = None
    moved: Moved | None = None
    restored: Origin | None = None
    restoring: Restoring | None = None
    stop: int | None = None
    restarts: list[RestartRecord] = field(default_factory=list)
    runs: dict[int, RunRecord] = field(default_factory=dict)
    batches: dict[int, BatchRecord] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointRecord] = field(default_factory=dict)
    logs: dict[int, str] = field(default_factory=dict)
    stamp: int = 0

    # -- questions --------------------------------------------------------------------------------------------------

    @property
    def newest_run(self) -> RunRecord | None:
        """The run with the highest token."""
        return self.runs[max(self.runs)] if self.runs else None

    @property
    def stop_asked(self) -> bool:
        """The newest run was asked to stop, and has not done so; it may have failed meanwhile."""
        newest = self.newest_run
        return newest is not None and newest.token == self.stop and newest.ended != EntryKind.STOPPED

    @property
    def stopping(self) -> bool:
        """The newest run was asked to stop, and has not ended."""
        newest = self.newest_run
        return self.stop_asked and newest is not None and not newest.ended

    @property
    def accounted(self) -> int:
        """The last micro-batch that is decided or prepared."""
        return max([self.base, *self.batches])

    @property
    def decided(self) -> int:
        """The last micro-batch that is decided, and all before it."""
        return max([self.base, *(number for number, record in self.batches.items() if record.checkpoint is not None)])

    @property
    def completed(self) -> CheckpointRecord | None:
        """The newest checkpoint that is settled."""
        settled = [checkpoint for checkpoint in self.checkpoints.values() if checkpoint.settled]
        return max(settled, key=lambda checkpoint: checkpoint.id, default=None)

    def identity(self, query: str) -> str:
        """The query's identity in the names of its transactions; that of an adopted copy differs."""
        return query + self.identity_suffix

    @property
    def settled(self) -> int:
        """The last micro-batch up to which all are committed."""
        pending = [batch for checkpoint in self.unsettled() for batch in checkpoint.batches]
        pending += [record.batch for record in self.undecided()] + self.voided
        return min(pending) - 1 if pending else self.accounted

    def unsettled(self) -> list[CheckpointRecord]:
        """Decided checkpoints whose handles may not all be committed yet, oldest first."""
        return [c for _, c in sorted(self.checkpoints.items()) if not c.settled]

    def undecided(self) -> list[BatchRecord]:
        """Prepared micro-batches that no decision covers, in order."""
        return [b for _, b in sorted(self.batches.items()) if b.checkpoint is None]

    def parts_of(self, checkpoint: CheckpointRecord) -> list[PartRecord]:
        """Its parts, by batch and partition."""
        return [part for batch in checkpoint.batches for part in self.batches[batch].parts]

    def part(self, batch: int, partition: int) -> PartRecord:
        """One part; KeyError where there is none."""
        for part in self.batches[batch].parts:
            if part.partition == partition:
                return part
        raise KeyError(f"partition {partition} of micro-batch {batch}")

    def known_handles(self) -> list[dict[str, Any]]:
        """Last handles that a sweep must not touch: of prepared micro-batches and of unsettled decisions."""
        parts = [p for c in self.unsettled() for p in self.parts_of(c)]
        parts += [p for b in self.undecided() for p in b.parts]
        return [p.handles[-1] for p in parts if p.open]

    def copy(self) -> Ledger:
        """Return an independent ledger. Handles and other JSON of entries, which nothing changes, are shared."""
        ledger = copy(self)
        for name in ("originals", "voided", "declined", "failures", "restarts"):
            setattr(ledger, name, list(getattr(self, name)))
        ledger.counts, ledger.logs = dict(self.counts), dict(self.logs)
        ledger.runs = {token: copy(run) for token, run in self.runs.items()}
        ledger.checkpoints = {number: copy(checkpoint) for number, checkpoint in self.checkpoints.items()}
        ledger.batches = {number: copy(record) for number, record in self.batches.items()}
        for record in ledger.batches.values():
            record.parts = [part.copy() for part in record.parts]
        return ledger

    # -- the fold ---------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Fold the next entry.

        Raises
        ------
        JournalError
            The entry does not fit: the journal was changed from outside.
        """
        if entry.number != self.position + 1:
            raise JournalError(
                "JOURNAL_GAP",
                f"entry {entry.number} follows entry {self.position}: entries in between are missing. They were deleted, or "
                "the disk lost them: restore them from a backup. What they say, a decision perhaps, can't be known without "
                "them; then start the query on a new checkpoint location, from offsets that you have compared with its output",
                expected=self.position + 1,
                found=entry.number,
            )
        try:
            _FOLDS[entry.kind](self, entry, entry.body)
        except KeyError as error:
            raise JournalError(
                "JOURNAL_INCONSISTENT",
                f"entry {entry.number} ({entry.kind}) refers to {error}, which the journal does not hold",
                number=entry.number,
                kind=entry.kind,
            ) from error
        self.position = max(entry.number, self.position)

    def _run(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.runs[entry.number] = RunRecord(
            token=entry.number,
            driver=body["driver"],
            settings=body["settings"],
            sink=body["sink"],
            location=body["location"],
            prefix=body["prefix"],
            identity=dict(body["identity"]),
            lifetime=body["lifetime"],
            process=dict(body["process"]),
            setup=dict(body["setup"]),
            seen=body.get("seen"),  # not in older entries
        )
        for token, run in self.runs.items():
            if token != entry.number:
                run.setup = {}
        self.retained = body["retained"]
        if self.completed is not None:
            self._count("restored")
        self.location = body["location"]
        self.query = body["queryId"]
        for token in sorted(self.runs)[:-KEPT_RUNS]:
            del self.runs[token]

    def _mark(self, entry: Entry, body: Mapping[str, Any]) -> None:
        run = self.runs[body["run"]]
        run.marks = [*run.marks, *([] if run.mark is None else [run.mark])]
        run.mark = dict(body["mark"])

    def _record(self, entry: Entry, body: Mapping[str, Any], checkpoint: int | None) -> BatchRecord:
        parts = [
            PartRecord(
                batch=body["batch"],
                partition=p["partition"],
                rows=p["rows"],
                bytes=p["bytes"],
                digest=p["digest"],
                handles=[p["handle"]] if p["handle"] is not None else [],
                verdicts=[None] if p["handle"] is not None else [],
            )
            for p in body["parts"]
        ]
        self.voided = [number for number in self.voided if number != body["batch"]]
        self.logs.pop(body["batch"], None)
        if body.get("log"):
            self.logs[body["batch"]] = body["log"]
        if self.replay is not None and body["batch"] > self.accounted:
            self.replay = None
        written = Written.of(body["parts"]) if body["reason"] == ClosingReason.WRITE.name else None
        return BatchRecord(
            body["batch"],
            body["sources"],
            body["writers"],
            entry.number,
            body["run"],
            parts,
            checkpoint,
            entry.time,
            written,
        )

    def _prepared(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.batches[body["batch"]] = self._record(entry, body, None)
        self._keep_logs()

    def _keep_logs(self) -> None:
        last = self.accounted
        self.logs = {
            n: text for n, text in self.logs.items() if n in self.batches and n in (last, last - 1, self.decided)
        }

    def _decided(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.origin = body.get("origin") or self.origin
        covered = [b.batch for b in self.undecided()]
        if body["covers"] != covered:
            raise JournalError(
                "JOURNAL_INCONSISTENT",
                f"entry {entry.number} decides the prepared micro-batches {body['covers']}, the journal holds {covered}",
                number=entry.number,
            )
        for number in covered:
            self.batches[number].checkpoint = entry.number
        batches = list(covered)
        if body["batch"] not in covered:  # else: a prepared micro-batch closed later
            self.batches[body["batch"]] = self._record(entry, body, entry.number)
            batches.append(body["batch"])
        parts = [p for b in batches for p in self.batches[b].parts]
        settled = not any(p.handles for p in parts)
        self.checkpoints[entry.number] = CheckpointRecord(
            id=entry.number,
            batches=batches,
            time=entry.time,
            rows=sum(p.rows for p in parts),
            barrier=body["barrier"],
            began=body["began"],
            bytes=sum(p.bytes for p in parts),
            handles=sum(bool(p.handles) for p in parts),
            reason=body["reason"],
            hooks=dict(body["hooks"]),
            subsumed=[declined.batch for declined in self.declined if declined.batch != body["batch"]],
        )
        self._count("triggered")
        self.declined = []
        self.request = None
        if settled:
            self._complete(entry.number, entry.time)
        self._trim()
        self._keep_logs()

    def _complete(self, checkpoint: int, time: int) -> None:
        found = self.checkpoints[checkpoint]
        found.settled, found.settled_at = True, time
        for batch in found.batches:
            self.batches[batch].parts = []
        self._count("completed")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _failed(self, entry: Entry, reason: str, batches: list[int], detail: str = "") -> None:
        self._count("failed")
        self.failures = [*self.failures, FailureRecord(entry.number, entry.time, reason, batches, detail)][
            -KEPT_FAILURES:
        ]

    def accept_store(self) -> None:
        """An operator takes the store as it is: what it holds beyond the journal is not asked about."""
        for run in self.runs.values():
            run.binding = False

    def _settled(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.stamp = max(self.stamp, body.get("stamp", 0))
        self.checkpoints[body["checkpoint"]].output = dict(body["output"])
        self._complete(body["checkpoint"], entry.time)

    def _verdict(self, entry: Entry, body: Mapping[str, Any]) -> None:
        for judged in body["parts"]:
            part = self.part(judged["batch"], judged["partition"])
            part.verdicts[judged["handle"]] = judged["verdict"]

    def _repair(self, entry: Entry, body: Mapping[str, Any]) -> None:
        for repaired in body["parts"]:
            part = self.part(repaired["batch"], repaired["partition"])
            if repaired["handle"] is None:  # an accepted difference: its replay has no rows
                part.verdicts[-1] = "accepted"
                continue
            part.handles.append(repaired["handle"])
            part.verdicts.append(None)

    def _resolve(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.accept_store()
        part = self.part(body["batch"], body["partition"])
        part.verdicts[-1] = {"accept-loss": "accepted"}.get(body["decision"], "lost")
        if body["decision"] == "accept-difference":
            part.free = True
            self.batches[body["batch"]].written = None

    def _void(self, entry: Entry, body: Mapping[str, Any]) -> None:
        batches = self.checkpoints.pop(body["checkpoint"]).batches if "checkpoint" in body else [body["prepared"]]
        for batch in batches:
            del self.batches[batch]
            self.logs.pop(batch, None)
        self.voided += batches
        self._failed(entry, CheckpointFailureReason.VOID.name, batches)

    def _end_run(self, entry: Entry, body: Mapping[str, Any]) -> None:
        if body["run"] in self.runs:
            self.runs[body["run"]].ended = entry.kind
        if entry.kind == EntryKind.ABORTED:
            self._count("triggered")
            self._failed(entry, CheckpointFailureReason.ABORTED.name, [body["batch"]])

    def _declined(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self._count("triggered")
        self._count("declined")
        self.declined.append(Declined(body["batch"], entry.time, body["reason"], body["detail"]))
        failure = FailureRecord(entry.number, entry.time, body["reason"], [body["batch"]], body["detail"])
        self.failures = [*self.failures, failure][-KEPT_FAILURES:]

    def _restored(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.runs[body["run"]].restored = body["checkpoint"] or 0

    def _requested(self, entry: Entry, body: Mapping[str, Any]) -> None:
        if body.get("what") == "stop":
            self.stop = body["run"]
        else:
            self.request = entry.number

    def _restarted(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self._count("restarts")
        self.restarts = [*self.restarts, RestartRecord(entry.number, entry.time, **body)][-KEPT_RESTARTS:]

    def _rewind_begun(self, entry: Entry, body: Mapping[str, Any]) -> None:
        for run in self.runs.values():
            run.ended = run.ended or entry.kind
        request = {key: value for key, value in body.items() if key != "checkpoint"}
        self.rewinding = Rewind(entry.number, body["checkpoint"], request)

    def _rewind_done(self, entry: Entry, body: Mapping[str, Any]) -> None:
        """Entries about later micro-batches are void, but for those of a part-committed checkpoint that it keeps."""
        last, kept = body["batch"], body["keep"]
        self.rewinding = None
        self.batches = {n: b for n, b in self.batches.items() if n <= last or (kept and b.checkpoint == kept)}
        self.checkpoints = {k: c for k, c in self.checkpoints.items() if max(c.batches) <= last or k == kept}
        self.voided = [number for number in self.voided if number <= last]
        self.declined = []
        self.base = min(self.base, last)
        self.replay = last + 1 if kept else None
        self.logs = {number: text for number, text in self.logs.items() if number <= last}

    def _moved(self, entry: Entry, body: Mapping[str, Any]) -> None:
        for run in self.runs.values():
            run.ended = run.ended or entry.kind
        self.rewinding = None
        self.request = None
        self.moved = Moved(entry.number, body["location"], body["savepoint"], body["checkpoint"])

    def _begin_restore(self, entry: Entry, body: Mapping[str, Any]) -> None:
        if entry.number != 1:
            raise JournalError(
                "JOURNAL_INCONSISTENT",
                f"entry {entry.number} begins a restore in a journal in use",
                number=entry.number,
            )
        self.restoring = Restoring(**body)

    def _opened(self, entry: Entry, body: Mapping[str, Any]) -> None:
        if self.restoring is None:
            raise JournalError(
                "JOURNAL_INCONSISTENT", f"entry {entry.number} opens a journal that is open", number=entry.number
            )
        vars(self).update(vars(self.restoring.opened(body["position"])))

    def _adopt(self, entry: Entry, body: Mapping[str, Any]) -> None:
        for run in self.runs.values():
            run.ended = run.ended or EntryKind.ADOPT
        self.accept_store()
        self.location = body["location"]
        self.query = ""  # the next run says which it is
        if body["suffix"] != self.identity_suffix:
            self.originals = sorted({*self.originals, *(run.prefix for run in self.runs.values())})
        self.identity_suffix = body["suffix"]
        self.base = body["base"]
        self.logs = {}  # what stands in Spark's logs is accepted
        if body["drop"]:  # the unsettled entries are another location's, or about batches that Spark no longer has
            self.checkpoints = {k: c for k, c in self.checkpoints.items() if c.settled and max(c.batches) <= self.base}
            self.batches = {k: b for k, b in self.batches.items() if b.checkpoint in self.checkpoints}
            self.voided = []

    def _trim(self) -> None:
        """Forget what no recovery needs."""
        keep = max(self.batches) - KEPT_BATCHES
        if self.replay is not None:  # from there on they run again
            keep = min(keep, self.replay - 2)
        for number in [n for n, b in self.batches.items() if n <= keep]:
            record = self.batches[number]
            checkpoint = self.checkpoints.get(record.checkpoint or 0)
            if record.checkpoint is not None and (checkpoint is None or checkpoint.settled):
                self.base = max(self.base, number)
                del self.batches[number]
        for number in [k for k, c in sorted(self.checkpoints.items()) if c.settled][: -self.retained]:
            del self.checkpoints[number]

    # -- snapshots --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The whole state, for a snapshot."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ledger:
        """Inverse of `to_json`."""
        return cls(
            position=value["position"],
            base=value["base"],
            location=value["location"],
            identity_suffix=value["identity_suffix"],
            query=value["query"],
            originals=list(value["originals"]),
            origin=value["origin"],
            voided=list(value["voided"]),
            retained=value["retained"],
            counts=dict(value["counts"]),
            declined=[Declined(**v) for v in value["declined"]],
            failures=[FailureRecord(**v) for v in value["failures"]],
            rewinding=Rewind(**value["rewinding"]) if value["rewinding"] else None,
            replay=value["replay"],
            request=value["request"],
            moved=Moved(**value["moved"]) if value.get("moved") else None,
            restored=Origin.from_json(value["restored"]) if value.get("restored") else None,
            restoring=Restoring(**value["restoring"]) if value.get("restoring") else None,
            stop=value.get("stop"),  # not in older snapshots
            stamp=value.get("stamp", 0),
            restarts=[RestartRecord(**v) for v in value.get("restarts", ())],
            runs={int(k): RunRecord(**{"binding": False, **v}) for k, v in value["runs"].items()},  # not in older ones
            batches={
                int(k): BatchRecord(
                    **{
                        **v,
                        "parts": [PartRecord(**p) for p in v["parts"]],
                        "written": Written(**v["written"]) if v.get("written") else None,
                    }
                )
                for k, v in value["batches"].items()
            },
            checkpoints={int(k): CheckpointRecord(**v) for k, v in value["checkpoints"].items()},
            logs={int(k): v for k, v in value.get("logs", {}).items()},
        )


_FOLDS: dict[str, Callable[[Ledger, Entry, Mapping[str, Any]], None]] = {
    EntryKind.RUN: Ledger._run,
    EntryKind.MARK: Ledger._mark,
    EntryKind.PREPARED: Ledger._prepared,
    EntryKind.DECIDED: Ledger._decided,
    EntryKind.SETTLED: Ledger._settled,
    EntryKind.VERDICT: Ledger._verdict,
    EntryKind.REPAIR: Ledger._repair,
    EntryKind.VOID: Ledger._void,
    EntryKind.ABORTED: Ledger._end_run,
    EntryKind.FENCED: Ledger._end_run,
    EntryKind.RESOLVE: Ledger._resolve,
    EntryKind.ADOPT: Ledger._adopt,
    EntryKind.DECLINED: Ledger._declined,
    EntryKind.RESTORED: Ledger._restored,
    EntryKind.REQUEST: Ledger._requested,
    EntryKind.STOPPED: Ledger._end_run,
    EntryKind.RESTARTED: Ledger._restarted,
    EntryKind.REWIND_BEGUN: Ledger._rewind_begun,
    EntryKind.REWIND_DONE: Ledger._rewind_done,
    EntryKind.MOVED: Ledger._moved,
    EntryKind.RESTORING: Ledger._begin_restore,
    EntryKind.OPENED: Ledger._opened,
}
