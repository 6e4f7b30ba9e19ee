"""kafka-python's network classes with what they keep to themselves: why a connection failed, and secrets.

Imported where a connection is made: kafka-python takes 0.2 s to import.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from transactional.errors import TwoPhaseCommitError

__all__ = ["TellingManager", "telling_client"]

PASSING_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""What the end of a connection looks like under TLS: a broker that restarts says it, too."""


class _NoWire(logging.Filter):
    """Drops what shows requests as they are: those that log in hold the password."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_NoWire())


class TellingManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Remembers why the last connection failed, and gives the bootstrap up at once where waiting can't help.

    Attributes
    ----------
    reason : BaseException or None
        Of the last failed connection.
    """

    def __init__(self, net: Any, **configuration: Any) -> None:
        self.reason: BaseException | None = None
        self._fatal: dict[Any, BaseException] = {}
        super().__init__(net, **configuration)

    @property
    def fatal(self) -> BaseException | None:
        """The reason of a node whose last connection failed with one that no waiting heals."""
        return next(iter(self._fatal.values()), None)

    def get_connection(self, node_id: Any, *arguments: Any, **named: Any) -> Any:
        """See KafkaConnectionManager; a new connection reports here how it ends."""
        known = self._conns.get(node_id)
        connection = super().get_connection(node_id, *arguments, **named)
        if connection is not known:
            connection.init_future.add_callback(lambda _: self._fatal.pop(node_id, None))
            for future in (connection.init_future, connection.close_future):
                future.add_errback(partial(self._note, node_id))
        return connection

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        transport._sock_recv = last_words(transport._sock_recv)
        return transport

    def _note(self, node_id: Any, problem: BaseException) -> None:
        cause = cause_of(problem)
        if isinstance(cause, errors.Cancelled):
            return
        self.reason = cause
        if is_fatal(cause):
            self._fatal[node_id] = cause
            if not self.bootstrapped:
                self.closed = True
                self._bootstrap_wakeup.notify()


def telling_client(**configuration: Any) -> Any:
    """A client whose manager is a `TellingManager`; for KafkaAdminClient's ``kafka_client``."""
    net = NetworkSelector(**configuration)
    return KafkaNetClient(net=net, manager=TellingManager(net, **configuration), **configuration)


def last_words(receive: Callable[[], tuple[bytes, Any]]) -> Callable[[], tuple[bytes, Any]]:
    """Make a transport's read give what came before the end of its connection, and the end at the next read.

    A broker that refuses a password answers and hangs up. kafka-python (3.0.12) drops what it has read together with the
    end: "socket disconnected" was all that was left of the answer, in most runs.
    """
    ended: list[Any] = []

    def read() -> tuple[bytes, Any]:
        if ended:
            return b"", ended[0]
        data, end = receive()
        if data and end:
            ended.append(end)
            return data, None
        return data, end

    return read


def cause_of(problem: BaseException) -> BaseException:
    """The TLS error behind a connection's error, where there is one."""
    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return seen
        inner = seen.args[0] if seen.args and isinstance(seen.args[0], BaseException) else None
        seen = inner or seen.__cause__ or seen.__context__
    return problem


def is_fatal(problem: BaseException) -> bool:
    """Whether no waiting heals it."""
    if isinstance(problem, ssl.SSLError):
        return not isinstance(problem, PASSING_TLS)
    return isinstance(
        problem,
        (
            errors.SaslAuthenticationFailedError,
            errors.UnsupportedSaslMechanismError,
            errors.IllegalSaslStateError,
            TwoPhaseCommitError,
        ),
    )
