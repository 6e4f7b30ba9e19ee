"""Hosts in network namespaces of their own, and a switch between them that drops, delays and loses packets as it is told.

The switch is a child process. Each host has a TUN device whose other end the switch holds, so every packet passes it, and
no module of the kernel is needed but ``tun``. Needs root, and Linux. All of it is gone when the switch ends.

Host 0 is the one of who made the network: its namespace is that of this process.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType

from integration import ROOT

__all__ = ["Link", "Network", "may_make_networks"]

MTU = 16_000
"""Bytes: a few packets for a request of Kafka's, as the switch is Python."""

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU, SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8916, 0x891C, 0x8922, 0x8913, 0x8914
IFF_UP = 0x1


@dataclass(frozen=True)
class Link:
    """What happens to packets from one host to another; the way back is another link."""

    drop: bool = False  # All of them are lost.
    delay: float = 0.0  # Seconds that each takes.
    jitter: float = 0.0  # Seconds at most that each takes beside them. Packets stay in order.
    loss: float = 0.0  # The share that is lost, from 0 to 1.
    port: int = 0  # Of only the connections that this TCP port is an end of; 0 for all.


@functools.cache
def may_make_networks() -> bool:
    """Whether this process may make namespaces and TUN devices: it is tried."""
    try:
        with Network(1) as network:
            return subprocess.run([*network.entrance(1), "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


class Network:
    """A network of hosts. A context manager."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts  # How many beside host 0: their numbers begin with 1.
        self._links: dict[tuple[int, int], Link] = {}
        self._process: subprocess.Popen[str] | None = None
        self._subnet = 0
        self._namespaces: list[int] = []

    def __enter__(self) -> Network:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "integration.faults.network", str(self.hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            self._process.wait()
            raise OSError("the switch did not start: it needs root, and /dev/net/tun")
        self._subnet, self._namespaces = json.loads(said)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def address(self, host: int) -> str:
        """Return the IPv4 address of a host."""
        return _address(self._subnet, host)

    def entrance(self, host: int) -> list[str]:
        """Return the words before a command that run it at a host; they become the command, with its process id."""
        assert self._process is not None
        return ["nsenter", f"--net=/proc/{self._process.pid}/fd/{self._namespaces[host - 1]}", "--"] if host else []

    def set(self, links: Mapping[tuple[int, int], Link]) -> None:
        """Change links, each given by the hosts that it leads from and to."""
        self._links.update(links)
        self._tell()

    def heal(self) -> None:
        """Let every packet pass at once."""
        self._links.clear()
        self._tell()

    def _tell(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        told = [[source, target, asdict(link)] for (source, target), link in self._links.items()]
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()  # the switch has heard


def _address(subnet: int, host: int) -> str:
    return f"10.{200 + subnet // 256}.{subnet % 256}.{host or 254}"


# -- the switch's process -------------------------------------------------------------------------------------------------


def main(hosts: int) -> None:
    """Make the hosts, say where they are, and pass packets until standard input ends."""
    subnet = os.getpid() % 8192
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    devices, namespaces = {0: _device(subnet, 0)}, []
    for host in range(1, hosts + 1):
        if libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        _raise_flag(b"lo")
        devices[host] = _device(subnet, host)
    libc.setns(home, CLONE_NEWNET)
    print(json.dumps([subnet, namespaces]), flush=True)
    _Switch(devices, subnet).run()


def _device(subnet: int, host: int) -> int:
    """Make a TUN device in this thread's namespace, with a host's address; return its other end."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"barrier{subnet}".encode()
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name, IFF_TUN | IFF_NO_PI))
    _configure(SIOCSIFADDR, name, _in_sockaddr(_address(subnet, host)))
    _configure(SIOCSIFNETMASK, name, _in_sockaddr("255.255.255.0"))
    _configure(SIOCSIFMTU, name, struct.pack("i", MTU))
    _raise_flag(name)
    return end


def _in_sockaddr(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def _configure(request: int, name: bytes, value: bytes) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, request, struct.pack("16s24s", name, value))


def _raise_flag(name: bytes) -> None:
    (flags,) = struct.unpack_from("H", _configure(SIOCGIFFLAGS, name, b""), 16)
    _configure(SIOCSIFFLAGS, name, struct.pack("H", flags | IFF_UP))


class _Switch:
    """Passes packets from device to device."""

    def __init__(self, devices: Mapping[int, int], subnet: int) -> None:
        self._devices = devices
        self._hosts = {socket.inet_aton(_address(subnet, host)): host for host in devices}
        self._links: dict[tuple[int, int], Link] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._last: dict[tuple[int, int], float] = {}
        self._sent = 0

    def run(self) -> None:
        """Pass packets until standard input ends."""
        poll = select.epoll()
        for end in (0, *self._devices.values()):
            poll.register(end, select.EPOLLIN)
        told = b""
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else -1
            for end, _ in poll.poll(wait):
                if end == 0:
                    more = os.read(0, 65536)
                    if not more:
                        return
                    *lines, told = (told + more).split(b"\n")
                    if lines:
                        self._links = {(a, b): Link(**link) for a, b, link in json.loads(lines[-1])}
                        print(flush=True)
                else:
                    self._take(end)
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, target, packet = heapq.heappop(self._late)
                self._pass(target, packet)

    def _take(self, end: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(end, MTU + 64)
            except BlockingIOError:
                return
            source, target = self._hosts.get(packet[12:16]), self._hosts.get(packet[16:20])
            if source is None or target is None:
                continue
            link = self._links.get((source, target))
            if link is None or not _concerns(link, packet):
                self._pass(target, packet)
            elif not link.drop and random.random() >= link.loss:
                due = time.monotonic() + link.delay + link.jitter * random.random()
                # A late packet holds up those after it: a wire does not reorder.
                due = self._last[source, target] = max(due, self._last.get((source, target), 0.0))
                self._sent += 1
                heapq.heappush(self._late, (due, self._sent, target, packet))

    def _pass(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._devices[target], packet)
        except OSError:
            return  # a full queue drops, as in any network


def _concerns(link: Link, packet: bytes) -> bool:
    if not link.port:
        return True
    begin = (packet[0] & 15) * 4
    return packet[9] == socket.IPPROTO_TCP and link.port in struct.unpack_from(">HH", packet, begin)


if __name__ == "__main__":
    main(int(sys.argv[1]))
