"""The health file: the state of a supervised query, for Kubernetes' probes and for people. Written whole or not at all."""

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
from transactional.journal.folders import replace_file

__all__ = ["BEAT_SECONDS", "Health"]

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""Seconds: the file is never older while `barrier run` is running."""


class Health:
    """The health file, one JSON document.

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
        ``INVALID_OPTION``: it can't be written. Later that is a warning: the driver goes on.
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
            raise OptionError(
                "INVALID_OPTION",
                owner="barrier run",
                option="--health-file",
                value=path,
                expectation=f"a file that can be written ({problem})",
            )

    def tell(self, state: str, **facts: Any) -> None:
        """Write a new state, and the other facts that changed with it."""
        with self._lock:
            if state != self.facts["state"]:
                facts["since"] = self._clock.now()
            changed = {"state": state, **facts}
            if any(self.facts[key] != value for key, value in changed.items()):
                self.facts.update(changed)
                self._write()

    def failed(self, failure: Failure) -> None:
        """Keep the last error, which the next change writes."""
        self.facts["lastError"] = {"time": self._clock.now(), "condition": failure.condition, "text": failure.text}

    def beat(self) -> None:
        """Write the file again if it is older than `BEAT_SECONDS`."""
        with self._lock:
            if self._clock.monotonic() - self._written >= BEAT_SECONDS:
                self._write()

    @contextmanager
    def during(self, state: str) -> Iterator[None]:
        """Write a state, and keep the file fresh from a thread while the body blocks."""
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
        try:
            replace_file(self._path, json.dumps({**self.facts, "time": self._clock.now()}).encode())
        except OSError as problem:
            log.warning("the health file %s can't be written: %s", self._path, problem)
            return problem
        return None
