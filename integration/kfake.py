"""A broker that is not Apache Kafka's, as a child process: kfake, of the Go client franz-go. It keeps its data on disk."""

from __future__ import annotations

import shutil
import subprocess
import tempfile

from confluent_kafka.admin import AdminClient, NewTopic

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
        self._process: subprocess.Popen[str] | None = None
        self._watchers: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap_servers(self) -> str:
        """Its address."""
        return f"{HOST}:{self._port}"

    def __enter__(self) -> Kfake:
        self.start()
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
        command = [str(go_program("broker")), self._folder, str(self._port), *([self._release] if self._release else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._watchers.append(end_with_us(self._process.pid))
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "kfake did not start"

    def kill(self) -> None:
        """End it as by ``kill -9``."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(30)
