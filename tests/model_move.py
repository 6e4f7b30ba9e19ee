"""The journal model with claims: a query goes on at another place, and the old one is closed.

Among the letters of a scenario's starts, ``>`` claims the savepoint of checkpoint `Scenario.saved`, or finishes a claim that
was killed; a small letter is a driver at the new place, which starts when that is there. The steps are R1 to R4 of
`transactional.rewind`, then ``away`` (the entry `moved` in the old journal), then N4 (the new place appears, with a journal
that begins at that number).

After N4 there are two places, each with a journal and Spark's logs of its own, and one store: `Shared` holds the new place,
`Shared.old` the former. That a sweep leaves newer numbers alone is what keeps the new place's transactions from the old
driver: such a sweep does not see them here, and ``numbers-again`` says what comes of it if it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model_ledger import Entry, Ledger
from tests.model_rewind import BY_HAND, RESUME, RewindModel
from tests.model_steps import ABORTED, COMMITTED, OPEN, Judge, Move, Moves, Session, Shared, ended

__all__ = ["CLAIM", "MoveModel"]

CLAIM = ">"
BEGIN_THERE = "~"
"""A rewind at the new place."""


class MoveModel(RewindModel):
    """The moves of a scenario in which the query is claimed."""

    # -- two places ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_there(s: Session) -> bool:
        return s.driver.islower() or s.driver == BEGIN_THERE

    def _at_old(self, sh: Shared) -> Shared:
        """What the old place's processes see."""
        node, offsets, commits = sh.old
        handles = sh.handles
        if self.broken != "numbers-again":
            handles = tuple((b, p, ABORTED if h in sh.theirs else x) for h, (b, p, x) in enumerate(handles))
        return sh._replace(node=node, offsets=offsets, commits=commits, handles=handles, old=())

    def _back(self, before: Shared, then: Shared) -> tuple[Shared, str]:
        """Both places, after a step at the old one."""
        violation = ""
        if then.node != before.old[0]:
            violation = "an entry follows `moved`"
        handles = list(then.handles)
        for h, (batch, partition, state) in enumerate(before.handles):
            if h in before.theirs and self.broken != "numbers-again":
                handles[h] = (batch, partition, state)
            elif handles[h][2] != state:
                if handles[h][2] == COMMITTED:
                    violation = "the old place's driver commits after `moved`"
                elif h in before.theirs:
                    violation = "the old place's driver aborts a transaction of the new place"
        return (
            then._replace(
                node=before.node,
                offsets=before.offsets,
                commits=before.commits,
                handles=tuple(handles),
                old=(then.node, then.offsets, then.commits),
            ),
            violation,
        )

    def step(self, s: Session, sh: Shared) -> Moves:
        """The next step of a session."""
        if s.pc == "N4":
            yield self._appear(s, sh)
        elif self._is_there(s):
            for label, after, then, violation in super().step(s, sh):
                new = range(len(sh.handles), len(then.handles))
                yield label, after, then._replace(theirs=(*then.theirs, *new)), violation
        elif sh.old:
            for label, after, then, violation in super().step(s, self._at_old(sh)):
                both, broken = self._back(sh, then)
                yield label, after, both, violation or broken
        else:
            yield from super().step(s, sh)

    def _take_place(self, sh: Shared, number: int, entry: Entry) -> tuple[Shared, str]:
        if not sh.old:
            return super()._take_place(sh, number, entry)
        then, violation = super()._take_place(self._at_old(sh), number, entry)
        both, broken = self._back(sh, then)
        return both, violation or broken

    # -- the old journal is closed --------------------------------------------------------------------------------------

    def _append(self, s: Session, sh: Shared, entry: Entry, judge: Judge, then: Callable[[Session], Session]) -> Moves:
        """Nothing follows `moved`, whoever asks."""
        strict: Judge = lambda ledger: (not ledger.moved or self.broken == "moved-ignored") and judge(ledger)  # noqa: E731
        lates = sh.lates
        if self._is_there(s):
            sh = sh._replace(lates=0)
        for label, after, now, violation in super()._append(s, sh, entry, strict, then):
            yield label, after, now._replace(lates=lates) if self._is_there(s) else now, violation

    def _owns(self, s: Session, ledger: Ledger) -> bool:
        return not ledger.moved and super()._owns(s, ledger)

    def _claim(self, s: Session) -> Session:
        moved = self.ledger(s.known).moved and self.broken != "moved-ignored"
        return ended("moved") if moved else super()._claim(s)

    def _created(self, sh: Shared, entry: Entry) -> Shared:
        after = super()._created(sh, entry)
        return self._given(after, self._last(sh)) if entry[0] == "away" else after

    def _last(self, sh: Shared) -> int:
        return max(self.ledger(sh.node).checkpoints[self.scenario.saved][0])

    def _check_entry(self, entry: Entry, sh: Shared) -> str:
        return super()._check_entry(entry, sh) or (self._check_away(sh) if entry[0] == "away" else "")

    def _check_away(self, sh: Shared) -> str:
        ledger, last = self.ledger(sh.node), self._last(sh)
        if ledger.unsettled:
            return "a checkpoint is left unsettled where nobody settles it"
        if any(self._state(sh, h) in OPEN for h in ledger.known):
            return "a claim leaves prepared what nobody commits"
        again = {b for b, _, state in sh.handles if state == COMMITTED and b > last}
        named = set(ledger.rewinding.named if ledger.rewinding else ())
        return (
            ""
            if {ledger.batches[b].checkpoint for b in again} <= named
            else "a claim writes again what it did not name"
        )

    # -- the claim ------------------------------------------------------------------------------------------------------

    def _swept(self, s: Session) -> Session:
        if s.driver != CLAIM or s.phase != "R":
            return super()._swept(s)
        return ended("part committed") if self.ledger(s.known).unsettled else s._replace(pc="Rmoved", todo=())

    def _rewind(self, s: Session, sh: Shared) -> Moves:
        known = self.ledger(s.known)
        if s.driver != CLAIM or s.pc == "R4abort":
            yield from super()._rewind(s, sh)
        elif s.pc == "R1":
            yield self._choose_claim(s._replace(known=sh.node), sh)
        elif s.pc == "R2":
            same: Judge = lambda ledger: self.broken == "claim-judge" or ledger.position == known.position  # noqa: E731
            unsettled = self.broken == "moved-unsettled"
            begun = (
                (lambda a: a._replace(pc="Rmoved", token=self.ledger(a.known).position)) if unsettled else self._begun
            )
            yield from self._append(s, sh, ("begun", 0, s.todo), same, begun)
        else:
            yield from self._append(s, sh, ("away",), self._own(s), lambda a: a._replace(pc="N4"))

    def _choose_claim(self, s: Session, sh: Shared) -> Move:
        """R1, and what comes after the savepoint is named."""
        ledger, saved = self.ledger(s.known), self.scenario.saved
        if ledger.moved:
            return "R1: moved already", ended("nothing") if sh.old else s._replace(pc="N4"), sh, ""
        named = tuple(c for c in sorted(ledger.checkpoints) if c > saved)
        if named and not self.scenario.allow:
            return f"R1: {named} would be written again", ended("refused"), sh, ""
        first = "N4" if self.broken == "here-first" else "R2"
        return f"R1: claim {saved}", s._replace(pc=first, todo=named), sh, ""

    def _appear(self, s: Session, sh: Shared) -> Move:
        """N4: renamed to its place."""
        if sh.old:
            return "N4: it is there", ended("claimed"), sh, ""
        ledger = self.ledger(sh.node)
        former = self._nodes[sh.node][0] if ledger.moved else sh.node
        last = self._last(sh)
        upto = (2 << last) - 1
        after = sh._replace(
            node=self.child(former, ("here", last, self.scenario.saved)),
            offsets=upto,
            commits=upto,
            old=(sh.node, sh.offsets, sh.commits),
        )
        return "N4: the new place", s._replace(pc="R2") if self.broken == "here-first" else ended("claimed"), after, ""

    # -- all together ---------------------------------------------------------------------------------------------------

    def _starts(self, state: tuple[int, ...], i: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        driver = self.scenario.drivers[i - 1]
        if driver.islower() and not self._shareds.values[state[0]].old:
            return
        yield from super()._starts(state, i)

    def _begins(self, driver: str) -> bool:
        return driver == CLAIM or super()._begins(driver)

    def _ends_well(self, sh: Shared) -> str:
        """A claim that was begun ends well whether it is said again or given up."""
        return self._goes_on(sh, CLAIM) or self._goes_on(sh, RESUME)

    AGAIN = RewindModel.AGAIN | {"claimed", "part committed", "refused"}

    def _goes_on(self, sh: Shared, begun: str) -> str:
        def following(sh: Shared, how: str) -> Session:
            if sh.old:
                return Session("R1", BEGIN_THERE, batch=-1, phase="R") if how == "rewind" else Session("start", "z")
            if self.ledger(sh.node).moved:
                return Session("R1", CLAIM, batch=-1, phase="R")
            if self.ledger(sh.node).rewinding:
                by = RESUME if how in ("part committed", "refused") else begun
                return Session("R1", by, batch=-1, phase="R")
            return self._following(sh, how)

        how, sh, labels, violation = self._rounds(sh, following)
        if violation:
            return f"{violation} {labels}"
        if how in ("ok", "idle"):
            incomplete = self._check_complete(sh, len(self.scenario.closes) - 1)
            return f"{incomplete} {labels}" if incomplete else ""
        if self.scenario.living and how in BY_HAND and not sh.old:
            self.by_hand += 1
            return ""
        return f"no exit, {how}, {labels}"
