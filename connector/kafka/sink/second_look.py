"""Second looks: no judgement against a transaction rests on one answer of one broker.

A leader or a coordinator that was paused, and was replaced meanwhile, answers for a moment from what it knew before. A new
leader, and one whose followers are slow, has a marker in its log and does not show it yet. Both look as if a transaction
were lost, open for ever, or gone. So such a judgement counts when it was made twice, a pause apart, and nothing has changed in
between: neither the answers nor the leaders' epochs. Each look asks two brokers again who leads.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from connector.kafka.client.admin import SECOND_LOOK_SECONDS
from transactional.clock import Clock

__all__ = ["LOOK_SECONDS", "SecondLook"]

LOOK_SECONDS: Final = 60.0
"""How long a look waits for markers, and for brokers that agree, unless its caller has a limit: a leader that stands still is
replaced after 9 s by default, and one in a collection of garbage wakes sooner."""


class SecondLook:
    """The judgements that wait for a second one.

    Parameters
    ----------
    clock : Clock
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: dict[Hashable, tuple[Hashable, float]] = {}

    def confirms(self, what: Hashable, judgement: Hashable) -> bool:
        """Return whether this judgement was made at least `SECOND_LOOK_SECONDS` ago, and no other one since."""
        now = self._clock.monotonic()
        first, since = self._first.get(what, (None, now))
        if first != judgement:
            self._first[what] = judgement, now
            return False
        return now - since >= SECOND_LOOK_SECONDS

    def forget(self, what: Hashable) -> None:
        """Begin again: the next judgement is a first one."""
        self._first.pop(what, None)
