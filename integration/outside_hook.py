"""A checkpoint hook over a folder: its state is how many states it has given, and every call is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transactional.hooks import CheckpointHook, HookContext
from transactional.sink import Options

__all__ = ["OUTSIDE", "OutsideHook", "hook_calls", "hook_fails"]

OUTSIDE = "integration.outside_hook:OutsideHook"
"""For the option ``checkpointHooks``."""


class OutsideHook(CheckpointHook):
    """Lies beside the sink's rows, in the folder of its option ``path``."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._folder = Path(options["path"])

    def trigger(self, context: HookContext) -> bytes | None:
        """Give the next state, or raise while `hook_fails` is there."""
        if hook_fails(self._folder).exists():
            raise RuntimeError("the outside system is away")
        state = b"%d" % (1 + sum(call["call"] == "trigger" for call in hook_calls(self._folder)))
        self._note(call="trigger", batches=list(context.batches), state=state.decode())
        return state

    def restore(self, checkpoint: int | None, state: bytes | None) -> None:
        """Note it."""
        self._note(call="restore", checkpoint=checkpoint, state=None if state is None else state.decode())

    def _note(self, **facts: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "hook.calls").open("a") as file:
            file.write(json.dumps(facts) + "\n")


def hook_fails(folder: Path) -> Path:
    """The file that lets the hook raise."""
    return folder / "hook.fails"


def hook_calls(folder: Path) -> list[dict[str, Any]]:
    """All calls so far, the oldest first."""
    notes = folder / "hook.calls"
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
