"""A client for WebHDFS, HDFS's REST interface. The client finds the active NameNode, and a DataNode that answers."""

from __future__ import annotations

import errno
import functools
import os
import pwd
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote, urlsplit

from connector.location.files import AT_ONCE
from connector.location.urls import told_error
from transactional.errors import OptionError

if TYPE_CHECKING:
    from requests import Response

ADDRESSES: Final = "BARRIER_WEBHDFS"
"""The environment variable with WebHDFS addresses, for commands and for queries that do not set checkpointEndpoint."""

TIMEOUTS: Final = (5.0, 15.0)
"""Seconds to wait for a connection, and for an answer."""

PATIENCE: Final = 30.0
"""The number of seconds for which a request is repeated if no server answers it, for example during a failover."""

PAUSE: Final = 0.5
"""Seconds between two rounds of requests to all NameNodes."""

OCTETS: Final = {"Content-Type": "application/octet-stream"}
DONE: Final = (200, 201)
TEMPORARY_REDIRECT: Final = 307
UNAUTHORIZED: Final = 401

ELSEWHERE: Final = ("StandbyException", "RetriableException", "SafeModeException", "ObserverRetryOnActiveException")
"""Errors of a NameNode that can't serve requests now. Another NameNode may serve them, or the same one later."""

NO_DATANODE: Final = "Failed to find datanode"
NO_FOLDER: Final = "is not a directory"
"""A part of an error message, as `NO_DATANODE` is. It identifies an error whose exception name is too general."""


class NotEmptyError(OSError):
    """A folder can't be deleted, because it is not empty."""


class _ElsewhereError(OSError):
    """A server can't answer a request now, so the request must be sent to another server, or sent again."""


PYTHON_ERRORS: Final[Mapping[str, type[OSError]]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "ParentNotDirectoryException": NotADirectoryError,
    "PathIsNotEmptyDirectoryException": NotEmptyError,
}
"""Maps the names of HDFS's exceptions to Python's errors."""


@dataclass
class Request:
    """A request to WebHDFS. `WebHdfs.send` may send it several times, to the same NameNode or to others."""

    method: str
    root: str  # The path of the folder that contains `name`.
    name: Callable[[], str]  # Returns the name of the file or folder for the next try.
    op: str
    shown: str  # The file's URL, for messages.
    parameters: Mapping[str, str]
    data: BinaryIO | None = None  # The file to send.
    avoided: list[str] = field(default_factory=list)  # IP addresses of DataNodes that did not answer.
    names: list[str] = field(default_factory=list)  # What `name` returned for each try.


class WebHdfs:
    """Sends requests to the active NameNode, and follows its redirects to DataNodes."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._endpoints = list(endpoints)
        self._user = os.environ.get("HADOOP_USER_NAME") or _user()
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = "identity"  # so that Content-Length is the length of the file
        self._session.trust_env = False  # as Hadoop's client: no proxy, and no password of ~/.netrc
        self._session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE))

    def send(self, request: Request) -> Response:
        """Send a request. If a server can't answer, try the others, then all servers again. The caller closes the response.

        Raises
        ------
        FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError
            The request failed. But an earlier attempt, whose answer was lost, may have succeeded.
        OSError
            The request may have succeeded.
        OptionError
            ``LOCATION_UNKNOWN_STORE``: the server requires Kerberos.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            for endpoint in tuple(self._endpoints):
                try:
                    found = self._try(endpoint, request)
                except _ElsewhereError as error:
                    last = error
                    continue
                if endpoint != self._endpoints[0]:  # ask it first from now on
                    self._endpoints = [endpoint, *(each for each in self._endpoints if each != endpoint)]
                return found
            if time.monotonic() > deadline:
                raise OSError(str(last))
            time.sleep(PAUSE)

    def _try(self, endpoint: str, request: Request) -> Response:
        """Send a request once: to a NameNode and, if it redirects the request, to the DataNode that it names."""
        request.names.append(request.name())
        path = f"{request.root}/{request.names[-1]}".rstrip("/")
        query = {"op": request.op, "user.name": self._user, **request.parameters}
        if request.avoided:
            query["excludedatanodes"] = ",".join(request.avoided)
        try:
            found = self._once(request.method, f"{endpoint}/webhdfs/v1{quote(path)}", params=query)
        except _ElsewhereError as error:
            raise _ElsewhereError(f"{error} (addresses: option checkpointEndpoint, or {ADDRESSES})") from None
        if found.status_code != TEMPORARY_REDIRECT:
            return _checked(found, request)
        place = found.headers.get("Location", "")
        _ = found.content  # so that the connection is kept
        if request.data is not None:
            request.data.seek(0)
        try:
            found = self._once(request.method, place, data=request.data, headers=OCTETS)
        except _ElsewhereError:
            with suppress(OSError):
                request.avoided.append(socket.gethostbyname(urlsplit(place).hostname or ""))
            raise
        return _checked(found, request)

    def _once(self, method: str, url: str, **more: Any) -> Response:
        from requests import RequestException

        try:
            return self._session.request(method, url, timeout=TIMEOUTS, stream=True, allow_redirects=False, **more)
        except RequestException as error:
            raise _ElsewhereError(f"{method} {urlsplit(url).netloc}: {told_error(error)}") from None


def _user() -> str:
    """Return the name of the user that runs this process, as Hadoop does; if the user has no name, its number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container with a user that has no name
        return str(os.geteuid())


def _checked(response: Response, request: Request) -> Response:
    """Return the response if the request succeeded. Otherwise, close the response and raise the matching error."""
    if response.status_code in DONE:
        return response
    with response:
        raise _error_of(response, request)


def _error_of(response: Response, request: Request) -> Exception:
    try:
        found = response.json()["RemoteException"]
        kind, message = str(found["exception"]), str(found["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, message = f"HTTP {response.status_code}", response.reason
    said = f"{request.op} {request.shown}: {kind}: {message}"
    if response.status_code == UNAUTHORIZED:
        reason = f"{urlsplit(response.url).netloc} requires Kerberos, which is not supported: use singleDriver=true"
        return OptionError("LOCATION_UNKNOWN_STORE", location=request.shown, reason=reason, option="checkpointLocation")
    if NO_DATANODE in message:  # because it starts, or because all are avoided
        request.avoided.clear()
        return _ElsewhereError(said)
    if kind in ELSEWHERE:
        return _ElsewhereError(said)
    if NO_FOLDER in message:
        return NotADirectoryError(said)
    if kind in PYTHON_ERRORS:
        return PYTHON_ERRORS[kind](said)
    if kind in ("AccessControlException", "SecurityException"):
        return PermissionError(errno.EACCES, said, request.shown)
    return OSError(said)


@functools.lru_cache(maxsize=16)
def client(endpoints: tuple[str, ...]) -> WebHdfs:
    """Return the client for these NameNodes, cached so that its connections outlive a micro-batch."""
    try:
        return WebHdfs(endpoints)
    except ImportError as error:
        raise OptionError(
            "MISSING_PACKAGE",
            owner=f"checkpointLocation in HDFS ({', '.join(endpoints)})",
            package="barrier-kafka[hdfs]",
            option="checkpointLocation",
        ) from error
