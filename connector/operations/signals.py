"""A request to stop a query: from a signal, another thread or the journal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """A request to stop a query under `supervise`. Any thread, or a signal handler, can make it."""

    def __init__(self) -> None:
        self._times = 0  # no lock, no event: a signal handler could deadlock with its own thread
        self._requested = False

    def ask(self) -> None:
        """Request a stop: the first call stops at a final checkpoint, a second call stops immediately."""
        self._times += 1

    def request(self) -> None:
        """Request a stop at a final checkpoint, as ``barrier stop`` does. Repeated calls change nothing."""
        self._requested = True

    def asked(self) -> bool:
        """Return whether a stop was requested."""
        return self._requested or self._times > 0

    def forced(self) -> bool:
        """Return whether the query should stop without waiting for a final checkpoint."""
        return self._times > 1


@contextmanager
def obeying_signals(wish: StopRequest) -> Iterator[Callable[[], None]]:
    """Request a stop when SIGTERM or SIGINT arrives; a third signal ends the process. Does nothing outside the main thread.

    Yields a function that installs the signal handlers again. Call this function after a session was created, because
    PySpark then replaces the handler of SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if wish.forced():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        wish.ask()

    former: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

    def install() -> None:
        for number in former:
            signal.signal(number, handle)

    install()
    try:
        yield install
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
