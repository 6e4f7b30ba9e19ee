"""A MariaDB server of its own for tests, as a child process: the program is of Debian's package mariadb-server-core."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
import pytest

from integration.debian import is_debian, unpacked
from integration.driver_process import wait_until
from integration.ports import HOST, Ports

__all__ = ["PASSWORD", "USER", "MariadbServer", "mariadb_or_skip"]

PASSWORD = "not a secret"
USER = "tester"
DATABASE = "shop"
PACKAGE = "mariadb-server-core"


class MariadbServer:
    """A server with one database. A context manager."""

    FORMAT = "2pc-mysql"
    """Of the sink that writes here."""

    def __init__(self, **settings: str) -> None:
        self._ports = Ports()
        self.port = self._ports.reserve()
        self._folder = Path(tempfile.mkdtemp(prefix="barrier-mariadb-", dir="/tmp"))
        # Of ``my.cnf``, with ``_`` for ``-``.
        self._settings = {
            "bind_address": HOST,
            "innodb_buffer_pool_size": "64M",
            "innodb_doublewrite": "off",  # the machine does not fail, only processes do
            "innodb_flush_log_at_trx_commit": "2",
            "innodb_flush_method": "nosync",
            "innodb_log_file_size": "64M",
            "performance_schema": "off",
            "port": str(self.port),
            "tmpdir": str(self._folder),
            "skip_name_resolve": "on",
            "socket": str(self._folder / "socket"),
            "pid_file": str(self._folder / "pid"),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, with user and password."""
        return f"mysql://{USER}:{quote(PASSWORD)}@{HOST}:{self.port}/{DATABASE}"

    @property
    def address(self) -> str:
        """Its address, without them."""
        return f"mysql://{HOST}:{self.port}/{DATABASE}"

    def connect(self, user: str = USER, password: str = PASSWORD, **more: Any) -> Any:
        """Return a connection with autocommit."""
        given = {"database": DATABASE, "autocommit": True, **more}
        return pymysql.connect(host=HOST, port=self.port, user=user, password=password, **given)

    def ask(self, statement: str, *parameters: Any) -> list[Any]:
        """Run a statement; return its rows."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def __enter__(self) -> MariadbServer:
        package = unpacked(PACKAGE)
        self._program = package.program("usr/sbin/mariadbd")
        self._environment = package.environment()
        self._shared = package.root / "usr" / "share" / "mysql"
        # What mariadb-install-db does, without its looking for programs in the places of an installed package.
        self._data.mkdir()
        tables = ["mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql"]
        script = "CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        script += "".join((self._shared / name).read_text() for name in tables)
        command = [*self._command(), "--bootstrap", "--skip-networking", "--max-allowed-packet=8M"]
        done = subprocess.run(command, input=script.encode(), capture_output=True, env=self._environment, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        self.start()
        with self.connect("root", "", database="mysql") as connection, connection.cursor() as cursor:
            for statement in (
                f"CREATE DATABASE {DATABASE}",
                f"CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'",
                f"GRANT ALL ON *.* TO {USER} WITH GRANT OPTION",
            ):
                cursor.execute(statement)
        return self

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, start_new_session=True, env=self._environment
            )
        wait_until(self._answers, "the MariaDB server")

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it well."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
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

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _command(self) -> list[str]:
        settings = {**self._settings, "datadir": str(self._data), "lc_messages_dir": str(self._shared)}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        user = ["--user=root"] if os.geteuid() == 0 else []
        return [self._program, "--no-defaults", *user, *words]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()[-2000:]
        try:
            self.connect("root", "", database="mysql", connect_timeout=2).close()
        except pymysql.err.OperationalError:
            return False
        return True


def mariadb_or_skip() -> None:
    """Skip where the server can't be had; fail there if ``CI`` is set."""
    try:
        if not is_debian():
            raise FileNotFoundError("the program is taken from Debian's packages")
        unpacked(PACKAGE)
    except (OSError, subprocess.SubprocessError) as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no MariaDB server: {problem}")


if __name__ == "__main__":
    print(unpacked(PACKAGE).program("usr/sbin/mariadbd"))
    sys.exit(0)
