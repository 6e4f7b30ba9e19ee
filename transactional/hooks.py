"""Checkpoint hooks: external systems that save their state with each checkpoint (like Flink's MasterTriggerRestoreHook)."""

from __future__ import annotations

import base64
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transactional.errors import HookError, OptionError
from transactional.sink import Options

MOST_BYTES = 1 << 20
"""The maximum size of a hook's state in bytes. It is limited because the journal contains the state."""


@dataclass(frozen=True)
class HookContext:
    """Facts about the checkpoint that is about to be decided. Passed to `CheckpointHook.trigger`.

    Parameters
    ----------
    queryId : str
        The id of the query.
    batches : Sequence[int]
        The micro-batches that the checkpoint will contain.
    timestamp : int
        The time when all tasks had prepared their rows, in milliseconds since the epoch.
    """

    queryId: str
    batches: Sequence[int]
    timestamp: int


class CheckpointHook(ABC):
    """Base class for an external system that saves its own state with each checkpoint. Subclass it.

    List the import path of your class in the option ``checkpointHooks``. Every planning process and every commit process
    builds its own hook object.

    Parameters
    ----------
    options : Options
        The options of the sink, as the user set them.
    """

    def __init__(self, options: Options) -> None:
        self.options = options

    def identifier(self) -> str:
        """Return the name under which the journal stores the hook's state. Default: the class's import path.

        Do not change the name later. Otherwise a restarted query does not find the saved state.
        """
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @abstractmethod
    def trigger(self, context: HookContext) -> bytes | None:
        """Return the state to save with this checkpoint. *Called on the driver, in the commit process.*

        The framework calls the method before the checkpoint is decided, perhaps several times for the same
        micro-batches, or for a checkpoint that is never decided.

        Parameters
        ----------
        context : HookContext

        Returns
        -------
        bytes or None
            The state, at most 1 MiB. None if there is nothing to save.

        Raises
        ------
        Exception
            The driver calls the method again until ``commitTimeoutMs`` has passed. If the method still fails, the checkpoint
            is declined if ``tolerableFailedCheckpoints`` allows it. Otherwise the query fails.
        """

    @abstractmethod
    def restore(self, checkpoint: int | None, state: bytes | None) -> None:
        """Restore the saved state.

        *Called on the driver, in the planning process, before the first task of every new run; repeated after a crash.*

        Parameters
        ----------
        checkpoint : int or None
            The newest decided checkpoint; None if there is none.
        state : bytes or None
            The state that `trigger` returned for this checkpoint.

        Raises
        ------
        Exception
            The query fails before its first task.
        """


def hooks_of(paths: str, options: Options) -> list[CheckpointHook]:
    """Import and build the checkpoint hooks of a query.

    Parameters
    ----------
    paths : str
        The value of the option ``checkpointHooks``: import paths ``package.module:Class``, separated by commas.
    options : Options
        The sink's options, which each hook gets.

    Raises
    ------
    OptionError
        ``INVALID_OPTION``: a class can't be imported or built, a class is not a `CheckpointHook`, or two hooks have the same
        identifier.
    """
    found: dict[str, CheckpointHook] = {}
    for path in filter(None, (part.strip() for part in paths.split(","))):
        module, _, name = path.partition(":")
        try:
            kind = getattr(importlib.import_module(module), name)
        except Exception as problem:
            raise _invalid(path, f"{type(problem).__name__}: {problem}") from problem
        if not (isinstance(kind, type) and issubclass(kind, CheckpointHook)):  # check before it is called
            raise _invalid(path, "it is not a subclass of CheckpointHook")
        try:
            hook = kind(options)
        except Exception as problem:
            raise _invalid(path, f"{type(problem).__name__}: {problem}") from problem
        if hook.identifier() in found:
            raise _invalid(path, f"another hook has the identifier {hook.identifier()}")
        found[hook.identifier()] = hook
    return list(found.values())


def _invalid(path: str, reason: str) -> OptionError:
    return OptionError(
        "INVALID_OPTION",
        owner="The sink",
        option="checkpointHooks",
        value=path,
        expectation=f"package.module:Class, importable by the driver's Python workers ({reason})",
    )


def _failed(hook: CheckpointHook, method: str, reason: str) -> HookError:
    return HookError("HOOK_FAILED", hook=hook.identifier(), method=method, reason=reason)


def trigger(hooks: Sequence[CheckpointHook], context: HookContext) -> dict[str, str]:
    """Ask every hook for its state.

    Returns
    -------
    dict[str, str]
        The state of each hook in base64, by identifier. Hooks that returned None are left out.

    Raises
    ------
    HookError
        ``HOOK_FAILED``: a hook raised an error, or its state is not bytes or is too large.
    """
    states: dict[str, str] = {}
    for hook in hooks:
        try:
            state: object = hook.trigger(context)
        except Exception as problem:
            raise _failed(hook, "trigger", f"{type(problem).__name__}: {problem}") from problem
        if state is None:
            continue
        if not isinstance(state, (bytes, bytearray)) or len(state) > MOST_BYTES:
            raise _failed(hook, "trigger", f"it returned something other than bytes, or more than {MOST_BYTES} bytes")
        states[hook.identifier()] = base64.b64encode(bytes(state)).decode()
    return states


def restore(hooks: Sequence[CheckpointHook], checkpoint: int | None, states: Mapping[str, str]) -> list[str]:
    """Give every hook its saved state.

    Returns
    -------
    list[str]
        The identifiers in `states` that belong to none of the hooks.

    Raises
    ------
    HookError
        ``HOOK_FAILED``: a hook raised an error. No task has started yet, so no row was read.
    """
    for hook in hooks:
        state = states.get(hook.identifier())
        try:
            hook.restore(checkpoint, None if state is None else base64.b64decode(state))
        except Exception as problem:
            raise _failed(hook, "restore", f"{type(problem).__name__}: {problem}") from problem
    return sorted(set(states) - {hook.identifier() for hook in hooks})
