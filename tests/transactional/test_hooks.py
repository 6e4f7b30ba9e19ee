"""Outside systems that take part in checkpoints: what they keep, and when they get it back."""

from __future__ import annotations

import logging

import pytest

from tests.transactional.state_machine import Interference, World
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import HookError, OptionError
from transactional.hooks import MOST_BYTES, CheckpointHook, HookContext, hooks_of
from transactional.sink import Options

NO_OPTIONS = Options({})


class Outside(CheckpointHook):
    """An outside system: its state is how often it was asked."""

    def __init__(self, options: Options, name: str = "outside") -> None:
        super().__init__(options)
        self.name = name
        self.asked: list[HookContext] = []
        self.restored: list[tuple[int | None, bytes | None]] = []
        self.answers: list[object] = []
        self.problem: Exception | None = None

    def identifier(self) -> str:
        return self.name

    def trigger(self, context: HookContext) -> bytes | None:
        self.asked.append(context)
        answer = self.answers.pop(0) if self.answers else b"%d" % len(self.asked)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    def restore(self, checkpoint: int | None, state: bytes | None) -> None:
        if self.problem is not None:
            raise self.problem
        self.restored.append((checkpoint, state))


class Unnamed(CheckpointHook):
    """It has the default identifier."""

    def trigger(self, context: HookContext) -> bytes | None:
        return None

    def restore(self, checkpoint: int | None, state: bytes | None) -> None:
        return None


class Unbuildable(Unnamed):
    def __init__(self, options: Options) -> None:
        raise RuntimeError("no licence")


def world_of(monkeypatch: pytest.MonkeyPatch, *hooks: CheckpointHook) -> World:
    world = World(hooks=hooks, max_batches=50)
    monkeypatch.setattr(faults, "reach", world.reach)
    return world


def test_what_a_hook_gave_is_kept_with_the_decision_and_comes_back_in_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    assert world.run(world.start(), 2)
    newest = max(world.book.decisions)
    assert world.truth.checkpoints[newest].hooks == {"outside": "Mg=="}
    assert world.run(world.start())
    assert hook.restored == [(None, None), (newest, b"2")]


def test_a_hook_is_told_what_the_checkpoint_will_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    execution = world.start()
    world.run(execution)
    world.run(execution, 2, 1, "none")
    world.run(execution)
    assert [list(context.batches) for context in hook.asked] == [[0], [1, 2, 3]]
    assert [context.queryId for context in hook.asked] == ["q", "q"]


def test_a_hook_is_not_asked_where_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    execution = world.start()
    world.run(execution)
    world.run(execution, 3, 1, "none")
    assert len(hook.asked) == 1


def test_it_is_restored_once_in_a_run_and_never_in_the_middle_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    execution = world.start()
    world.run(execution, 3)
    world.run(world.start(execution.driver), 2)  # the same run: nothing ended it
    assert hook.restored == [(None, None)]
    assert world.book.kinds.count(EntryKind.RESTORED) == 1


@pytest.mark.parametrize("again", ["in the same driver", "in another"])
def test_a_crash_before_it_is_journalled_repeats_the_restoring(monkeypatch: pytest.MonkeyPatch, again: str) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    world.run(world.start())
    newest = max(world.book.decisions)
    second = world.start()
    world.armed = Interference("hooks.restored", "die")
    world.run(second)
    assert not second.alive
    assert world.run(world.start(second.driver if again == "in the same driver" else None))
    assert hook.restored == [(None, None), (newest, b"1"), (newest, b"1")]


