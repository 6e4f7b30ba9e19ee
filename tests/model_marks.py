"""The moves of the journal model for a sink that publishes marks: what a checkpoint's mark says is so whenever it is read.

C9 has three more steps: `ends` looks where the rows that can be read end, `confirm` reads the journal again, `write` writes the
mark. A process may stand still between any two of them.
"""

from __future__ import annotations

from tests.model_ledger import Entry
from tests.model_steps import COMMITTED, Model, Moves, Session, Shared

__all__ = ["MARK_BREAKS", "MarksModel"]

MARK_BREAKS = {
    "mark-none": "no mark is published",
    "mark-first": "the mark is published before C8",
    "mark-after": "the mark is published after `settled`, and no recovery does it",
    "mark-unconfirmed": "nobody asks, after the look at the ends, whether the query has gone on elsewhere",
}

ENDS, CONFIRMED, WRITTEN = 0, 1, 2


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
            seen = tuple(sorted({(batch, part) for batch, part, state in sh.handles if state == COMMITTED}))
            yield f"{s.pc}: look at the ends", s._replace(mark=(checkpoint, ENDS, seen)), sh, ""
        elif s.mark[1] == ENDS and self.broken != "mark-unconfirmed":
            if self._own_unsettled(s, checkpoint)(self.ledger(sh.node)):
                yield f"{s.pc}: confirm", s._replace(mark=(checkpoint, CONFIRMED, s.mark[2])), sh, ""
            else:
                yield self._raise(s._replace(known=sh.node, mark=()), sh, f"{s.pc}: confirm")
        else:
            marks = tuple(sorted({*sh.marks, checkpoint}))
            after = s._replace(mark=(checkpoint, WRITTEN))
            yield f"{s.pc}: write the mark", after, sh._replace(marks=marks), self._wrong(sh, checkpoint, s.mark[2])

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
