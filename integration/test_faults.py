"""The switch between hosts does what it is told; `make matrix` has a little of what `make faults` does for hours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from integration.driver_process import wait_until
from integration.faults.network import Link, Network, may_make_networks
from integration.faults.trial import Plan, run, stage

PORT, OTHER_PORT = 9092, 9093

ECHO = f"""
import socketserver, threading
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
socketserver.ThreadingTCPServer.allow_reuse_address = True
for port in ({PORT}, {OTHER_PORT}):
    server = socketserver.ThreadingTCPServer(("0.0.0.0", port), Echo)
    threading.Thread(target=server.serve_forever).start()
print("ready", flush=True)
"""

ASK = """
import socket, sys, time
begin = time.monotonic()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1) as connection:
    connection.settimeout(1)
    data = b"x" * 200_000
    connection.sendall(data)
    while data:
        data = data[len(connection.recv(65536)):]
print(time.monotonic() - begin)
"""


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if not may_make_networks():
        pytest.skip("hosts of their own need root and /dev/net/tun")


@pytest.fixture(scope="module")
def network(possible: None) -> Iterator[Network]:
    """Hosts 1 and 2; at host 1 something answers."""
    with Network(2) as made:
        command = [*made.entrance(1), sys.executable, "-c", ECHO]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield made
            server.kill()


@pytest.fixture
def healed(network: Network) -> Iterator[Network]:
    """The network, which passes everything afterwards."""
    yield network
    network.heal()


def asked(network: Network, host: int = 2, port: int = PORT) -> float | None:
    """Seconds until a host has got back what it sent to host 1; None if it is not answered."""
    command = [*network.entrance(host), sys.executable, "-c", ASK, network.address(1), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def reached(network: Network, host: int = 2, port: int = PORT) -> float:
    """Seconds, in the end: a busy machine may not answer at once."""
    return wait_until(lambda: asked(network, host, port), "an answer") or 0.0


def test_hosts_reach_each_other_and_who_made_them(network: Network) -> None:
    reached(network)
    reached(network, host=0)


@pytest.mark.parametrize("link", [(1, 2), (2, 1)])
def test_a_link_that_drops_one_way_stops_both(healed: Network, link: tuple[int, int]) -> None:
    healed.set({link: Link(drop=True)})
    assert asked(healed) is None
    reached(healed, host=0)  # another link
    healed.heal()
    reached(healed)


def test_a_link_may_drop_what_belongs_to_one_port(healed: Network) -> None:
    healed.set({(1, 2): Link(drop=True, port=OTHER_PORT)})
    assert asked(healed, port=OTHER_PORT) is None
    reached(healed)


def test_a_slow_link_takes_its_time_and_a_lossy_one_repeats(healed: Network) -> None:
    healed.set({(1, 2): Link(delay=0.1, jitter=0.05), (2, 1): Link(delay=0.1)})
    assert reached(healed) > 0.3, "a connection, and an answer, are three ways at least"
    healed.set({(1, 2): Link(loss=0.3), (2, 1): Link()})
    reached(healed)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", ["kafka", "postgresql"])
def test_a_query_survives_faults_of_brokers_networks_and_disks(workload: str) -> None:
    with stage() as ground:
        result = run(ground, Plan.of(3, workload, 6, kills=False), lambda _: None)
    assert result.wrong == []
    assert result.rows > 0
