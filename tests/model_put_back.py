"""The journal model with an older copy of the location: taken at some moment, put back at a later one.

Somebody copies the journal and Spark's logs in one instant (a snapshot of a volume), and later, with every process of the
query gone, puts the copy back. The store stays as it is. (A copy from before the first run is a new query's location: whether
its prefix may have been used before, nobody can say.) Steps that only this model has:

- ``P3look`` is `TwoPhaseCommitSink.checkHistory`: it compares the store with the journal before ``run`` is journalled.
- ``P3guard`` is `guardRun`: the epoch of the prefix grows by one. A driver may die between it and ``P3mark``.
- ``P3check`` is `guardRun` with the mark of a run that goes on: the epoch has to be as it was.

Handles are numbered in the order in which their transactions began, so a number stands for that time (`stamp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model_ledger import Entry
from tests.model_steps import COMMITTED, PUT_BACK, Judge, Model, Move, Moves, Session, Shared, ended

__all__ = ["PutBackModel"]


class History(NamedTuple):
    """What a journal knows of its store; see `transactional.history`.

    Attributes
    ----------
    began : int
        The newest transaction that it accounts for.
    binding : bool
        A run began here before.
    marks : frozenset[int]
        Epochs of the prefix that were recorded.
    marked : bool
        Every run has recorded one.
    """

    began: int
    binding: bool
    marks: frozenset[int]
    marked: bool


class PutBackModel(Model):
    """The moves of a scenario in which an older copy of the location is put back."""

    # -- what the journal knows -------------------------------------------------------------------------------------

    def _history(self, node: int) -> History:
        entries, ledger = self.entries(node), self.ledger(node)
        runs = {number: entry for number, entry in enumerate(entries, 1) if entry[0] == "run"}
        marks = [(entry[1], entry[2]) for entry in entries if entry[0] == "mark"]
        began = [entry[2] for entry in entries if entry[0] == "settled" and len(entry) > 2]
        if runs:
            began.append(_seen(runs[max(runs)]))
        if ledger.unsettled and self.broken != "unsettled-unknown":
            began += [h for _, chain in ledger.chains(ledger.unsettled) for h, _ in chain]
        return History(
            max(began, default=-1),
            bool(runs),
            frozenset(epoch for _, epoch in marks),
            {*runs} <= {token for token, _ in marks} or self.broken == "unmarked-judged",
        )

    def _is_put_back(self, node: int, sh: Shared) -> bool:
        known = self._history(node)
        if not known.binding or self.broken == "put-back-unseen":
            return False
        if known.marked and sh.epoch not in known.marks:
            return True
        return self.broken != "stamps-unseen" and _newest(sh) > known.began

    # -- the steps --------------------------------------------------------------------------------------------------

    def _claim(self, s: Session) -> Session:
        """A planning keeps its driver's run if it has a mark, and no earlier run has recorded one since it began."""
        after = super()._claim(s)
        if after.pc in ("end", "P3fence"):
            return after
        if after.pc == "P3claim":
            return after._replace(pc="P3look")
        marked = self._marks_since(s.known, after.token)
        if self.broken == "guarded-twice":
            return after if after.token in marked else after._replace(pc="P3guard")
        if not marked or ({*marked} != {after.token} and self.broken != "overtaken-kept"):
            return s._replace(pc="P3look", token=0)
        return s._replace(pc="P3check", token=after.token)

    def _marks_since(self, node: int, token: int) -> list[int]:
        """Whose marks were recorded since a run began."""
        return [entry[1] for entry in self.entries(node)[token:] if entry[0] == "mark"]

    def _claimed(self, s: Session) -> Session:
        super()._claimed(s)
        return s._replace(pc="P3guard", token=self.ledger(s.known).position)

    def _plan(self, s: Session, sh: Shared) -> Moves:
        if s.pc == "P3look":
            if not self._is_put_back(s.known, sh):
                yield "P3look", s._replace(pc="P3claim", seen=_newest(sh)), sh, ""
            elif s.known != sh.node:
                yield "P3look: the journal has grown", self._claim(s._replace(known=sh.node)), sh, ""
            else:
                violation = "" if sh.copy == PUT_BACK else "a location that was not put back is refused"
                yield "P3look: an older copy", ended("put back"), sh, violation
        elif s.pc == "P3check":
            yield self._check(s, sh)
        elif s.pc == "P3claim":
            claimable: Judge = lambda ledger: self._claimable(ledger, s)  # noqa: E731
            yield from self._append(s, sh, ("run", s.driver, s.seen), claimable, self._claimed)
        elif s.pc == "P3guard":
            epoch = sh.epoch + 1
            yield f"P3guard: epoch {epoch}", s._replace(pc="P3mark", seen=epoch), sh._replace(epoch=epoch), ""
        elif s.pc == "P3mark":
            always: Judge = lambda ledger: True  # noqa: E731
            yield from self._append(s, sh, ("mark", s.token, s.seen), always, self._marked)
        else:
            yield from super()._plan(s, sh)

    def _check(self, s: Session, sh: Shared) -> Move:
        """`guardRun` with the run's mark: who took the prefix may have been another planning of this query.

        If that one has no mark, nobody can tell it from another query: stop. The next run is not judged by the epoch.
        """
        known = self._history(s.known)
        if ("mark", s.token, sh.epoch) in self.entries(s.known):
            return "P3check: ours", self._recover(s), sh, ""
        if s.known != sh.node and self.broken != "taken-at-once":
            return "P3check: the journal has grown", self._claim(s._replace(known=sh.node)), sh, ""
        violation = "a query's own planning is taken for another query" if known.marked and sh.copy != PUT_BACK else ""
        return "P3check: taken", ended("taken"), sh, violation

    def _marked(self, s: Session) -> Session:
        s = s._replace(seen=-1)
        return self._recover(s) if self._owns(s, self.ledger(s.known)) else ended("fenced")

    def _created(self, sh: Shared, entry: Entry) -> Shared:
        """`settled` keeps when the newest transaction of its checkpoint began."""
        if entry[0] == "settled":
            handles = [h for _, chain in self.ledger(sh.node).chains(entry[1]) for h, _ in chain]
            entry = (*entry, max(handles, default=-1))
        return super()._created(sh, entry)

    # -- the copy ---------------------------------------------------------------------------------------------------

    def moves(self, state: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Every step of every session, and whoever copies the location and puts the copy back."""
        yield from super().moves(state)
        sh = self._shareds.values[state[0]]
        here = (sh.node, sh.offsets, sh.commits)
        if self.scenario.zombie:  # the driver lives: whoever puts a copy back ends it before
            return
        if not sh.copy and self._history(sh.node).binding:
            yield "the location is copied", (self._shareds(sh._replace(copy=here)), *state[1:]), ""
        elif sh.copy and sh.copy not in (PUT_BACK, here):
            node, offsets, commits = sh.copy
            back = sh._replace(node=node, offsets=offsets, commits=commits, copy=PUT_BACK)
            gone = self._sessions(ended("gone"))
            others = (gone if self._sessions.values[number].pc else number for number in state[1:])
            yield "the copy is put back", (self._shareds(back), *others), ""

    def _may_end(self, sh: Shared, how: str) -> bool:
        """A location that was not put back is never refused."""
        return super()._may_end(sh, how) or (how == "put back" and sh.copy == PUT_BACK)


def _seen(run: Entry) -> int:
    """What the store held when the run began; -1 for nothing, and for a run of the scenario's start."""
    return run[2] if len(run) > 2 else -1


def _newest(sh: Shared) -> int:
    return max((h for h, (_, _, state) in enumerate(sh.handles) if state == COMMITTED), default=-1)