def test_an_outdated_planning_gives_no_hook_its_old_state(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    world.run(world.start())
    outdated = world.start()
    world.armed = Interference("recovery.swept", "again", 0, 2)  # meanwhile, the driver starts the query again
    world.run(outdated)
    assert [checkpoint for checkpoint, _ in hook.restored] == [None, min(world.book.decisions)]
    assert world.run(world.executions[-1])


def test_the_state_of_a_hook_that_is_not_named_any_more_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    former, other = Outside(NO_OPTIONS, "former"), Outside(NO_OPTIONS, "other")
    world = world_of(monkeypatch, former)
    world.run(world.start())
    newest = max(world.book.decisions)
    world.settings["hooks"] = (other,)
    with caplog.at_level(logging.WARNING, logger="transactional"):
        assert world.run(world.start())
    assert "holds the state of the hook former, but checkpointHooks does not name this hook" in caplog.text
    assert other.restored == [(newest, None)]


def test_a_hook_without_a_state_gets_none_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    hook.answers = [None]
    world = world_of(monkeypatch, hook)
    world.run(world.start())
    newest = max(world.book.decisions)
    assert world.truth.checkpoints[newest].hooks == {}
    world.run(world.start())
    assert hook.restored[-1] == (newest, None)


def test_the_greatest_state_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    hook.answers = [bytes(MOST_BYTES)]
    world = world_of(monkeypatch, hook)
    world.run(world.start())
    world.run(world.start())
    assert hook.restored[-1][1] == bytes(MOST_BYTES)


@pytest.mark.parametrize("answer", [bytes(MOST_BYTES + 1), "text", 7])
def test_what_is_no_state_declines_the_checkpoint(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    hook = Outside(NO_OPTIONS)
    hook.answers = [answer] * 50
    world = world_of(monkeypatch, hook)
    execution = world.start()
    assert world.run(execution)
    assert world.book.kinds[-2:] == [EntryKind.PREPARED, EntryKind.DECLINED]
    assert world.truth.declined[0].reason == "HOOK_FAILED"
    assert "returned something other than bytes, or more than" in world.truth.declined[0].detail


def test_of_two_hooks_the_one_that_raised_is_named_and_no_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Outside(NO_OPTIONS, "good"), Outside(NO_OPTIONS, "bad")
    bad.answers = [ValueError("disk full")]
    world = world_of(monkeypatch, good, bad)
    execution = world.start()
    assert world.run(execution)
    assert (len(good.asked), len(bad.asked)) == (2, 2)  # tried again: each is asked for the same micro-batches
    assert [list(context.batches) for context in good.asked] == [[0], [0]]
    [hooks] = [c.hooks for c in world.truth.checkpoints.values()]
    assert sorted(hooks) == ["bad", "good"]


def test_a_hook_that_can_not_be_restored_stops_the_query_before_its_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    world.run(world.start())
    hook.problem = OSError("unreachable")
    execution = world.start()
    assert not world.run(execution)
    assert isinstance(execution.errors[0], HookError)
    assert (execution.condition, world.book.restored) == ("HOOK_FAILED", False)
    hook.problem = None
    assert world.run(world.start(execution.driver))
    assert hook.restored[-1][1] == b"1"


def test_after_a_rewind_it_gets_the_state_of_the_checkpoint_that_was_gone_back_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    world.run(world.start(), 4)
    second = sorted(world.book.decisions)[1]
    assert world.rewind(second) == ""
    world.run(world.start())
    assert hook.restored[-1] == (second, b"2")


def test_a_checkpoint_that_is_void_gives_back_the_state_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Outside(NO_OPTIONS)
    world = world_of(monkeypatch, hook)
    execution = world.start()
    world.run(execution)
    first = max(world.book.decisions)
    world.armed = Interference("decision.written", "die")
    world.run(execution)
    assert len(hook.asked) == 2
    world.clock.advance(200)
    assert world.run(world.start())
    assert world.seen["void: decided"] == 1
    assert hook.restored[-1] == (first, b"1")


# -- the option ---------------------------------------------------------------------------------------------------------

HERE = "tests.transactional.test_hooks"


def test_hooks_are_named_by_import_path_in_order() -> None:
    [first, second] = hooks_of(f" {HERE}:Unnamed, {HERE}:Outside ", NO_OPTIONS)
    assert (first.identifier(), second.identifier()) == (f"{HERE}:Unnamed", "outside")
    assert hooks_of("", NO_OPTIONS) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no.such.module:Hook", "ModuleNotFoundError"),
        (f"{HERE}:Missing", "AttributeError"),
        (HERE, "AttributeError"),
        (f"{HERE}:Unbuildable", "no licence"),
        ("transactional.sink:Options", "not a subclass of CheckpointHook"),
        (f"{HERE}:Unnamed,{HERE}:Unnamed", "another hook has the identifier"),
    ],
)
def test_a_hook_that_can_not_be_used_is_refused_by_name(path: str, why: str) -> None:
    with pytest.raises(OptionError, match=rf"INVALID_OPTION.*checkpointHooks.*{why}"):
        hooks_of(path, NO_OPTIONS)
