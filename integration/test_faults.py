"""The switch between hosts does what it is told; `make matrix` has a little of what `make faults` does for hours."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from integration.driver_process import wait_until
from integration.faults.network import Link, Network, may_make_networks
from integration.faults.trial import Plan, run, stage

pytestmark = pytest.mark.skipif(not may_make_networks(), reason="hosts of their own need root and /dev/net/tun")

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


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Hosts 1 and 2; at host 1 something answers."""
    with Network(2) as made:
        command = [*made.entrance(1), sys.executable, "-c", ECHO]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield made
            server.kill()


@pytest.fixture(autouse=True)
def healed(network: Network) -> Iterator[None]:
    yield
    network.heal()


def asked(network: Network, host: int = 2, port: int = PORT) -> float | None:
    """Seconds until a host has got back what it sent to host 1; None if it is not answered."""
    command = [*network.entrance(host), sys.executable, "-c", ASK, network.address(1), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def test_hosts_reach_each_other_and_who_made_them(network: Network) -> None:
    assert asked(network) is not None
    assert asked(network, host=0) is not None


@pytest.mark.parametrize("link", [(1, 2), (2, 1)])
def test_a_link_that_drops_one_way_stops_both(network: Network, link: tuple[int, int]) -> None:
    network.set({link: Link(drop=True)})
    wait_until(lambda: asked(network) is None, "the link drops")
    assert asked(network, host=0) is not None, "another link"
    network.heal()
    wait_until(lambda: asked(network) is not None, "the link is healed")


def test_a_link_may_drop_what_belongs_to_one_port(network: Network) -> None:
    network.set({(1, 2): Link(drop=True, port=OTHER_PORT)})
    wait_until(lambda: asked(network, port=OTHER_PORT) is None, "the port is cut off")
    assert asked(network) is not None


def test_a_slow_link_takes_its_time_and_a_lossy_one_repeats(network: Network) -> None:
    network.set({(1, 2): Link(delay=0.1, jitter=0.05), (2, 1): Link(delay=0.1)})
    time.sleep(0.2)  # until the switch has heard
    assert (asked(network) or 0.0) > 0.3, "a connection, and an answer, are three ways at least"
    network.set({(1, 2): Link(loss=0.3), (2, 1): Link()})
    wait_until(lambda: asked(network) is not None, "what was lost is sent again")


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload", ["kafka", "postgresql"])
def test_a_query_survives_faults_of_brokers_networks_and_disks(workload: str) -> None:
    with stage() as ground:
        result = run(ground, Plan.of(3, workload, 6, kills=False), lambda _: None)
    assert result.wrong == []
    assert result.rows > 0
