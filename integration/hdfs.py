"""An HDFS of its own for tests: one or two NameNodes and a DataNode as child processes.

Two NameNodes share their edits through a folder, as with NFS. The first one is active until `HdfsServer.fail_over`.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyspark
import pytest

from connector.location.webhdfs import ADDRESSES
from integration.driver_process import wait_until
from integration.jars import java_executable, resolve_hdfs
from integration.node import end_with_us
from integration.ports import HOST, Ports

__all__ = ["HdfsServer", "hdfs_for_users"]

USER = "barrier"
SERVICE = "cluster"
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
PROXY = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
JVM_OPTIONS = ("-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dhadoop.root.logger=WARN,console")


class HdfsServer:
    """A file system in which anybody may write to ``/``. A context manager."""

    def __init__(self, namenodes: int = 1) -> None:
        self._ports = Ports()
        self._rpc = [self._ports.reserve() for _ in range(namenodes)]
        self._web = [self._ports.reserve() for _ in range(namenodes)]
        self._of_datanode = [self._ports.reserve() for _ in range(3)]
        self._folder = Path(tempfile.mkdtemp(prefix="barrier-hdfs-", dir="/tmp"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The root of its files, as Hadoop names it."""
        return f"hdfs://{SERVICE}" if len(self._rpc) > 1 else f"hdfs://{HOST}:{self._rpc[0]}"

    @property
    def endpoint(self) -> str:
        """The option ``checkpointEndpoint``."""
        return ",".join(f"http://{HOST}:{port}" for port in self._web)

    @property
    def webhdfs(self) -> str:
        """The environment variable ``BARRIER_WEBHDFS``."""
        return f"another=http://{HOST}:1 {self.url.removeprefix('hdfs://')}={self.endpoint}"

    @property
    def conf(self) -> dict[str, str]:
        """With which Spark finds it."""
        wanted = ("dfs.nameservices", "dfs.ha.namenodes", "dfs.namenode.rpc-address", "dfs.client", "dfs.replication")
        return {f"spark.hadoop.{key}": value for key, value in self._settings().items() if key.startswith(wanted)}

    def __enter__(self) -> HdfsServer:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        settings = {"fs.defaultFS": self.url, **self._settings()}
        lines = [
            f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in settings.items()
        ]
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self._folder / name).write_text(f"<configuration>{''.join(lines)}</configuration>")
        self._run(NAMENODE, "-format", "-nonInteractive", number=0)
        self.start("namenode0")
        wait_until(lambda: self._serves(0), "the NameNode", alive=self._why_dead)
        if len(self._rpc) > 1:
            self._run(NAMENODE, "-bootstrapStandby", "-nonInteractive", number=1)
            self.start("namenode1")
            wait_until(lambda: self._serves(1), "the second NameNode", alive=self._why_dead)
            self._run(ADMIN, "-transitionToActive", "nn0")
        self.start("datanode")
        wait_until(self._can_write, "the HDFS", alive=self._why_dead)

    def __exit__(self, *problem: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for watcher in self._watchers:
            watcher.kill()
            watcher.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._ports.release()

    def start(self, name: str) -> None:
        """Start ``namenode0``, ``namenode1`` or ``datanode``."""
        program, number = (DATANODE, 0) if name == "datanode" else (NAMENODE, int(name[-1]))
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._command(program, number), stdout=log, stderr=log, start_new_session=True, env=_environment()
            )
        self._watchers.append(end_with_us(self._processes[name].pid))

    def kill(self, name: str) -> None:
        """Kill a server."""
        self._processes[name].kill()
        self._processes[name].wait()

    def fail_over(self) -> None:
        """Kill the first NameNode, and make the second one active."""
        self.kill("namenode0")
        self._run(ADMIN, "-transitionToActive", "--forceactive", "nn1")

    def ask(self, method: str, path: str, op: str, user: str = USER, **parameters: str) -> Any:
        """Send a request of WebHDFS; return the answer."""
        query = "&".join(f"{key}={value}" for key, value in {"op": op, "user.name": user, **parameters}.items())
        answers: list[Any] = []
        for port in self._web:
            request = urllib.request.Request(f"http://{HOST}:{port}/webhdfs/v1{path}?{query}", method=method)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                answers.append(error.read().decode(errors="replace"))
            except OSError as error:
                answers.append(error)
        raise OSError(answers)

    def _serves(self, number: int) -> bool:
        try:
            return bool(self._bean("NameNodeStatus", number)["State"])
        except (OSError, IndexError):
            return False

    def _can_write(self) -> bool:
        try:
            self.ask("PUT", "/", "SETPERMISSION", getpass.getuser(), permission="777")
            state = self._bean("FSNamesystemState")
        except OSError:
            return False
        return int(state["NumLiveDataNodes"]) > 0 and not self._bean("NameNodeInfo")["Safemode"]

    def _bean(self, name: str, number: int = 0) -> Any:
        url = f"http://{HOST}:{self._web[number]}/jmx?qry=Hadoop:service=NameNode,name={name}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["beans"][0]

    def _why_dead(self) -> str | None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                return f"{name} ended: {(self._folder / f'{name}.log').read_text(errors='replace')[-3000:]}"
        return None

    def _settings(self) -> dict[str, str]:
        data, http, ipc = self._of_datanode
        common = {
            "dfs.replication": "1",
            "dfs.datanode.data.dir": f"file://{self._folder}/data",
            "dfs.datanode.address": f"{HOST}:{data}",
            "dfs.datanode.http.address": f"{HOST}:{http}",
            "dfs.datanode.ipc.address": f"{HOST}:{ipc}",
            "dfs.datanode.hostname": HOST,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.name.dir": f"file://{self._folder}/${{barrier.namenode}}",
        }
        if len(self._rpc) == 1:
            return {**common, "dfs.namenode.http-address": f"{HOST}:{self._web[0]}"}
        names = [f"nn{number}" for number in range(len(self._rpc))]
        return {
            **common,
            "dfs.nameservices": SERVICE,
            f"dfs.ha.namenodes.{SERVICE}": ",".join(names),
            **{
                f"dfs.namenode.rpc-address.{SERVICE}.{name}": f"{HOST}:{port}"
                for name, port in zip(names, self._rpc, strict=True)
            },
            **{
                f"dfs.namenode.http-address.{SERVICE}.{name}": f"{HOST}:{port}"
                for name, port in zip(names, self._web, strict=True)
            },
            f"dfs.client.failover.proxy.provider.{SERVICE}": PROXY,
            "dfs.namenode.shared.edits.dir": f"file://{self._folder}/shared",
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.tail-edits.period": "1s",
        }

    def _command(self, program: str, number: int) -> list[str]:
        jars = f"{self._folder}:{resolve_hdfs()}/*:{Path(pyspark.__file__).parent}/jars/*"
        options = [*JVM_OPTIONS, f"-Djava.io.tmpdir={self._folder}", f"-Dbarrier.namenode=name{number}"]
        ha = [f"-Ddfs.ha.namenode.id=nn{number}"] if program == NAMENODE and len(self._rpc) > 1 else []
        return [java_executable(), *options, "-cp", jars, program, *ha]

    def _run(self, program: str, *words: str, number: int = 0) -> None:
        command = [*self._command(program, number), *words]
        done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@contextmanager
def hdfs_for_users(namenodes: int = 1) -> Iterator[HdfsServer]:
    """An HDFS; a user of it, and its addresses, are in the environment."""
    with HdfsServer(namenodes) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("HADOOP_USER_NAME", USER)
        environment.setenv(ADDRESSES, server.webhdfs)
        yield server


def _environment() -> dict[str, str]:
    """In which a server's processes belong to the user who is its superuser."""
    return {key: value for key, value in os.environ.items() if key != "HADOOP_USER_NAME"}
