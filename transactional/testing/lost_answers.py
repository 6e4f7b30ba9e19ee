"""A test in which the sink's connection ends after the store has handled a request, so that the sink gets no answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from transactional.testing.bench import Bench
from transactional.testing.deaths import spread

HOST = "127.0.0.1"
CONNECT_SECONDS = 10.0


class LostAnswers:
    """The part of `SinkConformance` that tests a connection on which the store's answers get lost."""

    def throughProxy(self, options: Mapping[str, str], forward: Callable[[str, int], int]) -> Mapping[str, str] | None:
        """Return the options, but with the address of a proxy in front of the store.

        By default, return None, which skips the test of lost answers. Override it if the sink reaches its store over
        TCP: many clients send a request again if they get no answer, and such a client may write rows twice. If a store
        returns further addresses (brokers, replica sets), its client does not use the proxy for these.

        Parameters
        ----------
        options : Mapping[str, str]
            A sink's options.
        forward : Callable[[str, int], int]
            Starts a proxy in front of a host and port of the store. Returns the proxy's port on 127.0.0.1.
        """
        return None

    def test_a_lost_answer_neither_loses_nor_doubles_rows(self, sink_options: Mapping[str, str]) -> None:
        """Each round after the first loses a different answer of the store, to a task or to its commit.

        The first round counts the answers. A failed task runs again. If a commit fails, another sink repeats the commit.
        After each round, all rows so far must be visible exactly once.
        """
        suite: Any = self
        bench = Bench(suite, sink_options)
        with ExitStack() as proxies:
            wire = _Wire()
            options = self.throughProxy(bench.options, lambda *store: proxies.enter_context(wire.proxy(*store)))
            if options is None:
                pytest.skip("the suite has no throughProxy")
            lossy = Bench(suite, options, bench.prefix, bench.query)
            seen: list[int] = []
            losses: list[int | None] = [None]  # the first turn counts the answers
            for turn, lost in enumerate(losses):
                numbers = [2 * turn, 2 * turn + 1]
                wire.lose(lost)
                seen += numbers
                try:
                    handle = lossy.prepare(numbers, 0, 0, turn)
                except Exception:
                    if lost is None:
                        raise
                    handle = lossy.prepare(numbers, 0, 1, turn)  # Spark runs it again
                try:
                    lossy.commit(handle)
                except AssertionError:
                    raise
                except Exception:
                    if lost is None:
                        raise
                    bench.commit(handle)  # the next run commits again
                bench.eventually(bench.seen, seen, f"visible rows, after answer {lost} was lost")
                if lost is None:
                    assert wire.answers, (
                        "no answer came through the proxy: do the options of throughProxy have its port?"
                    )
                    losses += spread(wire.answers, suite.deaths)
                bench.commit(handle)
                bench.next_checkpoint()
                lossy.next_checkpoint()
            bench.sweep()
            bench.must_see(seen)
            bench.must_be_finished()


class _Wire:
    """Counts the answers that pass through proxies, and loses one of them."""

    def __init__(self) -> None:
        self.answers = 0
        self._lost: int | None = None
        self._lock = threading.Lock()

    def lose(self, number: int | None) -> None:
        """Count from 0 again, and lose the answer with this number; None to lose none."""
        with self._lock:
            self.answers, self._lost = 0, number

    def passes(self) -> bool:
        """Count an answer. Return False if this answer must be lost."""
        with self._lock:
            self.answers += 1
            return self.answers != self._lost

    @contextmanager
    def proxy(self, host: str, port: int) -> Iterator[int]:
        """Run a proxy that forwards connections to a store, and yield the proxy's port."""
        socket.create_connection((host, port), CONNECT_SECONDS).close()  # raises here if nothing listens there
        connections: list[_Connection] = []
        with socket.create_server((HOST, 0)) as listener:
            threading.Thread(target=self._accept, args=(listener, (host, port), connections), daemon=True).start()
            try:
                yield listener.getsockname()[1]
            finally:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
                for connection in connections:
                    connection.end()

    def _accept(self, listener: socket.socket, store: tuple[str, int], connections: list[_Connection]) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                connections.append(_Connection(self, client))
                threading.Thread(target=connections[-1].run, args=(store,), daemon=True).start()


class _Connection:
    """A client's connection through a proxy. All data from the store between two requests counts as one answer."""

    def __init__(self, wire: _Wire, client: socket.socket) -> None:
        self._wire, self._client = wire, client
        self._ends = [client]
        self._asked = threading.Event()

    def run(self, store: tuple[str, int]) -> None:
        """Connect to the store, and forward until one side closes."""
        with contextlib.suppress(OSError):
            end = socket.create_connection(store, CONNECT_SECONDS)
            self._ends.append(end)
            end.settimeout(None)
            threading.Thread(target=self._forward_requests, args=(end,), daemon=True).start()
            self._forward_answers(end)
        self.end()

    def _forward_requests(self, store: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 16):
                self._asked.set()
                store.sendall(data)
            store.shutdown(socket.SHUT_WR)  # the client may still wait for answers

    def _forward_answers(self, store: socket.socket) -> None:
        while data := store.recv(1 << 16):
            if self._asked.is_set():
                self._asked.clear()
                if not self._wire.passes():
                    return
            self._client.sendall(data)

    def end(self) -> None:
        """Close both sides of the connection: to the client, and to the store."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
