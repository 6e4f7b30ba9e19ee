"""The journal model with claims: a query goes on at a new location, and its origin is closed.

Among the letters of a scenario's starts, ``>`` claims the savepoint of checkpoint `Scenario.saved`, or runs the same command
again, beside one that is still at it; a small letter is a driver at the new location, which starts when that has an entry.
The steps are those of `connector.savepoints.restore`:

T0 look at both journals     T1 the new journal's first entry, which closes it     T2 copy Spark's logs, in two steps
T3 ``away`` (the entry `moved`) in the origin's journal, judged: nothing is open there, and the checkpoint is the last
T4 ``opened`` in the new journal, whose numbers go on from that of ``away``

There are two locations, each with a journal and Spark's logs of its own, and one store: `Shared` holds the origin,
`Shared.there` the new one. A sweep leaves newer numbers alone, which keeps the new location's transactions from the old
driver: it does not see them here. The break ``numbers-again`` shows what happens if it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model_ledger import Entry, Ledger
from tests.model_rewind import BEGIN, BY_HAND, RESUME, RewindModel
from tests.model_steps import ABORTED, COMMITTED, OPEN, Judge, Move, Moves, Scenario, Session, Shared, ended

__all__ = ["CLAIM", "MoveModel"]

CLAIM = ">"
BEGIN_THERE = "~"
"""A rewind at the new location."""

STEPS = {"T1": "T2", "T2": "T2more", "T2more": "T3", "T3": "T4", "T4": ""}
"""What follows each step of a claim."""

BROKEN_STEPS = {
    "opened-first": {**STEPS, "T2more": "T4", "T4": "T3", "T3": ""},
    "moved-first": {**STEPS, "T1": "T3", "T3": "T2", "T2more": "T4"},
}


class MoveModel(RewindModel):
    """The moves of a scenario in which the query is claimed."""

    def __init__(self, scenario: Scenario, broken: str = "") -> None:
        super().__init__(scenario, broken)
        node = 0
        for entry in scenario.journal:
            node = self.child(node, entry)
        self._saved = self.ledger(node)
        self._last = max(self._saved.checkpoints[scenario.saved][0])
        self._following_steps = BROKEN_STEPS.get(broken, STEPS)

    # -- two locations ------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_there(s: Session) -> bool:
        return s.driver.islower() or s.driver == BEGIN_THERE

    @staticmethod
    def _swapped(sh: Shared) -> Shared:
        """The same, seen from the other location."""
        node, offsets, commits = sh.there
        return sh._replace(node=node, offsets=offsets, commits=commits, there=(sh.node, sh.offsets, sh.commits))

    def _hidden(self, sh: Shared) -> Shared:
        """What the origin's processes see: a sweep leaves newer numbers alone."""
        if self.broken == "numbers-again":
            return sh
        handles = tuple((b, p, ABORTED if h in sh.theirs else x) for h, (b, p, x) in enumerate(sh.handles))
        return sh._replace(handles=handles)

    def _shown(self, before: Shared, then: Shared) -> tuple[Shared, str]:
        """Undo `_hidden` after a step at the origin, and say what the step should not have done."""
        violation = ""
        moved = self.ledger(before.node).moved
        if moved and then.node != before.node:
            violation = "an entry follows `moved`"
        handles = list(then.handles)
        for h, (batch, partition, state) in enumerate(before.handles):
            if h in before.theirs and self.broken != "numbers-again":
                handles[h] = (batch, partition, state)
            elif handles[h][2] != state:
                if handles[h][2] == COMMITTED and moved:
                    violation = "the origin's driver commits after `moved`"
                elif handles[h][2] == COMMITTED and handles.count(handles[h]) > 1:
                    violation = "two committed handles for one part"
                elif h in before.theirs:
                    violation = "the origin's driver aborts a transaction of the new location"
        return then._replace(handles=tuple(handles)), violation

    def step(self, s: Session, sh: Shared) -> Moves:
        """The next step of a session."""
        if s.driver == CLAIM:
            yield from self._restore(s, sh)
        elif self._is_there(s):
            lates = sh.lates
            for label, after, then, violation in super().step(s, self._swapped(sh)._replace(lates=0)):
                new = range(len(sh.handles), len(then.handles))
                yield label, after, self._swapped(then)._replace(theirs=(*then.theirs, *new), lates=lates), violation
        else:
            for label, after, then, violation in super().step(s, self._hidden(sh)):
                both, broken = self._shown(sh, then)
                yield label, after, both, violation or broken

    # -- what drivers and rewinds may not do ----------------------------------------------------------------------------

    def _append(self, s: Session, sh: Shared, entry: Entry, judge: Judge, then: Callable[[Session], Session]) -> Moves:
        """Nothing follows `moved`, and nothing but `opened` the first entry of a restore, whoever asks."""

        def strict(ledger: Ledger) -> bool:
            if ledger.moved and self.broken != "moved-ignored":
                return False
            closed = ledger.restoring and self.broken != "starts-between"
            return (not closed or entry[0] == "opened") and judge(ledger)

        yield from super()._append(s, sh, entry, strict, then)

    def _owns(self, s: Session, ledger: Ledger) -> bool:
        return not ledger.moved and super()._owns(s, ledger)

    def _claim(self, s: Session) -> Session:
        ledger = self.ledger(s.known)
        if ledger.moved and self.broken != "moved-ignored":
            return ended("moved")
        if ledger.restoring and self.broken != "starts-between":
            return ended("unfinished")
        return super()._claim(s)

    def _check_entry(self, entry: Entry, sh: Shared) -> str:
        return super()._check_entry(entry, sh) or (self._check_away(sh) if entry[0] == "away" else "")

    def _check_away(self, sh: Shared) -> str:
        ledger = self.ledger(sh.node)
        if ledger.unsettled:
            return "a checkpoint is left unsettled where nobody settles it"
        if any(self._state(sh, h) in OPEN for h in ledger.known):
            return "a claim leaves prepared what nobody commits"
        again = any(state == COMMITTED and b > self._last for b, _, state in sh.handles)
        return "a claim writes again what is committed" if again else ""

    # -- the restore ----------------------------------------------------------------------------------------------------

    def _restore(self, s: Session, sh: Shared) -> Moves:
        if s.pc == "T0":
            yield self._look(s, sh)
        elif s.pc in ("T2", "T2more"):
            yield self._copy(s, sh)
        elif s.pc == "T3":
            yield from self._move(s, sh)
        else:
            for label, after, then, violation in self._journal_there(s, self._swapped(sh)._replace(lates=0)):
                yield label, after, self._swapped(then)._replace(lates=sh.lates), violation

    def _next(self, s: Session, sh: Shared) -> Session:
        """The following step, with what it reads first."""
        pc = self._following_steps[s.pc]
        if not pc:
            return ended("claimed")
        return s._replace(pc=pc, known=sh.node if pc == "T3" else sh.there[0] if pc in ("T1", "T4") else 0)

    def _look(self, s: Session, sh: Shared) -> Move:
        origin, there = self.ledger(sh.node), self.ledger(sh.there[0])
        if there.opened and self.broken != "second-restore":
            return "T0: it is open", ended("nothing"), sh, ""
        if not origin.moved and not self._settled_at(origin) and self.broken != "claim-judge":
            return "T0: the origin is not at the checkpoint", ended("refused"), sh, ""
        if sh.disposed and not origin.moved:
            return "T0: the savepoint is gone", ended("refused"), sh, ""
        if self.broken == "no-first-entry":
            return "T0", self._next(s._replace(pc="T1"), sh), sh, ""
        return "T0", s._replace(pc="T1", known=sh.there[0]), sh, ""

    def _settled_at(self, ledger: Ledger) -> bool:
        """What `away` rests on: nothing is open, no run goes on, and the saved checkpoint is the last."""
        last = max(ledger.checkpoints, default=0) == self.scenario.saved
        if self.broken == "moved-unsettled":
            return ledger.rewinding is None and self.scenario.saved in ledger.checkpoints
        if self.broken == "moved-prepared":
            return ledger.rewinding is None and last
        settled = not (ledger.unsettled or ledger.undecided or ledger.live or ledger.rewinding)
        return settled and last and ledger.replay is None

    def _journal_there(self, s: Session, sh: Shared) -> Moves:
        """T1 and T4; `sh` is seen from the new location."""
        origin = self.ledger(sh.there[0])
        after: Callable[[Session], Session] = lambda a: self._next(a, self._swapped(sh))  # noqa: E731
        ledger = self.ledger(s.known)
        if s.pc == "T1":
            if ledger.position:
                done = ledger.restoring or self.broken == "second-restore"
                yield "T1: it is there", after(s) if done else ended("nothing"), sh, ""
                return
            yield from self._append(s, sh, ("restoring",), lambda found: not found.position, after)
            return
        first = self.broken == "no-first-entry"
        saved = self._saved
        number = 2 if self.broken == "numbers-again" or not origin.moved else origin.position
        entry: Entry = (
            "opened",
            number,
            tuple((b, r.entry, r.checkpoint) for b, r in sorted(saved.batches.items()) if b <= self._last),
            tuple((c, covered) for c, (covered, _) in sorted(saved.checkpoints.items()) if c <= self.scenario.saved),
            tuple(sorted(saved.ever)),
        )
        closed: Judge = lambda found: (  # noqa: E731
            found.restoring or (first and not found.position) or self.broken == "second-restore"
        )
        yield from self._append(s, sh, entry, closed, after)

    def _copy(self, s: Session, sh: Shared) -> Move:
        """T2."""
        origin, there = self.ledger(sh.node), self.ledger(sh.there[0])
        moved = origin.moved and self.broken != "moved-first"
        if (moved or there.opened) and self.broken != "second-restore":
            return f"{s.pc}: was done before `moved`", self._next(s, sh), sh, ""
        if sh.disposed:
            return f"{s.pc}: the savepoint is gone", ended("refused"), sh, ""
        upto = (2 << self._last) - 1
        node, offsets, commits = sh.there
        if self.broken == "second-restore":
            offsets, commits = (upto, commits) if s.pc == "T2" else (offsets, upto)
        else:
            offsets, commits = (offsets | upto, commits) if s.pc == "T2" else (offsets, commits | upto)
        return f"{s.pc}: copy logs", self._next(s, sh), sh._replace(there=(node, offsets, commits)), ""

    def _move(self, s: Session, sh: Shared) -> Moves:
        """T3; judged at every number that it tries."""
        if self.ledger(s.known).moved:
            yield "T3: moved already", self._next(s, sh), sh, ""
            return
        judge: Judge = lambda ledger: self.broken == "claim-judge" or self._settled_at(ledger)  # noqa: E731
        yield from self._append(s, sh, ("away",), judge, lambda a: self._next(a, sh._replace(node=a.known)))

    # -- all together ---------------------------------------------------------------------------------------------------

    def _starts(self, state: tuple[int, ...], i: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        driver = self.scenario.drivers[i - 1]
        if driver == CLAIM:
            begun = self._sessions(Session("T0", CLAIM, batch=-1, phase="T"))
            yield f"{i}{driver} starts", (*state[:i], begun, *state[i + 1 :]), ""
            return
        sh = self._shareds.values[state[0]]
        if driver.islower() and not (sh.there[0] or sh.there[1]):
            return
        yield from super()._starts(state, i)

    def _stopped(self, s: Session) -> Session:
        return s if s.driver == CLAIM else super()._stopped(s)

    def _raise(self, s: Session, sh: Shared, label: str) -> Move:
        return (label, ended("raised"), sh, "") if s.driver == CLAIM else super()._raise(s, sh, label)

    def moves(self, state: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Every step of every session, and what the environment does."""
        yield from super().moves(state)
        sh = self._shareds.values[state[0]]
        if self.scenario.disposes and not sh.disposed:
            yield "the savepoint is disposed of", (self._shareds(sh._replace(disposed=True)), *state[1:]), ""

    def finished(self, seen: set[tuple[int, ...]]) -> frozenset[tuple[Entry, ...]]:
        """At whichever location the query goes on."""
        found = set()
        wanted = [(b, p) for b in range(len(self.scenario.closes)) for p in range(self.scenario.parts)]
        for sh in {self._shareds.values[state[0]] for state in seen}:
            here = self._swapped(sh) if self.ledger(sh.there[0]).opened else sh
            committed = sorted((b, p) for b, p, state in sh.handles if state == COMMITTED)
            if self._through(here) and committed == wanted:
                found.add((*self.entries(sh.node), *self.entries(sh.there[0])))
        return frozenset(found)

    def _ends_well(self, sh: Shared) -> str:
        """A restore that was begun ends well whether its command is run again or given up."""
        return self._goes_on(sh, again=True) or self._goes_on(sh, again=False)

    AGAIN = RewindModel.AGAIN | {"claimed", "refused", "nothing"}

    def _goes_on(self, sh: Shared, again: bool) -> str:
        def following(sh: Shared, how: str) -> Session:
            if self.ledger(sh.there[0]).opened:
                return Session("R1", BEGIN_THERE, batch=-1, phase="R") if how == "rewind" else Session("start", "z")
            if self.ledger(sh.node).moved or (again and not how):
                return Session("T0", CLAIM, batch=-1, phase="T")
            if self.ledger(sh.node).rewinding:
                return Session("R1", RESUME, batch=-1, phase="R")
            return Session("R1", BEGIN, batch=-1, phase="R") if how == "rewind" else Session("start", "Z")

        how, sh, labels, violation = self._rounds(sh, following)
        if violation:
            return f"{violation} {labels}"
        if how in ("ok", "idle"):
            incomplete = self._check_complete(sh, len(self.scenario.closes) - 1)
            return f"{incomplete} {labels}" if incomplete else ""
        if self.scenario.living and how in BY_HAND:
            self.by_hand += 1
            return ""
        return f"no exit, {how}, {labels}"
