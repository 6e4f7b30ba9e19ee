"""One Kafka node as a child process: formatted, started, ended, paused, and gone when its parent is gone."""

from __future__ import annotations

import base64
import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.jars import KAFKA_VERSION, cache_folder, exclusive, java_executable, resolve_kafka
from integration.ports import HOST

JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A quick start and a small process. A benchmark wants the JVM's own: ``jvm_options=["-Xmx512m"]``."""

_DIE_WITH_PARENT = """\
import os, signal, sys
broker = int(sys.argv[1])
handle = os.pidfd_open(broker) if hasattr(os, "pidfd_open") else None
sys.stdout.write("r"); sys.stdout.flush()
sys.stdin.read()
try:
    signal.pidfd_send_signal(handle, signal.SIGKILL) if handle is not None else os.kill(broker, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


class BrokerError(RuntimeError):
    """A broker did not start, or a cluster did not become ready in time; the message ends with its log."""


class Broker:
    """One Kafka node, broker and controller in one process.

    Tests want a `Cluster`, which makes the nodes' properties and waits until they can be used.
    """

    def __init__(
        self,
        node_id: int,
        folder: Path,
        properties: Mapping[str, str],
        cluster_id: str,
        features: Mapping[str, int],
        jvm_options: Sequence[str],
        version: str = KAFKA_VERSION,
        entrance: Sequence[str] = (),
    ) -> None:
        self._entrance = tuple(entrance)  # Words before its command that run it at a host of its own.
        self.node_id = node_id  # The node's id in the cluster, from 1.
        self.folder = folder  # Where its properties, its log and its data live; formatted at the first start.
        self.log_file = folder / "server.log"
        self.paused = False
        # Everything in its ``server.properties``. Without ``log.dirs``, which is ``<folder>/log``.
        self._properties = dict(properties)
        self._cluster_id = cluster_id  # 22 characters of URL-safe base64, equal in all nodes.
        # Feature levels other than Kafka's defaults, such as ``{"transaction.version": 1}``. They count at the format.
        self._features = dict(features)
        self._jvm_options = tuple(jvm_options)  # What stands before the class path.
        self.version = version  # Kafka's.
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether its process runs (or is paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of its running process."""
        return self._running().pid

    def spawn(self) -> None:
        """Start the process without waiting until it answers."""
        if self.alive:
            raise BrokerError(f"Node {self.node_id} runs already.")
        self._format()
        properties = {**self._properties, "log.dirs": str(self.folder / "log")}
        settings = self.folder / "server.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = [*self._entrance, *_java(self._jvm_options, self.version), "kafka.Kafka", str(settings)]
        with self.log_file.open("ab") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches us and not the broker: it is stopped cleanly.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        self.paused = False
        self._watcher = end_with_us(self._process.pid)

    def terminate(self) -> None:
        """Ask the process to stop cleanly (SIGTERM); a paused one is woken for it."""
        if self.alive:
            self.resume()
            self._running().send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> None:
        """Wait until the process has ended; kill it when it has not after `timeout` seconds."""
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._unwatch()

    def kill(self) -> None:
        """End the process at once (SIGKILL) and wait until it is gone."""
        self._running().kill()
        self._running().wait()
        self._unwatch()

    def pause(self) -> None:
        """Stop the process where it is (SIGSTOP): its connections stay open and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Let a paused process run on (SIGCONT)."""
        if self.paused:
            self._running().send_signal(signal.SIGCONT)
            self.paused = False

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of its log."""
        if not self.log_file.exists():
            return "(no log)"
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerError(f"Node {self.node_id} was never started.")
        return self._process

    def _unwatch(self) -> None:
        if self._watcher is not None:
            # Killed before its pipe closes: it would take the closing for our death.
            self._watcher.kill()
            self._watcher.wait()
            for pipe in (self._watcher.stdin, self._watcher.stdout):
                if pipe is not None:
                    pipe.close()
            self._watcher = None

    def _format(self) -> None:
        log = self.folder / "log"
        if (log / "meta.properties").exists():
            return
        log.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_bootstrap_metadata(self._features, self.version), log / "bootstrap.checkpoint")
        (log / "meta.properties").write_text(
            f"version=1\ncluster.id={self._cluster_id}\nnode.id={self.node_id}\ndirectory.id={random_id()}\n"
        )


def _java(options: Sequence[str], version: str) -> list[str]:
    logging = (
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.coordinator.transaction=info",
        "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=info",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    )
    scratch = (
        f"-Djava.io.tmpdir={tempfile.gettempdir()}"  # it unpacks libraries there, and leaves them when it is killed
    )
    return [java_executable(), *options, scratch, *logging, "-cp", f"{resolve_kafka(version)}/*"]


def random_id() -> str:
    """Return a new id as Kafka makes them: 22 characters of URL-safe base64."""
    # Kafka refuses ids that begin with a dash.
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")


def _bootstrap_metadata(features: Mapping[str, int], version: str) -> Path:
    """Return the file with which a new node starts its metadata: the levels of all features, and nothing else.

    It is the same for every cluster with these levels, and Kafka's tool takes a JVM's start to write it: it is written
    once and kept beside the jars.
    """
    named = ",".join(f"{name}={level}" for name, level in sorted(features.items()))
    kept = cache_folder() / f"bootstrap-{version}-{hashlib.sha256(named.encode()).hexdigest()[:12]}.checkpoint"
    if kept.exists():
        return kept
    command = _java(JVM_OPTIONS, version)
    with exclusive("bootstrap"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".format-") as scratch:
        if kept.exists():
            return kept
        settings = Path(scratch) / "server.properties"
        settings.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{HOST}:1\n"
            f"controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://{HOST}:2,CONTROLLER://{HOST}:1\n"
            f"log.dirs={scratch}/log\n"
        )
        levels = [part for name, level in sorted(features.items()) for part in ("--feature", f"{name}={level}")]
        command += ["kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(settings), *levels]
        formatted = subprocess.run(command, capture_output=True, text=True, check=False)
        if formatted.returncode != 0:
            raise BrokerError(f"Kafka's format failed:\n{formatted.stdout}{formatted.stderr}")
        (written,) = Path(scratch, "log").rglob("*.checkpoint")  # since 4.4.0 in the folder of the metadata's log
        written.rename(kept)
    return kept


def end_with_us(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that kills `pid` when we are gone.

    It notices by the end of a pipe that only we hold. (PR_SET_PDEATHSIG would fire when the *thread* that started the
    broker ends.) It holds the broker by a pidfd, so an id that the system gave away again is never hit.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    if watcher.stdout is not None:
        watcher.stdout.read(1)
    return watcher
