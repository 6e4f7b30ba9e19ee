"""Free TCP ports that stay free: reserved among all processes that use this module, also while nothing listens."""

from __future__ import annotations

import fcntl
import random
import socket
from typing import TextIO

from integration.jars import cache_folder

HOST = "127.0.0.1"

FIRST_PORT = 15000
"""Below it are ports that people know by heart."""

LAST_PORT = 32000
"""Below Linux's ephemeral range (from 32768): there the source port of any outgoing connection could take the port of a
broker that is down for a moment, and a client that retries such a port can even connect to itself."""


class Ports:
    """TCP ports on the loopback address that this process holds until ``release``.

    A port is held by a lock on a file that bears its number, so two processes never pick the same one, and a broker
    that was killed finds its port free when it starts again. The lock ends with the process.

    Examples
    --------
    >>> ports = Ports()
    >>> first, second = ports.reserve(), ports.reserve()
    >>> ports.release()
    """

    def __init__(self) -> None:
        self._locks: list[TextIO] = []
        self._folder = cache_folder() / "ports"  # one for all processes, whatever their folder for temporary files

    def reserve(self) -> int:
        """Return a port that nobody listens on and that no other process reserves until ``release``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # Not a seeded choice: processes that start at once should not try the same ports in the same order.
        candidates = random.SystemRandom().sample(range(FIRST_PORT, LAST_PORT), 200)
        for port in candidates:
            lock = (self._folder / str(port)).open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket() as probe:
                    # As Java's server sockets do: connections of an ended server in TIME_WAIT do not matter.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((HOST, port))
            except OSError:
                lock.close()
                continue
            self._locks.append(lock)
            return port
        raise RuntimeError(f"No free port among {len(candidates)} tried between {FIRST_PORT} and {LAST_PORT}.")

    def release(self) -> None:
        """Give all ports back."""
        while self._locks:
            self._locks.pop().close()
