"""Admins that a worker uses again: Spark calls the sink several times in each micro-batch, in processes that it reuses.

A new one costs a thread, a connection, and several round trips (more with TLS or a login) for a few questions.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from transactional.clock import Clock, Deadline, SystemClock

__all__ = ["borrow_admin", "give_back"]

IDLE_SECONDS: Final = 10.0
"""How long an admin is kept for the next call: then it is closed, or its thread would look for brokers, and log that they are
away, for as long as the process lives."""

LIFE_SECONDS: Final = 60.0
"""How long an admin is used, however short the pauses are: settings of brokers, and addresses, change while queries run."""


@dataclass(frozen=True)
class _Idle:
    admin: KafkaAdmin
    end: threading.Timer


_lock = threading.Lock()

# One idle admin per worker process. It knows addresses and the longest timeout; nothing of a
# transaction. The process id is part of the key: a connection does not survive a fork.
_idle: dict[tuple[Any, ...], _Idle] = {}


def borrow_admin(config: ClientConfig, clock: Clock | None = None) -> KafkaAdmin:
    """Return an admin with these settings: the last one of this process if it came back a moment ago, else a new one.

    It belongs to the caller until `give_back`.
    """
    with _lock:
        kept = _idle.pop(_key(config), None)
    if kept is None:
        admin = KafkaAdmin(config, clock)
        admin.life = Deadline(LIFE_SECONDS)
        return admin
    kept.end.cancel()
    kept.admin.clock = clock or SystemClock()
    kept.admin.forget_coordinators()
    return kept.admin


def give_back(admin: KafkaAdmin) -> None:
    """Keep an admin for the next call, or close it: if a request is unanswered, if its caller failed, or if it is old."""
    if not admin.intact or admin.life.passed():
        admin.close()
        return
    admin.limit = None
    key = _key(admin.config)
    end = threading.Timer(IDLE_SECONDS, lambda: _let_go(key, end))
    end.daemon = True
    with _lock:
        others = [_idle.pop(each) for each in list(_idle) if each[0] == os.getpid()]
        _idle[key] = _Idle(admin, end)
    end.start()
    for other in others:
        other.end.cancel()
        if other.admin is not admin:
            other.admin.close()


def _let_go(key: tuple[Any, ...], end: threading.Timer) -> None:
    """Close an admin if no one has borrowed it since."""
    with _lock:
        idle = _idle.get(key)
        if idle is None or idle.end is not end:
            return
        del _idle[key]
    idle.admin.close()


def _key(config: ClientConfig) -> tuple[Any, ...]:
    return os.getpid(), config.name, frozenset(config.settings.items())
