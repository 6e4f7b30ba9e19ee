"""Databases that the driver's host can reach: a MariaDB, and a PostgreSQL whose stand-by takes over at the same address."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from integration.driver_process import wait_until
from integration.mariadb import MariadbServer
from integration.ports import HOST, Ports
from integration.postgresql import NOBODY, PostgresqlServer, StandBy

__all__ = ["Mariadb", "Postgresql"]

RULES = "host all all 0.0.0.0/0 scram-sha-256\nhost replication all 0.0.0.0/0 scram-sha-256\n"


class Mariadb(MariadbServer):
    """A server that another host reaches."""

    def __init__(self, host: str) -> None:
        super().__init__(bind_address="0.0.0.0")
        self._host = host  # The address of this one there.

    @property
    def url(self) -> str:
        """See `DatabaseServer`."""
        return super().url.replace(f"@{HOST}:", f"@{self._host}:")

    @property
    def address(self) -> str:
        """See `DatabaseServer`."""
        return super().address.replace(f"//{HOST}:", f"//{self._host}:")


class Postgresql:
    """A server with a synchronous stand-by that can take over; a `DatabaseServer`, and a context manager.

    Parameters
    ----------
    host : str
        The address of this host at the others.
    folder : Path
        For its rules.
    """

    FORMAT = PostgresqlServer.FORMAT

    def __init__(self, host: str, folder: Path) -> None:
        self._host = host
        self._rules = folder / "pg_hba.conf"
        self._rules.write_text(RULES)
        os.chmod(folder, 0o755)
        os.chown(self._rules, NOBODY, NOBODY)
        self._ports = Ports()
        self._port = self._ports.reserve()
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Postgresql:
        self._server: PostgresqlServer = self._stack.enter_context(PostgresqlServer(hba_file=str(self._rules)))
        self._listener = socket.create_server((self._host, self._port))
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._listener.close()
        self._stack.close()
        self._ports.release()

    @property
    def url(self) -> str:
        """Its address, with user and password, whoever serves there."""
        return self._server.url.replace(f"@{HOST}:{self._server.port}/", f"@{self._host}:{self._port}/")

    @property
    def address(self) -> str:
        """Its address, without them."""
        return f"postgresql://{self._host}:{self._port}/postgres"

    def connect(self) -> Any:
        """See `DatabaseServer`."""
        return self._server.connect()

    def ask(self, statement: str, *parameters: Any) -> list[Any]:
        """See `DatabaseServer`."""
        return self._server.ask(statement, *parameters)

    def kill(self) -> None:
        """Kill the one that serves."""
        self._server.kill()

    def start(self) -> None:
        """Start it again."""
        self._server.start()

    def fail_over(self) -> None:
        """Kill the one that serves while its synchronous stand-by follows; the stand-by takes over."""
        other = self._stack.enter_context(StandBy(self._server, hba_file=str(self._rules)))
        self._server.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._server.ask("SELECT pg_reload_conf()")
        synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: self._server.ask(synchronous) == [(1,)], "the stand-by follows")
        self._server.kill()
        other.promote()
        with self._lock:
            self._server = other

    # -- its address ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    port = self._server.port
                try:
                    server = socket.create_connection((HOST, port), timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
