"""The health file: how a kept-up query is, for Kubernetes' probes and for people. Written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transactional.clock import Clock, SystemClock
from transactional.errors import OptionError
from transactional.failure import Failure

__all__ = ["BEAT_SECONDS", "Health"]

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""The file's time is never older while `barrier run` is at work."""


class Health:
    """One JSON document.

    ``state`` (``starting``, ``running``, ``waiting``, ``rewinding``, ``stopping``, ``stopped``, ``failed``), ``since`` and
    ``time`` (seconds since the epoch), ``pid`` of ``barrier run``, ``driver`` (pid of the driver program, or null),
    ``restarts``, ``locations``, ``lastError`` (``time``, ``condition``, ``text``; or null).

    Parameters
    ----------
    path : str or None
        None: nothing is written.
    clock : Clock, optional

    Raises
    ------
    OptionError
        ``HEALTH_FILE``: it can't be written. Where that comes later it is a warning: what is kept up goes on.
    """

    def __init__(self, path: str | None, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._written = 0.0
        self.facts: dict[str, Any] = {
            "state": "starting",
            "since": self._clock.now(),
            "pid": os.getpid(),
            "driver": None,
            "restarts": 0,
            "locations": [],
            "lastError": None,
        }
        problem = self._write()
        if problem is not None:
            raise OptionError("HEALTH_FILE", f"the health file {path} can't be written: {problem}", path=path)

    def tell(self, state: str, **facts: Any) -> None:
        """Write what changed."""
        with self._lock:
            if state != self.facts["state"]:
                facts["since"] = self._clock.now()
            changed = {"state": state, **facts}
            if any(self.facts[key] != value for key, value in changed.items()):
                self.facts.update(changed)
                self._write()

    def failed(self, failure: Failure) -> None:
        """Keep the last error; written with the next change."""
        self.facts["lastError"] = {"time": self._clock.now(), "condition": failure.condition, "text": failure.text}

    def beat(self) -> None:
        """Write it again where it is older than `BEAT_SECONDS`."""
        with self._lock:
            if self._clock.monotonic() - self._written >= BEAT_SECONDS:
                self._write()

    @contextmanager
    def during(self, state: str) -> Iterator[None]:
        """Beat from a thread while something blocks."""
        self.tell(state)
        over = threading.Event()

        def run() -> None:
            while not over.wait(BEAT_SECONDS):
                self.beat()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _write(self) -> OSError | None:
        self._written = self._clock.monotonic()
        if self._path is None:
            return None
        temporary = f"{self._path}.{os.getpid()}.new"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({**self.facts, "time": self._clock.now()}, file)
            os.replace(temporary, self._path)
        except OSError as problem:
            log.warning("the health file %s can't be written: %s", self._path, problem)
            return problem
        return None
