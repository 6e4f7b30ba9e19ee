"""A Schema Registry for tests: real HTTP, the endpoints that clients use, schemas in memory, no compatibility checks.

Confluent's own is on no registry of packages that tests can reach.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["RegistryServer"]


@dataclass(frozen=True)
class _Version:
    subject: str
    version: int
    id: int
    body: Mapping[str, Any]

    def answer(self) -> dict[str, Any]:
        return {"subject": self.subject, "version": self.version, "id": self.id, **self.body}


class RegistryServer:
    """A registry on the loopback address, in threads of this process. A context manager.

    Parameters
    ----------
    user, password : str, optional
        Who may ask; everybody without them.

    Attributes
    ----------
    asked : list[str]
        The paths that were asked for, in order.
    status : int or None
        What every question is answered with, where it is set.
    """

    def __init__(self, user: str = "", password: str = "") -> None:
        self._login = base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self._versions: list[_Version] = []
        self._lock = threading.Lock()
        self.asked: list[str] = []
        self.status: int | None = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(registry.get(unquote(urlsplit(self.path).path)))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(registry.post(unquote(urlsplit(self.path).path), body))

            def _answer(self, found: tuple[int, Any]) -> None:
                registry.asked.append(self.path)
                if registry.status is not None:
                    found = registry.status, {"error_code": registry.status, "message": "told to"}
                elif registry._login and self.headers.get("Authorization") != f"Basic {registry._login}":
                    found = 401, {"error_code": 401, "message": "Unauthorized"}
                body = json.dumps(found[1]).encode()
                self.send_response(found[0])
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Tests say what went wrong themselves."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Register a schema (its text, or what becomes JSON); returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            body["schemaType"] = kind
        if references:
            body["references"] = list(references)
        return int(self.post(f"/subjects/{subject}/versions", body)[1]["id"])

    def get(self, path: str) -> tuple[int, Any]:
        """Answer a GET: status and body."""
        parts = path.strip("/").split("/")
        with self._lock:
            if parts[:2] == ["schemas", "ids"]:
                found = [each for each in self._versions if str(each.id) == parts[2]]
                return (200, found[0].body) if found else (404, {"error_code": 40403, "message": "Schema not found"})
            if parts[0] == "subjects" and len(parts) == 4:
                of = [each for each in self._versions if each.subject == parts[1]]
                if parts[3] != "latest":
                    of = [each for each in of if str(each.version) == parts[3]]
                return (200, of[-1].answer()) if of else (404, {"error_code": 40401, "message": "Subject not found"})
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Answer a POST: register, or look up."""
        parts = path.strip("/").split("/")
        kept = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
        kept = {key: value for key, value in kept.items() if (key, value) != ("schemaType", "AVRO")}
        with self._lock:
            of = [each for each in self._versions if each.subject == parts[1]]
            for each in of:
                if each.body == kept:
                    return 200, each.answer()
            if len(parts) == 2:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            same = [each.id for each in self._versions if each.body == kept]
            number = same[0] if same else 1 + max((each.id for each in self._versions), default=100)
            self._versions.append(_Version(parts[1], len(of) + 1, number, kept))
            return 200, self._versions[-1].answer()

    def __enter__(self) -> RegistryServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
