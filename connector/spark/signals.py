"""The wish to stop, however it comes: a signal, another thread, a request in the journal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["StopWish", "heeding"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_MORE = (signal.SIGHUP, signal.SIGQUIT)
"""Also end a process at once that does not heed them: the terminal is closed, Ctrl-backslash."""


class StopWish:
    """Whether somebody wants the query to stop, and how urgently. May be asked from any thread, and from a signal handler."""

    def __init__(self) -> None:
        self._times = 0  # no lock, no event: a signal handler could meet its own thread in there

    def ask(self) -> None:
        """Once: stop well. Twice: stop now."""
        self._times += 1

    def asked(self) -> bool:
        """Stop at a final checkpoint."""
        return self._times > 0

    def forced(self) -> bool:
        """Do not wait for it."""
        return self._times > 1


@contextmanager
def heeding(wish: StopWish, last: Callable[[], None] | None = None) -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGINT ask for a stop; the third ends the process. In a thread that is not the main one it does nothing.

    Parameters
    ----------
    wish : StopWish
    last : Callable[[], None], optional
        What has to be done before the process is ended by a signal. SIGHUP asks for a stop then, too, and SIGQUIT ends it.

    Yields
    ------
    Callable[[], None]
        Heeds them again: PySpark takes SIGINT when it makes a session.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def heed(number: int, frame: FrameType | None) -> None:
        if wish.forced() or number == signal.SIGQUIT:
            if last is not None:
                last()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        wish.ask()

    heeded = [
        *_SIGNALS,
        *(number for number in _MORE if last is not None and signal.getsignal(number) != signal.SIG_IGN),
    ]

    def install() -> None:
        for number in heeded:
            signal.signal(number, heed)

    former: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in heeded}
    install()
    try:
        yield install
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
