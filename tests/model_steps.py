"""The moves of the journal model: the steps of every driver, and what the environment does.

The steps are those of `transactional.coordinator` (P1 to P9, C1 to C10, A1 to A3; S is `transactional.settlement`) and carry
their names. A crash is a session that makes no further step. What the environment does: the broker expires prepared
transactions (at most `expiries`), writer tasks fail, drivers start late, the query starts again in its driver while a
process of its former start still plans or commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model_engine import Interned
from tests.model_ledger import Entry, Ledger, Record, lost_parts, open_handles

__all__ = [
    "ABORTED",
    "COMMITTED",
    "GIVEN",
    "HURT",
    "LOST",
    "OPEN",
    "PREPARED",
    "PUT_BACK",
    "UNBOUND",
    "Judge",
    "Model",
    "Move",
    "Moves",
    "Scenario",
    "Session",
    "Shared",
    "ended",
]

PREPARED, COMMITTED, ABORTED = 1, 2, 3
GIVEN = 4  # committed, and a rewind was told to write it again
HURT = 5  # a part of it is gone: every look says lost, and the store still calls it open
OPEN = (PREPARED, HURT)
LOST = (ABORTED, HURT)

PUT_BACK = (-1,)
"""`Shared.copy` after the copy was put back."""

UNBOUND = "a handle is committed that the valid journal does not bind"
"""A violation."""


@dataclass(frozen=True)
class Scenario:
    """Bounds of one search."""

    drivers: str  # A letter for every start of the query; the same letter twice is a restart within one driver.
    parts: int = 2
    closes: tuple[bool, ...] = (True,)  # For every micro-batch whether it closes a checkpoint.
    expiries: int = 1
    hurts: bool = False  # What may expire may be hurt, too.
    ordered: bool = True  # Where the search starts, nothing is committed behind a micro-batch that was lost.
    fail: bool = False  # Writer tasks may fail, so that Spark aborts with or without messages.
    # When the query is started again in its driver, the Python process that planned or committed for it goes on.
    zombie: bool = False
    # A planning that takes its driver's run creates nothing, so what it sweeps by may be stale: no violation.
    tolerant: bool = False
    snapshots: int = 0  # Entries between snapshots; 0 for none.
    lone: bool = False  # No driver may end otherwise than well.
    # Where the search starts.
    journal: tuple[Entry, ...] = ()
    handles: tuple[tuple[int, int, int], ...] = ()
    committed: int = 0
    sent: int = 0  # Micro-batches in Spark's offsets/; 0 for all that have handles.
    target: int = 0  # The checkpoint that a rewind is told to go back to; 0 for none.
    restore: bool = False  # It takes the output back, too.
    lates: int = 0  # Creates that are refused, and may take place later.
    stops: int = 0  # Times that somebody asks the newest run to stop.
    living: bool = False  # Spark was not stopped when a rewind is begun: it goes on, and writes its logs.
    saved: int = 0  # The checkpoint of which there is a savepoint; 0 for none.
    copied: bool = False  # The location is copied, and the copy put back later; see `PutBackModel`.
    store_copied: bool = False  # The store is, and its copy put back; see `StoreBackModel`.
    disposes: bool = False  # Somebody may delete the savepoint at any moment.
    marks: bool = False  # The sink publishes marks: `MarksModel`.


class Session(NamedTuple):
    """One start of the query: where it stands, and what its processes know."""

    pc: str
    driver: str = ""
    known: int = 0
    batch: int = 0
    token: int = 0
    mode: str = ""
    handles: tuple[tuple[int, int], ...] = ()
    messages: bool = False
    todo: tuple[int, ...] = ()
    note: tuple[tuple[int, int, str], ...] = ()
    phase: str = "P"
    back: str = ""
    lost: bool = False
    memory: tuple[int, int] = (0, 0)
    stopped: bool = False
    spark: int = -1
    seen: int = -1  # at the store, by `PutBackModel`
    mark: tuple[Any, ...] = ()  # see `MarksModel`


class Shared(NamedTuple):
    """What all see: the journal (a node of the trie), the store, Spark's commit log; and the environment's budget."""

    node: int
    handles: tuple[tuple[int, int, int], ...]
    commits: int
    expiries: int
    snapshots: tuple[int, ...] = ()
    deleted: int = 0
    ghosts: tuple[int, ...] = ()
    offsets: int = 0
    lates: int = 0
    late: tuple[tuple[int, Entry], ...] = ()
    stops: int = 0
    there: tuple[int, int, int] = (0, 0, 0)  # the new location's node, offsets and commits
    theirs: tuple[int, ...] = ()  # handles that were made at the new location
    disposed: bool = False  # the savepoint is gone
    epoch: int = 0  # of the prefix; see `PutBackModel`
    copy: tuple[
        int, ...
    ] = ()  # of the location: node, offsets and commits; of the store: held, and the handles' states
    held: int = 0  # the newest checkpoint whose id the store has noted; see `StoreBackModel`
    marks: tuple[int, ...] = ()  # see `MarksModel`


Move = tuple[str, Session, Shared, str]
Moves = Iterator[Move]
Judge = Callable[[Ledger], bool]


class Model:
    """The moves of a scenario."""

    def __init__(self, scenario: Scenario, broken: str = "") -> None:
        self.scenario = scenario
        self.broken = broken  # One of `BREAKS`.
        self._nodes: list[tuple[int, Entry]] = [(-1, ("",))]
        self._children: dict[tuple[int, Entry], int] = {}
        self._ledgers = [Ledger()]
        self._sessions: Interned[Session] = Interned()
        self._shareds: Interned[Shared] = Interned()
        self._stepped: dict[tuple[int, int], list[tuple[str, int, int, str]]] = {}
        self._expired: dict[int, list[tuple[str, int]]] = {}

    # -- the journal ------------------------------------------------------------------------------------------------

    def child(self, node: int, entry: Entry) -> int:
        """The journal with one more entry."""
        found = self._children.get((node, entry))
        if found is None:
            found = self._children[node, entry] = len(self._nodes)
            self._nodes.append((node, entry))
            self._ledgers.append(self._ledgers[node].apply(entry))
        return found

    def ledger(self, node: int) -> Ledger:
        """The fold over a journal."""
        return self._ledgers[node]

    def entries(self, node: int) -> list[Entry]:
        """All entries of a journal."""
        found: list[Entry] = []
        while node:
            node, entry = self._nodes[node]
            found.append(entry)
        return found[::-1]

    def _replaced(self, node: int, number: int, entry: Entry) -> int:
        entries = self.entries(node)
        entries[number - 1] = entry
        after = 0
        for one in entries:
            after = self.child(after, one)
        return after

    def _append(self, s: Session, sh: Shared, entry: Entry, judge: Judge, then: Callable[[Session], Session]) -> Moves:
        """Exclusive create of the next number; number taken: fold and judge anew."""
        known = self.ledger(s.known)
        if not judge(known):
            yield self._raise(s, sh, f"{s.pc}: {entry[0]} is not allowed")
            return
        number = known.position + 1
        label = f"{s.pc}: create {number} {entry}"
        deleted = number <= sh.deleted and number not in sh.ghosts
        if number > self.ledger(sh.node).position:
            node = self.child(sh.node, entry)
            violation = self._check_owner(s, sh, entry) or self._check_entry(entry, sh)
            yield label, self._listing(then(s._replace(known=node))), self._created(sh, entry), violation
        elif self.broken == "rename":
            node = self._replaced(sh.node, number, entry)
            yield label, then(s._replace(known=self.child(s.known, entry))), sh._replace(node=node), ""
        elif deleted:
            after = then(s._replace(known=self.child(s.known, entry)))
            ghosts = tuple(sorted((*sh.ghosts, number)))
            yield label + ", deleted before", self._listing(after), sh._replace(ghosts=ghosts), ""
        elif self._unreadable(sh) or not judge(self.ledger(sh.node)):
            yield self._raise(s._replace(known=sh.node), sh, f"{s.pc}: {number} is taken, {entry[0]} no longer allowed")
        else:
            yield f"{s.pc}: {number} is taken, folded", s._replace(known=sh.node), sh, ""

    def _created(self, sh: Shared, entry: Entry) -> Shared:
        return sh._replace(node=self.child(sh.node, entry))

    def _check_owner(self, s: Session, sh: Shared, entry: Entry) -> str:
        """While the query is rewound only the rewind owns the location; a claim may come late."""
        rewinding = self.ledger(sh.node).rewinding
        allowed = rewinding is None or rewinding.token == s.token or entry[0] in ("run", "fenced", "begun")
        return "" if allowed else f"{entry[0]} of another while the query is rewound"

    def _listing(self, s: Session) -> Session:
        """After a create the journal is listed."""
        if not self.scenario.snapshots or self.broken == "no-list":
            return s
        return s._replace(pc="listing " + s.pc)

    def _listed(self, s: Session, sh: Shared) -> Moves:
        after = s._replace(pc=s.pc.removeprefix("listing "))
        if sh.snapshots and sh.snapshots[-1] >= self.ledger(s.known).position:
            yield self._raise(after, sh, f"{after.pc}: listed, a snapshot is at or above the number: fenced")
        else:
            yield f"{after.pc}: listed", after, sh, ""

    @staticmethod
    def _unreadable(sh: Shared) -> bool:
        return bool(sh.deleted and not sh.snapshots)

    def _fold_journal(self, s: Session, sh: Shared) -> Moves:
        """P9: snapshot, by exclusive create; then delete what two snapshots cover."""
        number = self.ledger(s.known).position
        if s.pc == "P9":
            snapshots = tuple(sorted({*sh.snapshots, number}))
            yield (
                f"P9: snapshot {number}",
                s._replace(pc="P8delete", todo=snapshots),
                sh._replace(snapshots=snapshots),
                "",
            )
            return
        after = self._tasks(s._replace(todo=()))
        left = tuple(n for n in sh.snapshots if n not in s.todo[:-2])
        if self.broken == "snapshot-deletes-newest":
            yield "P9: delete", after, sh._replace(snapshots=(), deleted=max(sh.deleted, s.todo[-1])), ""
        elif self.broken == "snapshot-deletes-own":
            yield "P9: delete", after, sh._replace(snapshots=left, deleted=max(sh.deleted, s.todo[-1])), ""
        elif len(s.todo) > 1:
            yield "P9: delete", after, sh._replace(snapshots=left, deleted=max(sh.deleted, s.todo[-2])), ""
        else:
            yield "P9", after, sh, ""

    # -- judges -----------------------------------------------------------------------------------------------------

    def _owns(self, s: Session, ledger: Ledger) -> bool:
        if ledger.rewinding is not None and (s.phase == "R" or self.broken != "begun-ignored"):
            return ledger.rewinding.token == s.token
        return ledger.live == s.token

    def _own(self, s: Session) -> Judge:
        return lambda ledger: self._owns(s, ledger)

    def _own_undecided(self, s: Session) -> Judge:
        return lambda ledger: self._owns(s, ledger) and s.batch not in ledger.batches

    def _own_unsettled(self, s: Session, checkpoint: int) -> Judge:
        return lambda ledger: self._owns(s, ledger) and checkpoint == ledger.unsettled

    def _behind(self, ledger: Ledger, s: Session) -> bool:
        """Spark has moved past a micro-batch that was voided and that nobody wrote anew."""
        missing = set(range(max(ledger.batches, default=-1) + 1, s.batch))
        return self.broken != "void-forgotten" and bool(missing) and missing <= ledger.voided

    @staticmethod
    def _accounted(ledger: Ledger, s: Session) -> bool:
        return ledger.accounted <= s.batch <= ledger.accounted + 1

    @staticmethod
    def _placed(ledger: Ledger, s: Session) -> bool:
        """P4; a rewind that keeps a checkpoint lets its micro-batches run again."""
        first = ledger.accounted if ledger.replay is None else ledger.replay
        return first <= s.batch <= ledger.accounted + 1

    # -- the store --------------------------------------------------------------------------------------------------

    @staticmethod
    def _state(sh: Shared, handle: int) -> int:
        return sh.handles[handle][2]

    @staticmethod
    def _set(sh: Shared, handle: int, state: int) -> Shared:
        batch, partition, _ = sh.handles[handle]
        return sh._replace(handles=(*sh.handles[:handle], (batch, partition, state), *sh.handles[handle + 1 :]))

    def _commit_one(self, s: Session, sh: Shared, then: Callable[[Session, Shared], tuple[str, Session]]) -> Moves:
        """Commit the first handle of `todo`; after the last, go on."""
        handle, rest = s.todo[0], s.todo[1:]
        state, violation = self._state(sh, handle), ""
        label = f"{s.pc}: commit h{handle}"
        lost = s.lost or state == ABORTED
        if state in OPEN:
            if handle not in self.ledger(sh.node).decided:
                violation = UNBOUND
            sh = self._set(sh, handle, COMMITTED)
            part = sh.handles[handle]
            if sh.handles.count(part) > 1:
                violation = "two committed handles for one part"
            violation = violation or self._check_order(sh, handle)
        elif state == ABORTED and self.broken != "over-the-gap":  # what follows its micro-batch is not sent
            rest = tuple(h for h in rest if sh.handles[h][0] == sh.handles[handle][0])
        after = s._replace(todo=rest, lost=lost)
        if not rest:
            more, after = then(after, sh)
            label += more
        yield label + (" (lost)" if state == ABORTED else ""), after, sh, violation

    def _check_order(self, sh: Shared, handle: int) -> str:
        """Handles are numbered as they were written, which is how they lie in a log."""
        if not self.scenario.ordered:
            return ""
        mine = sh.handles[handle][0]
        others = [(batch, other) for other, (batch, _, state) in enumerate(sh.handles) if state == COMMITTED]
        if any(batch > mine for batch, _ in others):
            return "a micro-batch is committed after a later one"
        return "a micro-batch lies before an earlier one" if any(b < mine and h > handle for b, h in others) else ""

    def _abort_one(self, s: Session, sh: Shared, then: Callable[[Session], Session]) -> Moves:
        """Abort the first handle of `todo`; after the last, go on."""
        handle, rest = s.todo[0], s.todo[1:]
        violation = ""
        ledger = self.ledger(sh.node)
        if self._state(sh, handle) in OPEN:
            if handle in ledger.decided and not self._may_abort(s, sh, handle):
                violation = f"{s.pc} aborts a decided handle"
            sh = self._set(sh, handle, ABORTED)
        elif self._state(sh, handle) == COMMITTED and s.pc == "Sabort":
            s = s._replace(lost=True)
        after = s._replace(todo=rest)
        yield f"{s.pc}: abort h{handle}", after if rest else then(after), sh, violation

    def _may_abort(self, s: Session, sh: Shared, handle: int) -> bool:
        """A stale sweep may abort what is decided (it is repaired), and recovery where another handle was lost."""
        ledger = self.ledger(sh.node)
        if s.pc == "Sabort":
            chains = [chain for _, chain in ledger.chains(ledger.unsettled)]
            return any(handle == c[-1][0] for c in chains) and any(self._state(sh, c[-1][0]) in LOST for c in chains)
        claimed = ledger.runs.get(s.token, ("", True))[0] == s.driver
        return s.pc == "kill" and claimed and (ledger.newest != s.token or self.scenario.tolerant)

    def _check_entry(self, entry: Entry, sh: Shared) -> str:
        ledger = self.ledger(sh.node)
        if entry[0] == "decided" and ledger.unsettled:
            return "a decision while another is not settled"
        if entry[0] == "decided" and entry[1] in ledger.batches and ledger.batches[entry[1]].checkpoint:
            return "a micro-batch is decided twice"
        if entry[0] == "decided" and (entry[3] if len(entry) > 3 else ledger.position + 1) in ledger.ever:
            return "the id of a checkpoint comes back"
        if entry[0] == "stopped" and ledger.known:
            return "a run is told to have stopped, and left something open"
        if entry[0] == "void" and entry[1] in ledger.checkpoints:
            handles = [h for _, chain in ledger.chains(entry[1]) for h, _ in chain]
        elif entry[0] == "void-prepared" and entry[1] in ledger.batches:
            if entry[1] not in ledger.undecided:
                return "void of a decided micro-batch as of a prepared one"
            found = {self._state(sh, h) for h in open_handles(ledger.batches[entry[1]])}
            return "" if {*LOST} & found else "void of a prepared micro-batch that has lost nothing"
        else:
            return ""
        states = {self._state(sh, h) for h in handles}
        if COMMITTED in states:
            return "void of a committed handle"
        return "void of a handle that is not proved lost" if {*OPEN} & states else ""

    def _sweep(self, s: Session, sh: Shared) -> Moves:
        """List what is prepared and not known; each is aborted in a step of its own."""
        known = self.ledger(s.known).known
        todo = tuple(h for h, x in enumerate(sh.handles) if x[2] in OPEN and h not in known)
        if todo:
            yield f"sweep ({s.phase}): list {todo}", s._replace(pc="kill", todo=todo), sh, ""
        else:
            yield f"sweep ({s.phase}): nothing", self._swept(s), sh, ""

    def _swept(self, s: Session) -> Session:
        s = s._replace(todo=())
        if s.phase == "A":
            return ended("aborted")
        if s.phase == "C":
            return s._replace(pc="spark")
        if self.broken == "sweep-first":
            return self._claim(s)
        ledger = self.ledger(s.known)
        if (
            (ledger.stopping or (self.broken == "stop-forever" and ledger.stop))
            and ledger.live == s.token
            and not ledger.undecided
            and not ledger.unsettled
        ):
            return s._replace(pc="P7stop")
        return self._planned(s)

    # -- where a session goes ---------------------------------------------------------------------------------------

    def _raise(self, s: Session, sh: Shared, label: str) -> Move:
        """An error: in planning the query ends, in commit Spark calls abort, in abort it ends."""
        del self
        if s.phase == "C":
            return label + ", raises", s._replace(pc="A1", phase="A", todo=(), note=(), lost=False), sh, ""
        return label + ", raises", ended("fenced"), sh, ""

    def _claim(self, s: Session) -> Session:
        """P3: whose the run is, the journal says."""
        ledger = self.ledger(s.known)
        if self.broken == "memory" and s.memory[s.batch % 2]:
            return self._recover(s._replace(token=s.memory[s.batch % 2]))
        if self._behind(ledger, s):
            return ended("rewind")
        live = ledger.live
        if live and ledger.runs[live][0] == s.driver and self.broken != "memory":
            return self._recover(s._replace(token=live)) if self._placed(ledger, s) else ended("not accounted")
        ours = [t for t, (driver, over) in ledger.runs.items() if driver == s.driver and not over]
        if live and ours and self.broken != "memory":
            return s._replace(pc="P3fence", token=max(ours))
        return s._replace(pc="P3claim", token=0)

    def _claimed(self, s: Session) -> Session:
        token = self.ledger(s.known).position
        memory = (token, s.memory[1]) if s.batch % 2 == 0 else (s.memory[0], token)
        return self._recover(s._replace(token=token, memory=memory if self.broken == "memory" else (0, 0)))

    def _recover(self, s: Session) -> Session:
        """P5, and where nothing is unsettled P6, and where nothing is prepared P7."""
        ledger = self.ledger(s.known)
        if ledger.unsettled:
            return s._replace(pc="Slook")
        return self._prepared(s, ledger.undecided)

    def _prepared(self, s: Session, left: tuple[int, ...]) -> Session:
        if left:
            return s._replace(pc="P6look", todo=left)
        if self.broken == "sweep-first":
            return self._planned(s)
        return s._replace(pc="sweep", todo=())

    def _planned(self, s: Session) -> Session:
        """P9 where a snapshot is due; then the tasks."""
        every = self.scenario.snapshots
        if every and self.ledger(s.known).position - max(s.todo, default=0) >= every:
            return s._replace(pc="P9?")
        return self._tasks(s)

    def _tasks(self, s: Session) -> Session:
        found = self.ledger(s.known).batches.get(s.batch)
        mode = "write" if found is None else "repair" if lost_parts(found) else "drain"
        if self.broken == "drain-writes" and found and not found.checkpoint:
            mode = "write"
        return s._replace(pc="tasks", mode=mode)

    # -- settling ---------------------------------------------------------------------------------------------------

    def _settle(self, s: Session, sh: Shared) -> Moves:
        known = self.ledger(s.known)
        checkpoint = known.unsettled
        judge = self._own_unsettled(s, checkpoint)

        def met(ledger: Ledger) -> list[tuple[int, str]]:
            return [ledger.batches[batch].chains[partition][-1] for batch, partition, _ in s.note]

        if s.pc == "Slook":
            if not checkpoint or not judge(known):
                yield self._raise(s, sh, "Slook: not ours any more")
                return
            yield self._judged(s, sh, checkpoint)
        elif s.pc == "Scommit":
            yield from self._commit_one(s, sh, lambda a, _: ("", self._all_committed(a)))
        elif s.pc == "Ssettled":
            yield from self._append(s, sh, ("settled", checkpoint), judge, self._settled)
        elif s.pc == "Sabort":
            yield from self._abort_one(s, sh, self._all_lost)
        elif s.pc == "Svoid":
            yield from self._append(s, sh, ("void", checkpoint), judge, self._settled)
        elif s.pc == "Sverdict":
            note = tuple((b, p, "lost" if verdict == "over" else verdict) for b, p, verdict in s.note)
            entry = ("verdict", checkpoint, note)
            same = (
                judge if self.broken == "verdict-judge" else lambda ledger: judge(ledger) and met(ledger) == met(known)
            )
            yield from self._append(
                s, sh, entry, same, lambda a: self._commit_living(a._replace(note=(), todo=self._living(a)), "Swaits")
            )

    def _judged(self, s: Session, sh: Shared, checkpoint: int) -> Move:
        known = self.ledger(s.known)
        parts = list(known.chains(checkpoint))
        looked = [(part, chain[-1][0], self._state(sh, chain[-1][0])) for part, chain in parts if not chain[-1][1]]
        living = tuple(h for _, h, state in looked if state == PREPARED)
        gone = {part for part, _, state in looked if state in LOST} | {p for p, c in parts if c[-1][1] == "lost"}
        label = f"Slook: {[(h, 'npcagh'[state]) for _, h, state in looked]}"
        if not gone:
            return label + " commit", self._commit_living(s._replace(todo=living), "Ssettled"), sh, ""
        committed = any(state in (COMMITTED, GIVEN) for _, _, state in looked)
        committed = committed or any(verdict == "committed" for _, c in parts for _, verdict in c)
        if self.broken == "void-no-proof":
            committed = False
        covered = known.checkpoints[checkpoint][0]
        lost = {batch for batch, _ in gone}
        repairable = committed or (min(covered) < s.batch <= min(lost))
        if min(lost if repairable else covered) < s.batch:
            if s.phase == "C":
                return self._raise(s, sh, label + " rewind required")
            return label + " rewind required", ended("rewind"), sh, ""
        gap = min(lost) if repairable and self.broken != "gap-kept" else len(self.scenario.closes)
        over = [part for part, _, state in looked if state == PREPARED and (part[0] > gap or not repairable)]
        note = tuple(
            (*part, "lost" if state in LOST else "committed") for part, _, state in looked if state != PREPARED
        )
        note = tuple(sorted(note + tuple((*part, "over") for part in over)))
        hurt = tuple(h for _, h, state in looked if state == HURT)
        after = s._replace(todo=hurt, note=note, back="Sverdict" if repairable else "Svoid")
        if self.broken == "void-no-proof" and not repairable:
            return label + " void", s._replace(pc="Svoid", todo=(), note=()), sh, ""
        label += " repair" if repairable else " void"
        if hurt and self.broken != "verdict-first":
            return label, after._replace(pc="Sabort", back=f"{after.back} over"), sh, ""
        return label, self._all_lost(after._replace(back=f"{after.back} over")), sh, ""

    def _all_lost(self, s: Session) -> Session:
        """What was looked at as lost is aborted, then what is given up: each answer is proof.

        What was committed meanwhile has to be judged again.
        """
        if s.lost:
            return s._replace(pc="Slook", lost=False, back="", note=(), todo=())
        then = s.back.removesuffix(" over")
        if then != s.back:
            ledger, over = self.ledger(s.known), {x[:2] for x in s.note if x[2] == "over"}
            todo = tuple(c[-1][0] for part, c in ledger.chains(ledger.unsettled) if part in over)
            if todo:
                return s._replace(pc="Sabort", back=then, todo=todo)
        if then == "Svoid":
            return s._replace(pc="Svoid", back="", note=(), todo=())
        if s.note:
            return s._replace(pc="Sverdict", back="", todo=())
        return self._commit_living(s._replace(todo=self._living(s)), "Swaits")

    def _living(self, s: Session) -> tuple[int, ...]:
        """Open handles of the checkpoint of which the look has told nothing else."""
        ledger, told = self.ledger(s.known), {x[:2] for x in s.note}
        return tuple(c[-1][0] for part, c in ledger.chains(ledger.unsettled) if not c[-1][1] and part not in told)

    def _commit_living(self, s: Session, then: str) -> Session:
        if s.todo:
            return s._replace(pc="Scommit", back=then, lost=False)
        return s._replace(pc="Ssettled") if then == "Ssettled" else self._settled(s)

    def _all_committed(self, s: Session) -> Session:
        if s.lost:
            return s._replace(pc="Slook", lost=False, back="")
        if s.back == "Ssettled":
            return s._replace(pc="Ssettled", back="")
        ledger = self.ledger(s.known)
        kept = [part for part, chain in ledger.chains(ledger.unsettled) if not chain[-1][1]]
        return s._replace(pc="Sverdict", back="", note=tuple((*part, "committed") for part in kept))

    def _settled(self, s: Session) -> Session:
        """Return from `_settle`."""
        s = s._replace(todo=(), note=(), lost=False, back="")
        ledger = self.ledger(s.known)
        if s.phase == "P":
            return self._prepared(s, ledger.undecided)
        if s.batch not in ledger.batches or (ledger.unsettled and not self._replayed(s, ledger)):
            return s._replace(pc="A1", phase="A")  # LOST_AFTER_DECISION
        return s._replace(pc="sweep")

    @staticmethod
    def _replayed(s: Session, ledger: Ledger) -> bool:
        """A micro-batch of a kept checkpoint has run again, and others follow it."""
        follow = s.batch < max(ledger.checkpoints[ledger.unsettled][0])
        return ledger.replay is not None and follow and not lost_parts(ledger.batches[s.batch])

    # -- planning ---------------------------------------------------------------------------------------------------

    def _plan(self, s: Session, sh: Shared) -> Moves:
        if s.pc == "P1":
            batch = sh.commits
            if batch == len(self.scenario.closes):
                yield "P1: nothing to do", ended("idle"), sh, ""
            else:
                yield f"P1: micro-batch {batch}", s._replace(pc="P2", batch=batch), sh, ""
        elif s.pc == "P2":
            after = s._replace(known=sh.node)
            if self._unreadable(sh):
                yield "P2: unreadable", ended("unreadable"), sh, ""
            elif self.broken == "sweep-first":
                yield "P2: load", after._replace(pc="sweep", token=0), sh, ""
            else:
                yield "P2: load", self._claim(after), sh, ""
        elif s.pc == "P3claim":
            yield from self._append(s, sh, ("run", s.driver), lambda ledger: self._claimable(ledger, s), self._claimed)
        elif s.pc == "P3fence":
            not_ended: Judge = lambda ledger: not ledger.runs[s.token][1]  # noqa: E731
            yield from self._append(s, sh, ("fenced", s.token), not_ended, lambda a: ended("fenced", a))
        elif s.pc == "P7stop":
            yield from self._append(s, sh, ("stopped", s.token), self._stoppable(s), lambda a: ended("asked to", a))
        elif s.pc == "P6look":
            yield self._look_prepared(s, sh)
        elif s.pc == "P6void":
            yield from self._append(s, sh, ("void-prepared", s.todo[0]), self._voidable(s), self._next_prepared)
        elif s.pc == "P9?":
            last = max(sh.snapshots, default=0)
            due = self.ledger(s.known).position - last >= self.scenario.snapshots
            yield from self._fold_journal(s._replace(pc="P9"), sh) if due else [("P9", self._tasks(s), sh, "")]
        else:
            yield from self._fold_journal(s, sh)

    def _claimable(self, ledger: Ledger, s: Session) -> bool:
        if not self._placed(ledger, s):
            return False
        ours = any(driver == s.driver and not over for driver, over in ledger.runs.values())
        live = ledger.live
        return not (live and ledger.runs[live][0] != s.driver and ours)

    def _stoppable(self, s: Session) -> Judge:
        """Ours, and nothing is left open."""
        own = self._own(s)
        if self.broken == "stop-judge":
            return own
        return lambda ledger: own(ledger) and not ledger.undecided and not ledger.unsettled

    def _voidable(self, s: Session) -> Judge:
        """Ours, and the micro-batch is the last in the journal, undecided, and the prepared one that P6 looked at."""
        own, batch = self._own(s), s.todo[0]
        entry = self.ledger(s.known).batches[batch].entry

        def judge(ledger: Ledger) -> bool:
            if not own(ledger) or batch not in ledger.batches:  # a void of nothing does not fold
                return False
            return (
                (batch in ledger.undecided or self.broken == "void-decided")
                and (ledger.batches[batch].entry == entry or self.broken == "void-judge")
                and (self._accounted(ledger, s) or self.broken == "void-account")
            )

        return judge

    def _look_prepared(self, s: Session, sh: Shared) -> Move:
        ledger = self.ledger(s.known)
        batch = s.todo[0]
        handles = open_handles(ledger.batches[batch])
        if all(self._state(sh, h) == PREPARED for h in handles):
            return f"P6look: {batch} alive", self._prepared(s, s.todo[1:]), sh, ""
        if batch < s.batch:
            return f"P6look: {batch} lost, rewind required", ended("rewind"), sh, ""
        return f"P6look: {batch} lost", s._replace(pc="P6void", note=tuple((h, 0, "") for h in handles)), sh, ""

    def _next_prepared(self, s: Session) -> Session:
        return self._prepared(s._replace(note=()), ())  # the batch at work is the last prepared one

    # -- tasks and commit -------------------------------------------------------------------------------------------

    def _run_tasks(self, s: Session, sh: Shared) -> Moves:
        known = self.ledger(s.known)
        after = s._replace(pc="C1", phase="C", messages=True)
        if s.mode == "drain":
            yield "tasks: drained", after, sh, ""
            return
        wanted = range(self.scenario.parts) if s.mode == "write" else lost_parts(known.batches[s.batch])
        first = len(sh.handles)
        handles = tuple((p, first + i) for i, p in enumerate(wanted))
        store = (*sh.handles, *((s.batch, p, PREPARED) for p in wanted))
        yield f"tasks: {s.mode} {handles}", after._replace(handles=handles), sh._replace(handles=store), ""
        if self.scenario.fail:
            part = sh._replace(handles=store[: first + 1])
            failed = s._replace(pc="A1", phase="A", handles=())
            yield f"tasks: fail after {handles[:1]}, no message", failed, part, ""
            yield f"tasks: fail after {handles[:1]}", failed._replace(handles=handles[:1], messages=True), part, ""

    def _commit(self, s: Session, sh: Shared) -> Moves:
        known = self.ledger(s.known)
        found = known.batches.get(s.batch)
        if s.pc == "C1":
            if self._unreadable(sh):
                yield self._raise(s, sh, "C1: unreadable")
                return
            yield self._loaded(s._replace(known=sh.node), sh)
        elif s.pc == "C2look":
            alive = all(self._state(sh, h) == PREPARED for _, h in s.handles)
            after = s._replace(pc="C2first" if self.broken == "repair-first" else "C2repair")
            yield ("C2look: alive", after, sh, "") if alive else self._raise(s, sh, "C2look: lost")
        elif s.pc == "C2first":
            todo = s.todo or tuple(h for _, h in s.handles)
            yield from self._commit_one(s._replace(todo=todo), sh, lambda a, _: ("", a._replace(pc="C2repair")))
        elif s.pc == "C2repair":
            entry = ("repair", known.unsettled, tuple((s.batch, p, h) for p, h in s.handles))
            then: Callable[[Session], Session] = lambda a: a._replace(pc="Slook", handles=())  # noqa: E731
            yield from self._append(s, sh, entry, self._repairable(s, known.unsettled), then)
        elif s.pc == "C5":
            handles = [h for b in known.undecided for h in open_handles(known.batches[b])] + [h for _, h in s.handles]
            if self.broken != "no-look" and any(self._state(sh, h) != PREPARED for h in handles):
                yield self._raise(s, sh, "C5: not alive")
            elif self.broken == "commit-first" and s.handles:
                yield "C5: alive", s._replace(pc="C8", todo=tuple(h for _, h in s.handles)), sh, ""
            else:
                yield "C5: alive", self._deciding(s, found), sh, ""
                if not self.scenario.closes[s.batch] and found is not None:
                    closing = s._replace(pc="C7", back="wants", note=tuple((b, 0, "") for b in known.undecided))
                    yield "C5: alive, the coordinator wants to close", closing, sh, ""
        elif s.pc == "C7":
            yield from self._decide(s, sh, found)
        elif s.pc == "C8":
            yield from self._commit_one(s, sh, self._c7)
            if self.scenario.fail:
                yield self._raise(s, sh, "C8: the store fails")
        elif s.pc == "C9":
            judge = self._own_unsettled(s, known.unsettled)
            after_settled: Callable[[Session], Session] = lambda a: a._replace(pc="sweep", handles=())  # noqa: E731
            yield from self._append(s, sh, ("settled", known.unsettled), judge, after_settled)
        elif s.pc == "spark":
            yield self._spark(s, sh)

    def _c7(self, s: Session, sh: Shared) -> tuple[str, Session]:
        if s.lost:
            return self._raise(s, sh, ", lost")[:2]
        if self.broken == "commit-first" and s.handles and not self.ledger(s.known).unsettled:
            return "", s._replace(pc="C7")
        return "", s._replace(pc="C9")

    def _repairable(self, s: Session, checkpoint: int) -> Judge:
        own = self._own_unsettled(s, checkpoint)
        if self.broken == "repair-judge":
            return own
        parts = [p for p, _ in s.handles]
        return lambda ledger: own(ledger) and lost_parts(ledger.batches[s.batch]) == parts

    def _loaded(self, s: Session, sh: Shared) -> Move:
        ledger = self.ledger(s.known)
        found = ledger.batches.get(s.batch)
        if not self._owns(s, ledger):
            return self._raise(s, sh, "C1: load, not our run")
        if found is not None and found.checkpoint:
            if ledger.checkpoints[found.checkpoint][1]:
                return "C2: settled already", s._replace(pc="sweep", handles=()), sh, ""
            lost = lost_parts(found)
            if not lost:
                return "C2: decided already", s._replace(pc="Slook", handles=()), sh, ""
            mine = dict(s.handles)
            if not set(lost) <= set(mine):
                return self._raise(s, sh, "C2: lost parts were not written")
            return "C2: repair", s._replace(pc="C2look", handles=tuple((p, mine[p]) for p in lost)), sh, ""
        drained = s.mode == "drain"
        if drained is not (found is not None) and self.broken != "drain-writes":
            return self._raise(s, sh, "C3: mixed acknowledgements")
        return "C1: load", s._replace(pc="C5"), sh, ""

    def _deciding(self, s: Session, found: Record | None) -> Session:
        if self.ledger(s.known).stopping:
            s = s._replace(back="wants")
            return s._replace(pc="C7", note=tuple((b, 0, "") for b in self.ledger(s.known).undecided))
        if not self.scenario.closes[s.batch] and found is not None:
            return s._replace(pc="sweep", handles=())
        return s._replace(pc="C7", note=tuple((b, 0, "") for b in self.ledger(s.known).undecided))

    def _decide(self, s: Session, sh: Shared, found: Record | None) -> Moves:
        own = self._decidable(s, found is not None)
        if not self.scenario.closes[s.batch] and not s.back:
            then: Callable[[Session], Session] = lambda a: a._replace(pc="sweep", handles=(), note=())  # noqa: E731
            yield from self._append(s, sh, ("prepared", s.batch, s.handles), own, then)
            return
        covers = tuple(b for b, _, _ in s.note)
        entry: Entry = ("decided", s.batch, s.handles)
        if self.broken == "ids-counted":
            entry = (*entry, len(self.ledger(s.known).checkpoints) + 1)
        yield from self._append(
            s,
            sh,
            entry,
            lambda ledger: own(ledger) and ledger.undecided == covers,
            self._decided,
        )

    def _decidable(self, s: Session, prepared: bool) -> Judge:
        """Ours, not in the journal but as we know it, and what P4 and P5 saw to holds: all before it is there, and settled."""
        own = self._own(s) if prepared else self._own_undecided(s)
        return lambda ledger: (
            own(ledger)
            and (self._accounted(ledger, s) or self.broken == "decide-account")
            and (not ledger.unsettled or self.broken == "decide-unsettled")
        )

    def _decided(self, s: Session) -> Session:
        ledger = self.ledger(s.known)
        todo = tuple(chain[-1][0] for _, chain in ledger.chains(ledger.unsettled) if not chain[-1][1])
        return s._replace(pc="C8", todo=todo, note=(), back="")

    def _spark(self, s: Session, sh: Shared) -> Move:
        after = sh._replace(commits=max(sh.commits, s.batch + 1))
        violation = ""
        if self.scenario.closes[s.batch]:
            violation = self._check_complete(after, s.batch)
        if s.batch + 1 == len(self.scenario.closes):
            return f"Spark writes commits/{s.batch}", ended("ok"), after, violation
        went = Session("P2", s.driver, batch=s.batch + 1, memory=s.memory)
        return f"Spark writes commits/{s.batch}", went, after, violation

    def _check_complete(self, sh: Shared, last: int) -> str:
        committed = {(b, p) for b, p, state in sh.handles if state == COMMITTED}
        missing = {(b, p) for b in range(last + 1) for p in range(self.scenario.parts)} - committed
        return "Spark has moved past a part that is not committed" if missing else ""

    # -- abort ------------------------------------------------------------------------------------------------------

    def _abort(self, s: Session, sh: Shared) -> Moves:
        if s.pc == "A1":
            ledger = self.ledger(sh.node)
            live = ledger.live
            ours = live and (s.token == live if s.messages else ledger.runs[live][0] == s.driver)
            if self.broken == "abort-ignores-decision":
                todo = tuple(handle for _, handle in s.handles)
                yield "A1: load", s._replace(pc="A-" if todo else "sweep", known=sh.node, todo=todo), sh, ""
            elif not ours or s.batch in ledger.batches or self._unreadable(sh):
                yield "A1: nothing to do", ended("raised"), sh, ""
            else:
                yield "A1: load", s._replace(pc="A2", known=sh.node, token=live), sh, ""
        elif s.pc == "A2":
            yield from self._append(s, sh, ("aborted", s.token), self._own_undecided(s), self._aborted)
        else:
            yield from self._abort_one(s, sh, self._aborted)

    @staticmethod
    def _aborted(s: Session) -> Session:
        return s._replace(pc="sweep", handles=())

    # -- all together -----------------------------------------------------------------------------------------------

    def step(self, s: Session, sh: Shared) -> Moves:
        """The next step of a session."""
        if s.pc.startswith("listing"):
            return self._listed(s, sh)
        if s.pc == "tasks":
            return self._run_tasks(s, sh)
        if s.pc == "sweep":
            return self._sweep(s, sh)
        if s.pc == "kill":
            return self._abort_one(s, sh, self._swept)
        moves = {"P": self._plan, "S": self._settle, "C": self._commit, "s": self._commit, "A": self._abort}
        return moves[s.pc[0]](s, sh)

    def initial(self) -> tuple[int, ...]:
        """No driver has started."""
        node = 0
        for entry in self.scenario.journal:
            node = self.child(node, entry)
        shared = Shared(node, self.scenario.handles, self.scenario.committed, self.scenario.expiries)
        shared = shared._replace(stops=self.scenario.stops)
        return (self._shareds(shared), *(self._sessions(Session("", driver)) for driver in self.scenario.drivers))

    def moves(self, state: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Every step of every session, and what the environment does."""
        shared = state[0]
        for i, number in enumerate(state[1:], 1):
            s = self._sessions.values[number]
            if s.pc == "end":
                continue
            if not s.pc:
                yield from self._starts(state, i)
                break  # drivers start in order: they are alike
            for label, after, then, violation in self._steps(number, shared):
                yield f"{i}{s.driver} {label}", (then, *state[1:i], after, *state[i + 1 :]), violation
        for label, then in self._expiries(shared):
            yield label, (then, *state[1:]), ""
        sh = self._shareds.values[shared]
        run = self.ledger(sh.node).live
        if sh.stops and run:
            asked = self._created(sh, ("stop", run))._replace(stops=sh.stops - 1)
            yield f"somebody asks run {run} to stop", (self._shareds(asked), *state[1:]), ""

    def _starts(self, state: tuple[int, ...], i: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        driver = self.scenario.drivers[i - 1]
        before = list(state[1:i])
        for k, number in enumerate(before):
            s = self._sessions.values[number]
            if s.driver == driver:
                before[k] = self._sessions(self._stopped(s))
        yield f"{i}{driver} starts", (state[0], *before, self._sessions(Session("P1", driver)), *state[i + 1 :]), ""

    def _stopped(self, s: Session) -> Session:
        """Spark has stopped the query: a Python process may go on, but no task starts and nothing writes commits/N."""
        if s.pc in ("end", "tasks", "spark") or not self.scenario.zombie:
            return ended("stopped")
        return s._replace(stopped=True)

    def _steps(self, number: int, shared: int) -> list[tuple[str, int, int, str]]:
        found = self._stepped.get((number, shared))
        if found is None:
            s, sh = self._sessions.values[number], self._shareds.values[shared]
            found = []
            for label, went, then, broken in self.step(s, sh):
                violation = broken
                after = self._stopped(went) if went.stopped else went
                if self.scenario.lone and after.pc == "end" and after.back not in ("ok", "idle"):
                    violation = violation or f"a lone driver ends: {after.back}"
                found.append((label, self._sessions(after), self._shareds(then), violation))
            self._stepped[number, shared] = found
        return found

    def _expiries(self, shared: int) -> list[tuple[str, int]]:
        found = self._expired.get(shared)
        if found is None:
            sh = self._shareds.values[shared]
            found = []
            if sh.expiries:
                for handle, (_, _, state) in enumerate(sh.handles):
                    if state == PREPARED:
                        after = self._set(sh, handle, ABORTED)._replace(expiries=sh.expiries - 1)
                        found.append((f"the broker expires h{handle}", self._shareds(after)))
                        hurt = self._set(sh, handle, HURT)._replace(expiries=sh.expiries - 1)
                        found += [(f"a part of h{handle} is gone", self._shareds(hurt))] if self.scenario.hurts else []
            self._expired[shared] = found
        return found

    def finished(self, seen: set[tuple[int, ...]]) -> frozenset[tuple[Entry, ...]]:
        """Journals of the states in which Spark is through, and each part is committed once; no copy was put back."""
        found = set()
        wanted = [(b, p) for b in range(len(self.scenario.closes)) for p in range(self.scenario.parts)]
        for sh in {self._shareds.values[state[0]] for state in seen}:
            committed = sorted((b, p) for b, p, state in sh.handles if state == COMMITTED)
            if sh.copy != PUT_BACK and self._through(sh) and committed == wanted:
                found.add(tuple(self.entries(sh.node)))
        return frozenset(found)

    def _through(self, sh: Shared) -> bool:
        return sh.commits == len(self.scenario.closes)

    def exits(self, seen: set[tuple[int, ...]]) -> tuple[int, str]:
        """From every state a new driver, alone, ends well, or with a rewind; how many were tried, and what failed."""
        tried = {self._shareds.values[state[0]]._replace(expiries=0) for state in seen}
        for sh in tried:
            s, now, labels = Session("P1", "Z"), sh, []
            while s.pc != "end":
                label, s, now, violation = next(iter(self.step(s, now)))
                labels.append(label)
                if violation or len(labels) > 200:
                    return len(tried), f"{violation or 'endless'}: {self.entries(sh.node)} {sh} {labels}"
            if not self._may_end(sh, s.back):
                return len(tried), f"no exit, {s.back}: {self.entries(sh.node)} {sh} {labels}"
        return len(tried), ""

    def _may_end(self, sh: Shared, how: str) -> bool:
        """A driver alone may end so, if it starts at `sh`."""
        del sh
        return how in ("ok", "idle", "rewind")


def ended(how: str, _: Session | None = None) -> Session:
    """A session that makes no further step; all alike, whatever they knew."""
    return Session("end", back=how)
