"""The journal model with rewinds, and with what races with them: Spark's logs, and creates that take place late.

The steps R1 to R7 are those of `transactional.rewind`. Among the letters of a
scenario's starts, ``-`` begins a rewind, and ``+`` finishes one: the process that was at it was killed, wherever it stood.
The query was stopped before, but a Python process that plans or commits for it goes on (`Scenario.zombie`). In a scenario
that is `living` it was not stopped, or is started at the same moment: Spark, too, goes on with what it knows, and writes
its logs late.

Here Spark's files are bits: `Shared.offsets`, and `Shared.commits`. A micro-batch has the same rows whenever it runs, so
digests of sources, and the planned ends of a checkpoint that is kept, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model_ledger import Entry, Ledger, lost_parts, open_handles
from tests.model_steps import COMMITTED, GIVEN, OPEN, Judge, Model, Move, Moves, Session, Shared, ended

__all__ = ["RewindModel"]

BEGIN, RESUME = "-", "+"
ROUNDS = 8
BY_HAND = ("fenced", "inconsistent", "spark", "too far")
"""How a query that Spark's logs do not fit ends, and a rewind."""


class RewindModel(Model):
    """The moves of a scenario in which rewinds are begun.

    Attributes
    ----------
    by_hand : int
        States from which neither a driver nor a rewind goes on, because Spark wrote a file late.
    """

    by_hand = 0

    # -- the journal ------------------------------------------------------------------------------------------------

    def _append(self, s: Session, sh: Shared, entry: Entry, judge: Judge, then: Callable[[Session], Session]) -> Moves:
        yield from super()._append(s, sh, entry, judge, then)
        number = self.ledger(s.known).position + 1
        if sh.lates and number > self.ledger(sh.node).position and judge(self.ledger(s.known)):
            after = sh._replace(lates=sh.lates - 1, late=(*sh.late, (number, entry)))
            yield self._raise(s, after, f"{s.pc}: create {number} {entry} is refused, and takes place later")

    def _created(self, sh: Shared, entry: Entry) -> Shared:
        """What a rewind writes again at its user's request counts as given up."""
        after = super()._created(sh, entry)
        if entry[0] != "done" or not self._target(sh):
            return after
        return self._given(after, entry[1])

    @staticmethod
    def _given(sh: Shared, last: int) -> Shared:
        return sh._replace(handles=tuple((b, p, GIVEN if x == COMMITTED and b > last else x) for b, p, x in sh.handles))

    def _target(self, sh: Shared) -> int:
        rewinding = self.ledger(sh.node).rewinding
        return rewinding.target if rewinding else 0

    def _check_entry(self, entry: Entry, sh: Shared) -> str:
        violation = super()._check_entry(entry, sh)
        return violation or (self._check_done(entry, sh) if entry[0] == "done" else "")

    def _check_done(self, entry: Entry, sh: Shared) -> str:
        before, after, last = self.ledger(sh.node), self.ledger(self.child(sh.node, entry)), entry[1]
        kept = before.checkpoints[entry[2]][0] if entry[2] else ()
        if any(self._state(sh, h) in OPEN for h in before.known - after.known):
            return "a rewind leaves prepared what its journal does not name any more"
        again = {b for b, _, state in sh.handles if state == COMMITTED and b > last and b not in kept}
        if again and self.scenario.restore:
            return "what was to be taken back stays"
        named = set(before.rewinding.named if before.rewinding else ())
        if not {before.batches[b].checkpoint for b in again} <= named:
            return "a rewind writes again what it did not name"
        return ""

    # -- Spark ------------------------------------------------------------------------------------------------------

    def _through(self, sh: Shared) -> bool:
        return newest(sh.commits) == len(self.scenario.closes) - 1

    def _begin_spark(self, s: Session, sh: Shared) -> Move:
        """Spark reads its logs when the query starts, and never again."""
        batch = newest(sh.offsets)
        if batch < 0 or has(sh.commits, batch):
            after = self._offset(s, batch + 1)
            if after.pc == "end" or self.scenario.living:
                return f"Spark goes on with {batch + 1}", after, sh, ""
            return self._write_offsets(after, sh)
        if batch and not has(sh.offsets, batch - 1):
            return f"Spark: there is no offsets/{batch - 1}", ended("spark"), sh, ""
        return f"Spark runs {batch} again", s._replace(pc="P1", batch=batch), sh, ""

    def _offset(self, s: Session, batch: int) -> Session:
        return ended("idle") if batch >= len(self.scenario.closes) else s._replace(pc="offset", batch=batch)

    @staticmethod
    def _write_offsets(s: Session, sh: Shared) -> Move:
        if has(sh.offsets, s.batch):
            return f"Spark: offsets/{s.batch} is there", ended("spark"), sh, ""
        return (
            f"Spark writes offsets/{s.batch}",
            s._replace(pc="P1"),
            sh._replace(offsets=sh.offsets | 1 << s.batch),
            "",
        )

    @staticmethod
    def _view(s: Session, sh: Shared) -> Move:
        """P1: what the planning reads may not be what Spark has read."""
        batch = newest(sh.offsets)
        if newest(sh.commits) >= batch:
            return "P1: commits/ goes further than offsets/", ended("inconsistent"), sh, ""
        spark = -1 if batch == s.batch else s.batch
        return f"P1: micro-batch {batch}", s._replace(pc="P2", batch=batch, spark=spark), sh, ""

    def _spark(self, s: Session, sh: Shared) -> Move:
        if has(sh.commits, s.batch):
            return f"Spark: commits/{s.batch} is there", ended("spark"), sh, ""
        after = sh._replace(commits=sh.commits | 1 << s.batch)
        ours = self._owns(s, self.ledger(sh.node))
        violation = self._check_complete(after, s.batch) if ours and self.scenario.closes[s.batch] else ""
        if s.batch + 1 == len(self.scenario.closes):
            return f"Spark writes commits/{s.batch}", ended("ok"), after, violation
        return (
            f"Spark writes commits/{s.batch}",
            self._offset(Session("", s.driver, stopped=s.stopped), s.batch + 1),
            after,
            violation,
        )

    # -- what a driver does otherwise -------------------------------------------------------------------------------

    def _claim(self, s: Session) -> Session:
        if self.ledger(s.known).rewinding and self.broken not in ("begun-ignored", "plan-looks-not"):
            return ended("rewinding")
        return super()._claim(s)

    def _claimed(self, s: Session) -> Session:
        return s._replace(pc="P3mark", token=self.ledger(s.known).position)

    def _tasks(self, s: Session) -> Session:
        return super()._tasks(s) if s.spark < 0 else ended("plan of another micro-batch")

    def _settled(self, s: Session) -> Session:
        if s.phase == "R":
            return self._abort_prepared(s._replace(todo=(), note=(), lost=False, back=""))
        return super()._settled(s)

    def _swept(self, s: Session) -> Session:
        if s.phase != "R":
            return super()._swept(s)
        restores = self.scenario.restore and self.scenario.target
        return s._replace(pc="R5" if restores else self._after_store(), todo=())

    def _after_store(self) -> str:
        return "R7" if self.broken == "logs-last" else "R6"

    # -- the rewind -------------------------------------------------------------------------------------------------

    def _rewind(self, s: Session, sh: Shared) -> Moves:
        known = self.ledger(s.known)
        if s.pc == "R1":
            yield self._choose(s._replace(known=sh.node), sh)
        elif s.pc == "R1abort":
            yield from self._abort_one(s, sh, lambda a: a._replace(pc="R2"))
        elif s.pc == "R2":
            entry: Entry = ("begun", self.scenario.target, s.todo)
            if self.broken == "begun-ignored":
                entry = (*entry, "")
            same: Judge = lambda ledger: self.broken == "begun-judge" or ledger.position == known.position  # noqa: E731
            yield from self._append(s, sh, entry, same, self._begun)
        elif s.pc == "R4abort":
            yield from self._abort_one(s, sh, lambda a: a._replace(pc="sweep"))
        elif s.pc == "R5":
            yield (
                "R5: the store goes back",
                s._replace(pc=self._after_store()),
                self._given(sh, self._back_to(s)[0]),
                "",
            )
        elif s.pc == "R6":
            yield self._list_logs(s, sh)
        elif s.pc == "R6delete":
            yield self._delete_log(s, sh)
        else:
            last, kept = self._back_to(s)
            entry = ("done", last, 0 if self.broken == "done-keeps-nothing" else kept)
            if self.broken == "done-forgets":
                entry = (*entry, "")
            yield from self._append(s, sh, entry, self._own(s), self._done)

    def _choose(self, s: Session, sh: Shared) -> Move:
        """R1; where a rewind is finished, what was begun."""
        ledger = self.ledger(s.known)
        if s.driver == RESUME:
            if ledger.rewinding is None:
                return "R1: nothing was begun", ended("nothing"), sh, ""
            if self.broken == "resume-as-begun":
                return "R1: resume", self._begun(s, ledger.rewinding.token), sh, ""
            return "R1: resume", s._replace(pc="R2", todo=ledger.rewinding.named), sh, ""
        if ledger.rewinding is not None:
            return "R1: begun already", ended("nothing"), sh, ""
        target = self.scenario.target
        unsettled = [c for c, (_, settled) in ledger.checkpoints.items() if not settled]
        if target and not ledger.checkpoints.get(target, ((), False))[1]:
            return "R1: no such checkpoint", ended("nothing"), sh, ""
        if not (target or unsettled or ledger.undecided or ledger.voided):
            return "R1: nothing to rewind", ended("nothing"), sh, ""
        firsts = [min(ledger.checkpoints[c][0]) - 1 for c in unsettled] + [b - 1 for b in ledger.voided]
        batch = max(ledger.checkpoints[target][0]) if target else min([decided(ledger), *firsts])
        if not self._can_go_back(sh, batch):
            return f"R1: Spark can't go on after {batch}", ended("too far"), sh, ""
        named = tuple(c for c in sorted(ledger.checkpoints) if target and c > target)
        if self.broken == "abort-first" and ledger.undecided:
            return "R1: choose", s._replace(pc="R1abort", todo=self._prepared_handles(ledger)), sh, ""
        return f"R1: choose {target}", s._replace(pc="R2", todo=named), sh, ""

    @staticmethod
    def _can_go_back(sh: Shared, batch: int) -> bool:
        if batch < 0:
            return not sh.offsets or has(sh.offsets, 0)
        done = has(sh.commits, batch) or newest(sh.offsets) == batch
        before = batch == 0 or has(sh.offsets, batch - 1)
        return done and has(sh.offsets, batch) and before

    def _begun(self, s: Session, token: int = 0) -> Session:
        ledger = self.ledger(s.known)
        s = s._replace(token=token or ledger.position, todo=())
        return s._replace(pc="Slook") if ledger.unsettled else self._abort_prepared(s)

    def _prepared_handles(self, ledger: Ledger) -> tuple[int, ...]:
        return tuple(h for b in ledger.undecided for h in open_handles(ledger.batches[b]))

    def _abort_prepared(self, s: Session) -> Session:
        """R4."""
        todo = self._prepared_handles(self.ledger(s.known))
        return s._replace(pc="R4abort" if todo else "sweep", todo=todo)

    def _back_to(self, s: Session) -> tuple[int, int]:
        """The micro-batch after which Spark goes on, and the checkpoint that is kept."""
        ledger = self.ledger(s.known)
        target = ledger.rewinding.target if ledger.rewinding else self.scenario.target
        if target:
            return max(ledger.checkpoints[target][0]), 0
        if ledger.unsettled:
            covered = ledger.checkpoints[ledger.unsettled][0]
            first = min(b for b in covered if lost_parts(ledger.batches[b]))
            return min(first, first if ledger.replay is None else ledger.replay) - 1, ledger.unsettled
        if ledger.replay is not None and self.broken != "replay-settled":  # Spark has not come to its end
            return ledger.replay - 1, ledger.batches[ledger.replay].checkpoint
        return decided(ledger), 0

    def _list_logs(self, s: Session, sh: Shared) -> Move:
        """R6: what has to go, from the highest micro-batch down."""
        last, kept = self._back_to(s)
        replay = bool(kept) or last < 0
        possible = has(sh.offsets, last + 1) and (last < 0 or (has(sh.offsets, last) and has(sh.commits, last)))
        if not (possible if replay and sh.offsets else self._can_go_back(sh, last)):
            return f"R6: Spark can't go on after {last}", ended("too far"), sh, ""
        highest = max(newest(sh.offsets), newest(sh.commits))
        todo = [2 * b + 1 for b in range(last + 1, highest + 1) if has(sh.commits, b)]
        todo += [2 * b for b in range(last + 1 + replay, highest + 1) if has(sh.offsets, b)]
        after = s._replace(pc="R6delete", todo=tuple(sorted(todo, reverse=True)))
        return f"R6: Spark goes back to {last}", after if todo else self._listed_logs(after), sh, ""

    def _delete_log(self, s: Session, sh: Shared) -> Move:
        batch, is_commit = divmod(s.todo[0], 2)
        after = s._replace(todo=s.todo[1:])
        left = ~(1 << batch)
        then = sh._replace(commits=sh.commits & left) if is_commit else sh._replace(offsets=sh.offsets & left)
        label = f"R6: delete {'commits' if is_commit else 'offsets'}/{batch}"
        return label, after if after.todo else self._listed_logs(after), then, ""

    def _listed_logs(self, s: Session) -> Session:
        """The logs are looked at a second time."""
        if s.back == "" and self.broken != "logs-once":
            return s._replace(pc="R6", back="again")
        return ended("rewound") if self.broken == "logs-last" else s._replace(pc="R7", back="")

    def _done(self, s: Session) -> Session:
        return s._replace(pc="R6") if self.broken == "logs-last" else ended("rewound")

    # -- all together -----------------------------------------------------------------------------------------------

    def step(self, s: Session, sh: Shared) -> Moves:
        """The next step of a session."""
        if s.pc == "start":
            return iter([self._begin_spark(s, sh)])
        if s.pc == "offset":
            return iter([self._write_offsets(s, sh)])
        if s.pc == "P1":
            return iter([self._view(s, sh)])
        if s.pc == "P3mark":
            return self._append(s, sh, ("mark", s.token), self._own(s), self._recover)
        if s.pc == "C1" and not has(sh.offsets, s.batch):
            return iter([("C1: its offsets are gone", ended("raised"), sh, "")])
        if s.pc[0] == "R":
            return self._rewind(s, sh)
        return super().step(s, sh)

    def initial(self) -> tuple[int, ...]:
        """No driver has started."""
        state = super().initial()
        scenario = self.scenario
        sent = scenario.sent or len({batch for batch, _, _ in scenario.handles})
        shared = self._shareds.values[state[0]]
        shared = shared._replace(commits=(1 << scenario.committed) - 1, offsets=(1 << sent) - 1, lates=scenario.lates)
        return (self._shareds(shared), *state[1:])

    def _starts(self, state: tuple[int, ...], i: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        driver = self.scenario.drivers[i - 1]
        sessions = [self._sessions.values[number] for number in state[1:i]]
        if self._waits(driver, sessions):
            return
        if self._begins(driver):
            begun = Session("R1", driver, batch=-1, phase="R")
            before = [self._rewound(s) for s in sessions]
        else:
            begun = Session("start", driver)
            before = [self._stopped(s) if s.driver == driver else s for s in sessions]
        numbers = (self._sessions(s) for s in (*before, begun))
        yield f"{i}{driver} starts", (state[0], *numbers, *state[i + 1 :]), ""

    def _begins(self, driver: str) -> bool:
        """Whether it is a command, no driver."""
        return driver in (BEGIN, RESUME)

    def _waits(self, driver: str, sessions: list[Session]) -> bool:
        """A rewind that is about to begin would see the driver's process."""
        if self._begins(driver) or self.scenario.living:
            return False
        return any(s.driver == BEGIN and s.pc in ("R1", "R2") for s in sessions)

    def _rewound(self, s: Session) -> Session:
        """Another rewind was killed; the query was stopped, if it was."""
        if s.phase == "R":
            return ended("killed")
        return s if self.scenario.living else self._stopped(s)

    def _stopped(self, s: Session) -> Session:
        return ended("stopped") if s.pc in ("start", "offset") else super()._stopped(s)

    def moves(self, state: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Every step of every session, and what the environment does."""
        yield from super().moves(state)
        sh = self._shareds.values[state[0]]
        for i, (number, entry) in enumerate(sh.late):
            then, violation = self._take_place(sh._replace(late=(*sh.late[:i], *sh.late[i + 1 :])), number, entry)
            yield f"create {number} {entry} takes place", (self._shareds(then), *state[1:]), violation

    def _take_place(self, sh: Shared, number: int, entry: Entry) -> tuple[Shared, str]:
        """A create, late."""
        if number <= self.ledger(sh.node).position:
            return sh, ""
        return self._created(sh, entry), self._check_entry(entry, sh)

    def exits(self, seen: set[tuple[int, ...]]) -> tuple[int, str]:
        """From every state a new driver, alone, ends well, with rewinds where it asks for them."""
        tried = {self._shareds.values[state[0]]._replace(expiries=0, lates=0, late=()) for state in seen}
        for sh in tried:
            stuck = self._ends_well(sh)
            if stuck:
                return len(tried), f"{stuck}: {self.entries(sh.node)} {sh}"
        return len(tried), ""

    def _alone(self, s: Session, sh: Shared, labels: list[str]) -> tuple[str, Shared, str]:
        """One session to its end, undisturbed: how it ends, what is there then, and what went wrong."""
        while s.pc != "end":
            label, s, sh, violation = next(iter(self.step(s, sh)))
            labels.append(label)
            if violation or len(labels) > 400:
                return s.back, sh, violation or "endless"
        return s.back, sh, ""

    AGAIN = frozenset({"rewind", "rewinding", "rewound"})
    """How a session ends after which another one goes on."""

    def _rounds(self, sh: Shared, following: Callable[[Shared, str], Session]) -> tuple[str, Shared, list[str], str]:
        """One session after the other: how the last ends, what is there then, the steps, and what went wrong."""
        how, violation, labels = "", "", list[str]()
        for _ in range(ROUNDS):
            how, sh, violation = self._alone(following(sh, how), sh, labels)
            if violation or how not in self.AGAIN:
                break
        return how, sh, labels, violation

    def _following(self, sh: Shared, how: str) -> Session:
        if self.ledger(sh.node).rewinding:
            return Session("R1", RESUME, batch=-1, phase="R")
        if how == "rewind":
            return Session("R1", BEGIN, batch=-1, phase="R")
        return Session("start", "Z")

    def _ends_well(self, sh: Shared) -> str:
        """Empty, or why it does not end well."""
        how, sh, labels, violation = self._rounds(sh, self._following)
        if violation:
            return f"{violation} {labels}"
        if how in ("ok", "idle"):
            last = len(self.scenario.closes) - 1
            incomplete = self._check_complete(sh, last)
            if not incomplete or (self.scenario.living and self.ledger(sh.node).unsettled):
                return ""  # the next planning settles it
            if self.ledger(sh.node).accounted >= last:
                return incomplete
            how = "inconsistent"  # the next planning is refused
        if self.scenario.living and how in BY_HAND:
            self.by_hand += 1
            return ""
        return f"no exit, {how}, {labels}"


def newest(files: int) -> int:
    """The highest micro-batch in a folder of Spark's; -1 where it is empty."""
    return files.bit_length() - 1


def has(files: int, batch: int) -> bool:
    """Whether a folder of Spark's holds a micro-batch's file."""
    return bool(files >> batch & 1)


def decided(ledger: Ledger) -> int:
    """The last micro-batch that is decided; -1 for none."""
    return max((b for b, r in ledger.batches.items() if r.checkpoint), default=-1)
