"""Check a second time before treating a transaction as failed, so that this does not depend on one answer from one broker.

If a leader or a coordinator was paused and replaced, it answers for a moment with outdated information. A new leader, or a
leader with slow followers, may have a marker in its log, but not show it yet. In both cases, a transaction can seem to have
lost its rows, to be open forever, or to be unknown to its coordinator. So such a result counts only if two checks, one second
apart, give the same answers, from leaders with the same epochs. Before each check, two brokers are asked which broker leads.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from connector.kafka.client.admin import SECOND_LOOK_SECONDS
from transactional.clock import Clock

LOOK_SECONDS: Final = 60.0
"""The maximum time that a check waits for markers, and for brokers to agree, if its caller sets no limit. By default, a
paused leader is replaced after 9 s; a leader that is collecting garbage resumes sooner."""


class SecondLook:
    """Remembers judgments about transactions, until a second check confirms them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: dict[Hashable, tuple[Hashable, float]] = {}

    def confirms(self, what: Hashable, judgement: Hashable) -> bool:
        """Return whether the judgment about `what` has been the same for at least `SECOND_LOOK_SECONDS`."""
        now = self._clock.monotonic()
        first, since = self._first.get(what, (None, now))
        if first != judgement:
            self._first[what] = judgement, now
            return False
        return now - since >= SECOND_LOOK_SECONDS

    def forget(self, what: Hashable) -> None:
        """Drop the remembered judgment about `what`. The next call of `confirms` then counts as a first check."""
        self._first.pop(what, None)
