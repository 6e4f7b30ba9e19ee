"""Bugs of a coordinator that every search has to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transactional.checkpoint import Acknowledgement
from transactional.coordinator import CheckpointCoordinator


class CommitsBeforeTheDecision(CheckpointCoordinator):
    def _decide(self, messages: Sequence[Acknowledgement], *args: Any) -> None:
        self._sink.commit([m.part.handle for m in messages if m.part.handle is not None], None)  # type: ignore[arg-type]
        super()._decide(messages, *args)
