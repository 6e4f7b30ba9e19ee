"""The journal model with an older copy of the store: taken at some moment, put back at a later one, while drivers live.

The journal and Spark's logs stay as they are. What was prepared when the copy was taken is prepared again, and what began later
is gone. Or only the log of commits is put back (`_delta_log`): then what it does not have is prepared still.

Steps that only this model has:

- ``P3look`` is `TwoPhaseCommitSink.checkHistory`: a claim compares what the store holds with the journal. So does ``C5``, and
  ``Shold`` before a recovery commits.
- ``C8note`` and ``Snote``, only of a broken sink: it notes the id of a checkpoint in a step of its own, after the rows.

In the step that commits, a store compares once more, as `DecidedCheckpoint.after` lets it, and notes the checkpoint's id. What
expired, or a stale sweep aborted, is not in these scenarios: a copy may hold it prepared, as nothing proves it lost there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model_steps import ABORTED, COMMITTED, PREPARED, PUT_BACK, UNBOUND, Model, Moves, Session, Shared, ended

__all__ = ["STORE_BREAKS", "StoreBackModel"]

STORE_BREAKS = {
    "store-unasked": "nobody asks the store what it holds: no claim, no C5, no recovery and no commit",
    "commit-compares-not": "what a commit needs to be there is looked at before it only, and not in it",
    "note-apart": "the id of a checkpoint is noted in a step of its own, after its rows",
}


class StoreBackModel(Model):
    """The moves of a scenario in which an older copy of the store is put back."""

    # -- what the journal knows -------------------------------------------------------------------------------------

    def _settled_there(self, node: int) -> int:
        """The newest checkpoint that the journal has settled; 0 for none."""
        return max((number for number, (_, settled) in self.ledger(node).checkpoints.items() if settled), default=0)

    def _went_back(self, s: Session, sh: Shared) -> bool:
        return self.broken != "store-unasked" and sh.held < self._settled_there(s.known)

    def _missing(self, sh: Shared) -> list[int]:
        """Micro-batches that the journal has settled, and whose rows the store does not have."""
        there = {batch for batch, _, state in sh.handles if state == COMMITTED}
        return sorted(self._settled_batches(sh.node) - there)

    def _settled_batches(self, node: int) -> set[int]:
        return {batch for covered, settled in self.ledger(node).checkpoints.values() if settled for batch in covered}

    # -- the steps --------------------------------------------------------------------------------------------------

    def _claim(self, s: Session) -> Session:
        after = super()._claim(s)
        return after._replace(pc="P3look") if after.pc == "P3claim" else after

    def _plan(self, s: Session, sh: Shared) -> Moves:
        if s.pc != "P3look":
            yield from super()._plan(s, sh)
        elif self._went_back(s, sh):
            yield "P3look: went back", ended("went back"), sh, ""
        else:
            yield "P3look", s._replace(pc="P3claim"), sh, ""

    def _settle(self, s: Session, sh: Shared) -> Moves:
        if s.pc == "Shold":
            if self._went_back(s, sh):
                yield self._refused(s, sh)
            else:
                yield "Shold", s._replace(pc="Scommit"), sh, ""
        elif s.pc == "Snote":
            yield "Snote", s._replace(pc="Ssettled"), self._noted(s, sh), ""
        else:
            yield from super()._settle(s, sh)

    def _commit_living(self, s: Session, then: str) -> Session:
        after = super()._commit_living(s, then)
        return after._replace(pc="Shold") if after.pc == "Scommit" else after

    def _all_committed(self, s: Session) -> Session:
        after = super()._all_committed(s)
        return after._replace(pc="Snote") if after.pc == "Ssettled" and self.broken == "note-apart" else after

    def _commit(self, s: Session, sh: Shared) -> Moves:
        if s.pc == "C5" and self._went_back(s, sh):
            yield self._raise(s, sh, "C5: went back")
        elif s.pc == "C8note":
            yield "C8note", s._replace(pc="C9"), self._noted(s, sh), ""
        else:
            yield from super()._commit(s, sh)

    def _c7(self, s: Session, sh: Shared) -> tuple[str, Session]:
        label, after = super()._c7(s, sh)
        return label, after._replace(pc="C8note") if after.pc == "C9" and self.broken == "note-apart" else after

    def _noted(self, s: Session, sh: Shared) -> Shared:
        return sh._replace(held=max(sh.held, self.ledger(s.known).unsettled))

    def _commit_one(self, s: Session, sh: Shared, then: Callable[[Session, Shared], tuple[str, Session]]) -> Moves:
        if self.broken != "commit-compares-not" and self._went_back(s, sh):
            yield self._refused(s, sh)
            return
        mine = sh.handles[s.todo[0]][0]
        covered_up = any(batch < mine for batch in self._missing(sh))
        for label, after, now, broken in super()._commit_one(s, sh, then):
            # A driver that stood still may commit in the copy what was settled: it is there again.
            violation = "" if broken == UNBOUND and mine in self._settled_batches(sh.node) else broken
            if covered_up and now.handles != sh.handles:
                violation = violation or "a commit covers up that the store lacks what is settled before it"
            noted = self.broken != "note-apart" and self._state(now, s.todo[0]) == COMMITTED
            yield label, after, self._noted(s, now) if noted else now, violation

    def _refused(self, s: Session, sh: Shared) -> tuple[str, Session, Shared, str]:
        label = f"{s.pc}: went back"
        return self._raise(s, sh, label) if s.phase == "C" else (label, ended("went back"), sh, "")

    def _check_complete(self, sh: Shared, last: int) -> str:
        """A store may go back after its last look; the next one finds it."""
        return "" if sh.copy == PUT_BACK else super()._check_complete(sh, last)

    # -- the copy ---------------------------------------------------------------------------------------------------

    def moves(self, state: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Every step of every session, and whoever copies the store and puts the copy back."""
        yield from super().moves(state)
        sh = self._shareds.values[state[0]]
        here = (sh.held, *(kept for _, _, kept in sh.handles))
        if not sh.copy:
            yield "the store is copied", (self._shareds(sh._replace(copy=here)), *state[1:]), ""
        elif sh.copy not in (PUT_BACK, here):
            held, *states = sh.copy
            later = [ABORTED] * (len(sh.handles) - len(states))
            log = [
                PREPARED if now == COMMITTED != old else now
                for now, old in zip(here[1:], [*states, *later], strict=True)
            ]
            for what, found in (("the copy", [*states, *later]), ("the copy of its log alone", log)):
                handles = tuple((b, p, k) for (b, p, _), k in zip(sh.handles, found, strict=True))
                back = sh._replace(held=held, handles=handles, copy=PUT_BACK)
                yield f"{what} is put back", (self._shareds(back), *state[1:]), ""

    def _may_end(self, sh: Shared, how: str) -> bool:
        """Exactly a store that lacks what is settled is refused."""
        if how in ("idle", "rewind"):
            return True
        return (how == "went back") == bool(self._missing(sh)) and how in ("ok", "went back")
