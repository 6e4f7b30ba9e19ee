"""How urgent a wish to stop is."""

from __future__ import annotations

import os
import signal

from connector.operations.signals import StopRequest, obeying_signals


def test_a_request_in_the_journal_is_never_urgent_and_makes_no_signal_urgent() -> None:
    wish = StopRequest()
    wish.request()
    wish.request()
    assert (wish.asked(), wish.forced()) == (True, False)
    with obeying_signals(wish):
        os.kill(os.getpid(), signal.SIGTERM)
        assert not wish.forced()
        os.kill(os.getpid(), signal.SIGTERM)
        assert wish.forced()


def test_handlers_are_as_they_were_when_no_one_supervises_any_more() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with obeying_signals(StopRequest()):
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
