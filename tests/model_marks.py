"""The moves of the journal model for a sink that publishes marks: what a checkpoint's mark says is so whenever it is read.

C9 has four more steps: what no unsettled entry names is swept, `ends` looks where the rows that can be read end, `confirm`
reads the journal again, `write` writes the mark. A process may stand still between any two of them. A transaction that is open
hides what was written after it from the look at the ends, which waits until it sees all rows of the checkpoint.
"""

from __future__ import annotations

from tests.model_ledger import Entry
from tests.model_steps import ABORTED, COMMITTED, OPEN, Model, Moves, Session, Shared

__all__ = ["MARK_BREAKS", "MarksModel"]

MARK_BREAKS = {
    "mark-none": "no mark is published",
    "mark-first": "the mark is published before C8",
    "mark-after": "the mark is published after `settled`, and no recovery does it",
    "mark-unconfirmed": "nobody asks, after the look at the ends, whether the query has gone on elsewhere",
    "mark-hidden": "nothing is swept before the look at the ends, which does not wait for what others hide",
}

SWEPT, ENDS, CONFIRMED, WRITTEN = range(4)


class MarksModel(Model):
    """See `Model`. `Session.mark` is the checkpoint, the step, and the parts that can be read; `Shared.marks` are published."""

    def step(self, s: Session, sh: Shared) -> Moves:
        """The next step of a session."""
        steps = {"mark-none": (), "mark-after": (), "mark-first": ("C8", "Scommit")}.get(
            self.broken, ("C9", "Ssettled")
        )
        checkpoint = self.ledger(s.known).unsettled
        if s.pc not in steps or not checkpoint or s.mark[:2] == (checkpoint, WRITTEN):
            for label, after, then, violation in super().step(s, sh):
                stays = after.pc.removeprefix("listing ") == s.pc
                yield label, after if stays else after._replace(mark=()), then, violation
        elif s.mark[:1] != (checkpoint,):
            known = self.ledger(s.known).known
            after = s._replace(mark=(checkpoint, SWEPT, ()))
            swept = tuple(
                (
                    batch,
                    part,
                    ABORTED if state in OPEN and handle not in known and self.broken != "mark-hidden" else state,
                )
                for handle, (batch, part, state) in enumerate(sh.handles)
            )
            yield f"{s.pc}: sweep before the look", after, sh._replace(handles=swept), ""
        elif s.mark[1] == SWEPT:
            states = [state for _, _, state in sh.handles]
            stable = next((handle for handle, state in enumerate(states) if state in OPEN), len(states))
            seen = {(batch, part) for batch, part, state in sh.handles[:stable] if state == COMMITTED}
            rows = {(batch, part) for batch in self._batches(sh, checkpoint) for part in range(self.scenario.parts)}
            if rows <= seen or self.broken in ("mark-hidden", "mark-first"):
                yield f"{s.pc}: look at the ends", s._replace(mark=(checkpoint, ENDS, tuple(sorted(seen)))), sh, ""
        elif s.mark[1] == ENDS and self.broken != "mark-unconfirmed":
            if self._own_unsettled(s, checkpoint)(self.ledger(sh.node)):
                yield f"{s.pc}: confirm", s._replace(mark=(checkpoint, CONFIRMED, s.mark[2])), sh, ""
            else:
                yield self._raise(s._replace(known=sh.node, mark=()), sh, f"{s.pc}: confirm")
        else:
            marks = tuple(sorted({*sh.marks, checkpoint}))
            after = s._replace(mark=(checkpoint, WRITTEN))
            yield f"{s.pc}: write the mark", after, sh._replace(marks=marks), self._wrong(sh, checkpoint, s.mark[2])

    def _batches(self, sh: Shared, checkpoint: int) -> tuple[int, ...]:
        checkpoints = self.ledger(sh.node).checkpoints
        return tuple(checkpoints[checkpoint][0]) if checkpoint in checkpoints else ()

    def _wrong(self, sh: Shared, checkpoint: int, seen: tuple[tuple[int, int], ...]) -> str:
        """What is wrong with a mark, now or for a reader that finds it later."""
        ledger = self.ledger(sh.node)
        if checkpoint not in ledger.checkpoints:
            return "a mark of a checkpoint that is void"
        last = max(ledger.checkpoints[checkpoint][0])
        wanted = {(batch, part) for batch in range(last + 1) for part in range(self.scenario.parts)}
        if wanted - {*seen}:
            return "a mark lies before rows of its checkpoint"
        return "a mark lies behind rows of a later checkpoint" if {*seen} - wanted else ""

    def _check_entry(self, entry: Entry, sh: Shared) -> str:
        if entry[0] == "settled" and entry[1] not in sh.marks:
            return "a checkpoint is settled, and its mark is not published"
        return super()._check_entry(entry, sh)
