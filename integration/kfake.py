"""A broker that is not Apache Kafka's, as a child process: kfake, of the Go client franz-go. It keeps its data on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile

from confluent_kafka.admin import AdminClient, NewTopic

from integration.driver_process import wait_until
from integration.go_programs import go_program
from integration.node import end_with_us
from integration.ports import HOST, Ports

__all__ = ["Kfake"]


class Kfake:
    """A cluster of one broker. A context manager; port and data survive `kill`."""

    def __init__(self, release: str = "") -> None:
        self._release = release  # Kafka's, such as ``v2.8``: newer requests are not supported. Empty for all.
        self._ports = Ports()
        self._port = self._ports.reserve()
        self._folder = tempfile.mkdtemp(prefix="barrier-kfake-")
        self._process: subprocess.Popen[bytes] | None = None
        self._watchers: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap_servers(self) -> str:
        """Its address."""
        return f"{HOST}:{self._port}"

    def __enter__(self) -> Kfake:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        self.kill()
        for watcher in self._watchers:
            watcher.kill()
            watcher.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._ports.release()

    def start(self) -> None:
        """Start it; return when it answers."""
        command = [
            str(go_program("broker")),
            self._folder,
            str(self._port),
            *([self._release] if self._release else []),
        ]
        self._process = subprocess.Popen(command, start_new_session=True)
        self._watchers.append(end_with_us(self._process.pid))
        wait_until(self._answers, "kfake", alive=lambda: "kfake ended" if self._ended() else None)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """End it as by ``kill -9``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(30)
