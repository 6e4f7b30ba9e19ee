"""The journal as an outsider reads it, entry by entry: what is decided, by rules of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transactional.checkpoint import Mode, PartKey
from transactional.entry import EntryKind
from transactional.sink import Outcome

if TYPE_CHECKING:
    from tests.transactional.state_machine import World

__all__ = ["Book", "Decision"]


@dataclass
class Decision:
    """A decided checkpoint, as the book has it. A chain is a part's handle and those that repaired it."""

    id: int
    batches: list[int]
    chains: dict[tuple[int, PartKey], list[int]]
    hooks: dict[str, str]
    lost: set[tuple[int, PartKey]] = field(default_factory=set)
    settled: bool = False


class Book:
    """The journal as an outsider reads it, entry by entry, and what must be true of each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.position = 0
        self.folded = 0
        self.run = 0
        self.driver = ""
        self.ended = False
        self.restored = False
        self.rewinding = 0
        self.asked: Mapping[str, Any] = {}
        self.prepared: dict[int, dict[PartKey, int]] = {}
        self.decisions: dict[int, Decision] = {}
        self.decided_by: dict[int, int] = {}
        self.reasons: list[str] = []
        self.kinds: list[str] = []

    # -- questions --------------------------------------------------------------------------------------------------

    def over(self, token: int) -> bool:
        """Whether a run may not act any more."""
        return self.rewinding > 0 or self.ended or token != self.run

    def decision_of(self, batch: int) -> Decision | None:
        """The one that covers a micro-batch."""
        return next((d for d in self.decisions.values() if batch in d.batches), None)

    def unsettled(self) -> list[Decision]:
        """Decisions that hold and may not be committed."""
        return [d for d in self.decisions.values() if not d.settled]

    def mode(self, batch: int) -> Mode:
        """What the micro-batch's tasks have to do."""
        decision = self.decision_of(batch)
        if decision is None:
            return Mode.DRAIN if batch in self.prepared else Mode.WRITE
        return Mode.REPAIR if any(key[0] == batch for key in decision.lost) else Mode.DRAIN

    def check_restored(self, checkpoint: int | None, state: bytes | None) -> None:
        """A hook gets what the newest decision that holds has kept for it."""
        newest = max(self.decisions, default=None)
        kept = None if newest is None else self._world.hook_states.get(newest)
        if (checkpoint, state) != (newest, kept):
            self._world.fail(f"the hook got {state!r} of checkpoint {checkpoint}, not {kept!r} of {newest}")

    def check_ledger(self) -> None:
        """The fold of the code under test says the same."""
        ledger = self._world.truth
        found = (
            ledger.position,
            [record.batch for record in ledger.undecided()],
            [(c.id, c.batches) for c in ledger.unsettled()],
            ledger.rewinding.token if ledger.rewinding else 0,
            sorted(handle["transaction"] for handle in ledger.known_handles()),
        )
        handles = [handle for parts in self.prepared.values() for handle in parts.values()]
        handles += [c[-1] for d in self.unsettled() for key, c in d.chains.items() if key not in d.lost]
        judged = self._world.judged
        mine = (
            self.position,
            sorted(self.prepared),
            [(d.id, d.batches) for d in self.unsettled()],
            self.rewinding,
            sorted(handle for handle in handles if handle not in judged),
        )
        if found != mine:
            self._world.fail(f"the ledger holds {found}, not {mine}")
        if not set(ledger.checkpoints) <= set(self.decisions):
            self._world.fail(f"checkpoints came back: {set(ledger.checkpoints) - set(self.decisions)}")

    # -- the fold ---------------------------------------------------------------------------------------------------

    def fold(self, number: int, kind: str, body: Mapping[str, Any]) -> None:
        """An entry counts from here on."""
        if kind in (EntryKind.PREPARED, EntryKind.DECIDED, EntryKind.SETTLED, EntryKind.VOID, EntryKind.DECLINED) or (
            kind in (EntryKind.REPAIR, EntryKind.VERDICT, EntryKind.ABORTED, EntryKind.RESTORED, EntryKind.STOPPED)
        ):
            token = body["run"]
            if (self.rewinding and token != self.rewinding) or (not self.rewinding and self.over(token)):
                self._world.fail(f"entry {number} ({kind}) is of run {token}, which is over")
        self.position = number
        self.kinds.append(kind)
        handler: Callable[[int, Mapping[str, Any]], None] | None = getattr(self, f"_{kind.replace(' ', '_')}", None)
        if handler is not None:
            handler(number, body)

    def _run(self, number: int, body: Mapping[str, Any]) -> None:
        self.run, self.driver, self.ended, self.restored = number, body["driver"], False, False

    def _aborted(self, number: int, body: Mapping[str, Any]) -> None:
        self.ended |= body["run"] == self.run

    _fenced = _aborted

    def _stopped(self, number: int, body: Mapping[str, Any]) -> None:
        self._aborted(number, body)
        outcome = self._world.transactions.outcome
        left = [k for d in self.unsettled() for k, c in d.chains.items() if outcome(c[-1]) is Outcome.PREPARED]
        if self.prepared or left:
            self._world.fail(f"run {body['run']} is told to have stopped, and left {[*self.prepared, *left]} open")

    def _restored(self, number: int, body: Mapping[str, Any]) -> None:
        self.restored = True

    def _handles(self, body: Mapping[str, Any]) -> dict[PartKey, int]:
        return {_key(p): p["handle"]["transaction"] for p in body["parts"] if p["handle"] is not None}

    def _prepared(self, number: int, body: Mapping[str, Any]) -> None:
        batch = body["batch"]
        if batch in self.prepared or self.decision_of(batch):
            self._world.fail(f"micro-batch {batch} was recorded already")
        self.prepared[batch] = self._handles(body)

    def _decided(self, number: int, body: Mapping[str, Any]) -> None:
        covers, batch = list(body["covers"]), body["batch"]
        batches = covers if batch in covers else [*covers, batch]
        if covers != sorted(self.prepared) or any(self.decision_of(each) for each in batches):
            self._world.fail(f"entry {number} decides {batches} again, or not all of {sorted(self.prepared)}")
        parts = {**self.prepared, **({} if batch in covers else {batch: self._handles(body)})}
        chains = {(b, p): [handle] for b in batches for p, handle in parts[b].items()}
        self.prepared = {}
        settled = not chains and not body.get("marked")
        self.decisions[number] = Decision(number, batches, chains, dict(body["hooks"]), settled=settled)
        self.decided_by.update({handle: number for [handle] in chains.values()})
        self.reasons.append(body["reason"])
        self._world.seen[f"closed by {body['reason']}"] += 1
        self._world.seen["decided with lanes"] += len(batches) > 1
        self._world.keep_hook_state(number, body["hooks"])

    def _settled(self, number: int, body: Mapping[str, Any]) -> None:
        decision = self.decisions[body["checkpoint"]]
        decision.settled = True
        for key, chain in decision.chains.items():
            if self._world.transactions.outcome(chain[-1]) is not Outcome.COMMITTED:
                self._world.fail(f"checkpoint {decision.id} is settled, and part {key} is not committed")

    def _verdict(self, number: int, body: Mapping[str, Any]) -> None:
        decision = self.decisions[body["checkpoint"]]
        for part in body["parts"]:
            key = part["batch"], _key(part)
            handle = decision.chains[key][-1]
            if self._world.transactions.outcome(handle).value != part["verdict"]:
                self._world.fail(f"{handle} is {self._world.transactions.outcome(handle)}, judged {part['verdict']}")
            self._world.judged.add(handle)
            if part["verdict"] == "lost":
                decision.lost.add(key)

    def _repair(self, number: int, body: Mapping[str, Any]) -> None:
        decision = self.decisions[body["checkpoint"]]
        for part in body["parts"]:
            key, handle = (part["batch"], _key(part)), part["handle"]["transaction"]
            if key not in decision.lost:
                self._world.fail(f"part {key} of checkpoint {decision.id} is repaired, and was not lost")
            decision.lost.discard(key)
            decision.chains[key].append(handle)
            self.decided_by[handle] = decision.id

    def _void(self, number: int, body: Mapping[str, Any]) -> None:
        if "prepared" in body:
            self._world.seen["void: prepared"] += 1
            del self.prepared[body["prepared"]]
            return
        self._world.seen["void: decided"] += 1
        decision = self.decisions.pop(body["checkpoint"])
        alive = [h for chain in decision.chains.values() for h in chain if not self._world.is_lost(h)]
        if alive:
            self._world.fail(f"checkpoint {decision.id} is void, and of its transactions {alive} are not lost")

    def _declined(self, number: int, body: Mapping[str, Any]) -> None:
        self._world.seen[f"declined: {body['reason']}"] += 1

    def _rewind_begun(self, number: int, body: Mapping[str, Any]) -> None:
        self.rewinding, self.ended, self.asked = number, True, dict(body)

    def _rewind_done(self, number: int, body: Mapping[str, Any]) -> None:
        last, keep = body["batch"], body["keep"]
        self.rewinding = 0
        dropped = [d for d in self.decisions.values() if max(d.batches) > last and d.id != keep]
        handles = [h for batch, parts in self.prepared.items() if batch > last for h in parts.values()]
        handles += [chain[-1] for d in dropped if not d.settled for chain in d.chains.values()]
        alive = [h for h in handles if self._world.transactions.outcome(h) is Outcome.PREPARED]
        if alive:
            self._world.fail(f"the rewind to {last} leaves {alive} prepared")
        self.prepared = {batch: parts for batch, parts in self.prepared.items() if batch <= last}
        self.decisions = {d.id: d for d in self.decisions.values() if d not in dropped}
        self._world.seen[f"rewound: {'named' if self.asked['checkpoint'] else 'kept' if keep else 'auto'}"] += 1
        self._world.went_back(last, keep, bool(self.asked["checkpoint"]))


def _key(part: Mapping[str, Any]) -> PartKey:
    return part["partition"], part.get("route", "")
