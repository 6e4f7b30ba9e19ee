"""Bugs of a coordinator that every search has to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transactional.checkpoint import Acknowledgement
from transactional.coordinator import CheckpointCoordinator
from transactional.coordinator.decision import Decision


class CommitsFirst(Decision):
    def decide(self, messages: Sequence[Acknowledgement], *args: Any) -> None:
        self._sink.commit([handle for m in messages for handle in m.handles], None)  # type: ignore[arg-type]
        super().decide(messages, *args)


class CommitsBeforeTheDecision(CheckpointCoordinator):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._decision = CommitsFirst(self._session)


class AbortIgnoresTheDecision(CheckpointCoordinator):
    def abort(self, messages: Sequence[Acknowledgement | None], batch: int) -> None:
        self._sink._abort([handle for m in messages if m is not None for handle in m.handles], "abort")  # type: ignore[attr-defined]
        super().abort(messages, batch)
