"""Keep admin clients for reuse: Spark calls the sink several times in each micro-batch, in processes that it reuses.

A new admin costs a thread, a connection, and several round trips (more with TLS or a login), for only a few requests.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Final

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.config import ClientConfig
from transactional.clock import Clock, Deadline, SystemClock

IDLE_SECONDS: Final = 10.0
"""The time after which an idle admin client is closed. If the client stayed open, its thread would look for brokers as
long as the process lives, and log whenever they are down.
"""

LIFE_SECONDS: Final = 60.0
"""The longest time for which an admin client is reused. Brokers' settings and addresses can change while queries run."""


@dataclass(frozen=True)
class _Idle:
    admin: KafkaAdmin
    end: threading.Timer


_lock = threading.Lock()

# One idle admin per process. It remembers addresses and the longest timeout, but nothing about
# transactions. The process id is part of the key, because a connection does not survive a fork.
_idle: dict[tuple[Any, ...], _Idle] = {}


def borrow_admin(config: ClientConfig, clock: Clock | None = None) -> KafkaAdmin:
    """Return an admin client with these settings: this process's idle client if it has one, else a new client.

    The client belongs to the caller until `give_back`.
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
    """Keep an admin client for the next call of `borrow_admin`, in place of the client that was kept before.

    If a request has no answer, the caller failed, or the client is too old, close the client instead.
    """
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
    """Close an admin client that was idle for `IDLE_SECONDS`, unless it was borrowed in the meantime."""
    with _lock:
        idle = _idle.get(key)
        if idle is None or idle.end is not end:
            return
        del _idle[key]
    idle.admin.close()


def _key(config: ClientConfig) -> tuple[Any, ...]:
    return os.getpid(), config.name, frozenset(config.settings.items())
