"""An S3 of its own for tests: moto's server in a child process, ``python -m integration.object_store PORT``.

moto honours ``If-None-Match: *``, but looks and writes in two steps: requests are handled one at a time here, as S3 does
for one key.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from integration.driver_process import wait_until
from integration.ports import HOST, Ports

__all__ = ["BUCKET", "LATE_SECONDS", "AnswerProxy", "ObjectStoreServer"]

BUCKET = "barrier"

REFUSALS = {
    "conflict": (409, "ConditionalRequestConflict"),
    "busy": (503, "SlowDown"),
    "locked": (401, "AuthenticationRequired"),
    "login": (302, "Found"),
}

LATE_SECONDS = 1.0
"""Longer than the clients of such tests wait."""

HOP_BY_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length")


class ObjectStoreServer:
    """A store with one empty bucket. A context manager."""

    def __init__(self, honest: bool = True) -> None:
        self._ports = Ports()
        self._port = self._ports.reserve()
        self._honest = honest  # Whether it honours ``If-None-Match``.
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self._port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """With which clients find it: this project's, and Hadoop's."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "barrier",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def __enter__(self) -> ObjectStoreServer:
        root = Path(__file__).parent.parent
        command = [
            sys.executable,
            "-m",
            "integration.object_store",
            str(self._port),
            *([] if self._honest else ["lax"]),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers, "the object store", alive=self._why_dead)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._ports.release()

    def _answers(self) -> bool:
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _why_dead(self) -> str | None:
        assert self._process is not None
        status = self._process.poll()
        return None if status is None else f"it ended with {status}: is moto installed (extra dev)?"


class AnswerProxy:
    """Stands before a store, in threads of this process, and spoils the answers to some puts. A context manager.

    Parameters
    ----------
    server : ObjectStoreServer or str
        Or its endpoint.
    before : Callable[[], object]
        Called before each request that changes something is passed on.

    Attributes
    ----------
    spoil : list[str]
        What becomes of the next puts of journal entries, in order: ``lose`` (done, and the connection ends without an
        answer), ``fail`` (done, and answered with an error of the server), ``conflict`` (not done, answered with 409),
        ``refuse`` (not done, the connection ends), ``busy`` (not done, answered with 503), ``twice`` (done twice, the second
        answer is given), ``late`` (done after `LATE_SECONDS`, when its client has given up), ``slow`` (answered as late).
    trouble : Callable[[str, str], str]
        What becomes of any other request, by its method and path: one of these words, or nothing.
    change : Callable[[str], str]
        What the server gets for a path.
    asked : list[str]
        Every request, as ``PUT /bucket/key``.
    """

    def __init__(self, server: ObjectStoreServer | str, before: Callable[[], object] = lambda: None) -> None:
        self.spoil: list[str] = []
        self.trouble: Callable[[str, str], str]
        self.change: Callable[[str], str] = lambda path: path
        self.calm()
        self.asked: list[str] = []
        endpoint = server if isinstance(server, str) else server.endpoint
        proxy, port = self, int(endpoint.rpartition(":")[2])

        class Handler(BaseHTTPRequestHandler):
            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                entry = self.command == "PUT" and self.path.endswith(".json")
                what = proxy.spoil.pop(0) if entry and proxy.spoil else proxy.trouble(self.command, self.path)
                proxy.asked.append(f"{self.command} {self.path}")
                if self.command not in ("GET", "HEAD"):
                    before()
                self.close_connection = True
                if what == "refuse":
                    return
                if what in REFUSALS:
                    status, code = REFUSALS[what]
                    self._answer(status, [], f"<Error><Code>{code}</Code></Error>".encode())
                    return
                if what == "late":
                    time.sleep(LATE_SECONDS)
                for _ in range(1 + (what == "twice")):
                    onward = http.client.HTTPConnection(HOST, port)
                    headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
                    onward.request(self.command, proxy.change(self.path), body, headers)
                    answer = onward.getresponse()
                    data = answer.read()
                    onward.close()
                if what in ("lose", "late"):
                    return
                if what == "slow":
                    time.sleep(LATE_SECONDS)
                if what == "fail":
                    self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
                    return
                self._answer(answer.status, answer.getheaders(), data)

            def _answer(self, status: int, headers: Iterable[tuple[str, str]], data: bytes) -> None:
                with contextlib.suppress(ConnectionError):  # its client has given up
                    self._send(status, headers, data)

            def _send(self, status: int, headers: Iterable[tuple[str, str]], data: bytes) -> None:
                self.send_response_only(status)
                length = str(len(data))
                for key, value in headers:
                    if key.lower() == "content-length" and self.command == "HEAD":
                        length = value
                    if key.lower() not in HOP_BY_HOP:
                        self.send_header(key, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self._server.server_port}"

    def calm(self) -> None:
        """Have no trouble with any request."""
        self.trouble = lambda method, path: ""

    def __enter__(self) -> AnswerProxy:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def one_at_a_time(application: Application, honest: bool) -> Application:
    """Handle a request whole before the next; without `honest`, unconditionally."""
    lock = threading.Lock()

    def handle(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not honest:
            environment.pop("HTTP_IF_NONE_MATCH", None)
        with lock:
            return list(application(environment, start))

    return handle


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    application = one_at_a_time(DomainDispatcherApplication(create_backend_app), "lax" not in arguments)
    make_server(HOST, int(arguments[0]), application, threaded=True, request_handler=WSGIRequestHandler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
