"""A TCP proxy before Kafka nodes that can lose, hold, delay or repeat one kind of request or answer.

It knows of Kafka's protocol only the frame: 4 bytes of length, then a request's api key, version and correlation id, or
an answer's correlation id.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from integration.ports import HOST

FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
END_TXN = 26
"""Api keys that tests name. All of them: https://kafka.apache.org/protocol#protocol_api_keys."""

Change = Callable[[bytes, int], bytes]
"""Makes another answer of one: the answer from its correlation id on, and the request's version."""

JOIN_SECONDS = 5.0
"""How long `KafkaProxy.stop` waits for a thread whose sockets are closed already."""


class Action(enum.Enum):
    """What happens to a request, or to its answer."""

    HOLD_ANSWER = "the broker handles the request, its answer waits for release()"
    CHANGE_ANSWER = "the broker handles the request, and the client gets another answer"
    LOSE_ANSWER = "the broker handles and answers the request, and instead of the answer the client's connection ends"
    DELAY_REQUEST = "the request, and what follows it on its connection, waits for release()"
    REPEAT_LATE = "the request passes, and a copy of it is sent on a connection of its own at release()"


class Fault:
    """What a test armed: it takes hold of the next requests of one api key."""

    def __init__(
        self, api_key: int, action: Action, times: int, change: Change | None = None, node: int | None = None
    ) -> None:
        self.api_key = api_key  # The requests that it waits for.
        self.action = action  # What it does to them.
        self.change = change
        self.node = node
        self._left = times
        self._hits = 0
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._done = 0

    @property
    def hits(self) -> int:
        """How many requests it has taken hold of."""
        return self._hits

    @property
    def released(self) -> bool:
        """Whether what it holds may pass."""
        return self._released.is_set()

    def wait_until_hit(self, hits: int = 1, timeout: float = 30.0) -> None:
        """Wait until it has taken hold of `hits` requests. For a fault of the answer: until the broker has answered.

        Raises
        ------
        TimeoutError
            After `timeout` seconds.
        """
        answer = self.action in (Action.HOLD_ANSWER, Action.LOSE_ANSWER, Action.CHANGE_ANSWER)
        with self._changed:
            if not self._changed.wait_for(lambda: (self._done if answer else self._hits) >= hits, timeout):
                raise TimeoutError(f"{self.action.name} of api key {self.api_key}: {self._hits} hits, {hits} awaited.")

    def wait_until_sent(self, times: int = 1, timeout: float = 30.0) -> None:
        """Wait until what it delayed or repeated was sent on, or what it did to the answers was done, `times` times.

        Raises
        ------
        TimeoutError
            After `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._done >= times, timeout):
                raise TimeoutError(f"{self.action.name} of api key {self.api_key}: done {self._done} of {times} times.")

    def release(self) -> None:
        """Let pass what it holds, and take hold of nothing more."""
        with self._changed:
            self._left = 0
        self._released.set()

    def _takes(self, api_key: int, node: int) -> bool:
        with self._changed:
            if api_key != self.api_key or self._left == 0 or self.node not in (None, node):
                return False
            self._left -= 1
            self._hits += 1
            self._changed.notify_all()
            return True

    def _hold(self) -> None:
        self._released.wait()

    def _mark_done(self) -> None:
        with self._changed:
            self._done += 1
            self._changed.notify_all()


class KafkaProxy:
    """Forwards TCP connections to Kafka nodes, frame by frame, and does what the test's faults say.

    Several faults may be armed; a request is taken by the first of them that wants its api key. Requests that no
    fault wants pass untouched.

    Examples
    --------
    >>> lost = kafka.proxy.lose_answer(END_TXN)
    >>> commit_through(kafka.proxy.bootstrap_servers)
    >>> lost.wait_until_hit()
    """

    def __init__(self, nodes: Mapping[int, int]) -> None:
        self.ports = list(nodes)
        self._nodes = dict(nodes)  # The port to listen on, and the port of the node behind it.
        self._faults: list[Fault] = []
        self._connections: set[_Connection] = set()
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def bootstrap_servers(self) -> str:
        """The proxy's addresses, one a node."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    def start(self) -> None:
        """Begin to listen. Does nothing when it listens already."""
        if self._listeners:
            return
        for port, node in self._nodes.items():
            listener = socket.create_server((HOST, port))
            self._listeners.append(listener)
            thread = threading.Thread(target=self._accept, args=(listener, node), name=f"proxy-{port}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Release all faults, end all connections and stop listening."""
        self.clear()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                # Closing alone does not wake a thread that waits in accept().
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners.clear()
        self.cut()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self._threads.clear()

    def cut(self) -> None:
        """End all connections that are open now; new ones are taken."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def clear(self) -> None:
        """Release and forget all faults."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.release()

    def hold_answer(self, api_key: int, times: int = 1) -> Fault:
        """Keep the broker's answers to the next `times` requests until ``release()``."""
        return self._arm(Fault(api_key, Action.HOLD_ANSWER, times))

    def lose_answer(self, api_key: int, times: int = 1) -> Fault:
        """End the client's connection once the broker has answered, in place of the answer."""
        return self._arm(Fault(api_key, Action.LOSE_ANSWER, times))

    def delay_request(self, api_key: int, times: int = 1) -> Fault:
        """Keep the next `times` requests from the broker until ``release()``.

        They are sent then even when the client has given up and closed its connection: a network that was slow.
        """
        return self._arm(Fault(api_key, Action.DELAY_REQUEST, times))

    def repeat_late(self, api_key: int, times: int = 1) -> Fault:
        """Let the next `times` requests pass and send a copy of each at ``release()``: a duplicate on its way."""
        return self._arm(Fault(api_key, Action.REPEAT_LATE, times))

    def change_answer(self, api_key: int, change: Change, times: int = 1 << 30, node: int | None = None) -> Fault:
        """Let `change` make other answers of the broker's to the next `times` requests.

        Parameters
        ----------
        api_key : int
        change : Change
            See `Change`.
        times : int
            Until ``release()`` by default.
        node : int, optional
            Only those of this node, from 0.
        """
        port = None if node is None else list(self._nodes.values())[node]
        return self._arm(Fault(api_key, Action.CHANGE_ANSWER, times, change, port))

    def fault_for(self, api_key: int, node: int) -> Fault | None:
        """Return the fault that takes this request to the node at a port, and count it as taken."""
        with self._lock:
            return next((fault for fault in self._faults if fault._takes(api_key, node)), None)

    def forget(self, connection: _Connection) -> None:
        """Take note that a connection has ended."""
        with self._lock:
            self._connections.discard(connection)

    def _arm(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def _accept(self, listener: socket.socket, node: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((HOST, node), timeout=5)
            except OSError:
                client.close()
                continue
            for end in (client, broker):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(self, client, broker, node)
            with self._lock:
                self._connections.add(connection)
            connection.start()


@dataclass
class _Awaited:
    """An answer that the broker owes."""

    fault: Fault | None = None
    version: int = 0


@dataclass(eq=False)
class _Connection:
    """One client's connection: a thread for its requests, a thread for the answers."""

    proxy: KafkaProxy
    client: socket.socket
    broker: socket.socket
    node: int
    awaited: dict[int, list[_Awaited]] = field(default_factory=dict)
    client_left: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        for pump in (self._pump_requests, self._pump_answers):
            threading.Thread(target=pump, name=f"proxy-{self.node}-{pump.__name__}", daemon=True).start()

    def close(self) -> None:
        for end in (self.client, self.broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.proxy.forget(self)

    def _pump_requests(self) -> None:
        with contextlib.suppress(OSError):
            while (frame := _read_frame(self.client)) is not None:
                self._forward_request(frame)
        with self.lock:
            self.client_left = True
            finished = not self.awaited
        # A client that gave up on a delayed request does not take it back: the broker's end stays until it answered.
        if finished:
            self.close()

    def _forward_request(self, frame: bytes) -> None:
        api_key, version, correlation = struct.unpack_from(">hhi", frame, 4)
        fault = self.proxy.fault_for(api_key, self.node)
        action = fault.action if fault else None
        if fault is not None and action is Action.DELAY_REQUEST:
            fault._hold()
        with self.lock:
            self.awaited.setdefault(correlation, []).append(_Awaited(fault, version))
        self.broker.sendall(frame)
        if fault is None:
            return
        if action is Action.REPEAT_LATE:
            threading.Thread(target=self._send_late, args=(frame, fault), name="proxy-late", daemon=True).start()
        elif action is Action.DELAY_REQUEST:
            fault._mark_done()

    def _send_late(self, frame: bytes, fault: Fault) -> None:
        fault._hold()
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.node), timeout=5) as copy:
            copy.sendall(frame)
            # Its answer proves that the broker has handled it; nobody reads what it says.
            _read_frame(copy)
        fault._mark_done()

    def _pump_answers(self) -> None:
        with contextlib.suppress(OSError):
            while (frame := _read_frame(self.broker)) is not None:
                if not self._forward_answer(frame):
                    break
        self.close()

    def _forward_answer(self, frame: bytes) -> bool:
        """Hand one answer on; return whether the connection lives on."""
        (correlation,) = struct.unpack_from(">i", frame, 4)
        with self.lock:
            queue = self.awaited.get(correlation, [_Awaited()])
            expected = queue.pop(0)
            if not queue:
                self.awaited.pop(correlation, None)
        fault = expected.fault
        action = fault.action if fault else None
        if fault is not None and action in (Action.HOLD_ANSWER, Action.LOSE_ANSWER):
            fault._mark_done()
        if action is Action.LOSE_ANSWER:
            return False
        if fault is not None and action is Action.HOLD_ANSWER:
            fault._hold()
        if fault is not None and fault.change is not None:
            body = fault.change(frame[4:], expected.version)
            frame = len(body).to_bytes(4, "big") + body
            fault._mark_done()
        with contextlib.suppress(OSError):
            self.client.sendall(frame)
        with self.lock:
            return not (self.client_left and not self.awaited)


def _read_frame(end: socket.socket) -> bytes | None:
    """Return one frame with its length before it, or None at the end of the stream."""
    head = _read_exactly(end, 4)
    if head is None:
        return None
    body = _read_exactly(end, int.from_bytes(head, "big"))
    return None if body is None else head + body


def _read_exactly(end: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = end.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
