"""A checkpoint location in HDFS, through its REST interface WebHDFS.

Exclusive create is a rename that HDFS refuses if the new name is taken. The NameNode decides, so of two processes exactly one
succeeds. A file is first written under a temporary name, so it is complete, or does not exist.
"""

from __future__ import annotations

import errno
import functools
import getpass
import io
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from urllib.parse import quote, urlsplit

from connector.location.files import AT_ONCE, CHUNK, SPOOLED
from connector.location.object_journal import ObjectJournalStore
from connector.location.object_store import told_error
from transactional.errors import LocationError, OptionError
from transactional.journal import JournalStore

if TYPE_CHECKING:
    from requests import Response

SCHEMES: Final = {"hdfs": "", "webhdfs": "http", "swebhdfs": "https"}
"""Hadoop's URL schemes for HDFS, each with the scheme of WebHDFS's URL; empty if the location does not contain its address."""

PORT: Final = 9870
"""A NameNode's default port for WebHDFS."""

WEBHDFS: Final = "BARRIER_WEBHDFS"
"""The environment variable that commands read instead of the query's option checkpointEndpoint."""

ADDRESS: Final = re.compile(r"https?://[\w.:\[\]-]+")

TIMEOUTS: Final = (5.0, 15.0)
"""Seconds to wait for a connection, and for an answer."""

PATIENCE: Final = 30.0
"""Seconds for which a request is repeated if no server answers it, as during a failover."""

PAUSE: Final = 0.5
"""Seconds between two rounds of requests to all NameNodes."""

OCTETS: Final = {"Content-Type": "application/octet-stream"}
TEMPORARY_REDIRECT: Final = 307
UNAUTHORIZED: Final = 401

DURABLE: Final = {"createflag": "CREATE,SYNC_BLOCK", "overwrite": "true"}
"""Parameters of a create after which the DataNodes fsync the file before they answer. A repeated try replaces the file."""

ELSEWHERE: Final = ("StandbyException", "RetriableException", "SafeModeException", "ObserverRetryOnActiveException")
"""Errors of a NameNode that does not serve now: another one may, or this one after some time."""


def hdfs_url(location: str) -> str | None:
    """Return the canonical URL of a location in HDFS; None if the location is not in HDFS.

    For example, ``hdfs://host:8020//a/`` becomes ``hdfs://host:8020/a``. As in Hadoop, nothing is decoded.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or scheme.lower() not in SCHEMES:
        return None
    host, _, path = rest.removeprefix("//").partition("/")
    parts = [part for part in path.split("/") if part]
    if not rest.startswith("//") or not host or not parts or any(part in (".", "..") for part in parts):
        expectation = f"a folder with its NameNode or nameservice, such as {scheme}://namenode:8020/folder"
        raise OptionError(
            "INVALID_OPTION", owner="2pc", option="checkpointLocation", value=location, expectation=expectation
        )
    return "/".join([f"{scheme.lower()}://{host}", *parts])


def endpoints_of(url: str, given: str | None) -> tuple[str, ...]:
    """Return the WebHDFS addresses of a location's NameNodes. `given` is the value of checkpointEndpoint, if it is set."""
    scheme, _, rest = url.partition("://")
    host, _, _ = rest.partition("/")
    text = given or os.environ.get(WEBHDFS, "")
    if text:
        found = tuple(each.strip().rstrip("/") for each in text.split(","))
        if all(map(ADDRESS.fullmatch, found)):
            return found
    elif SCHEMES[scheme]:
        return (f"{SCHEMES[scheme]}://{host}",)
    elif ":" in host:
        return (f"http://{host.rpartition(':')[0]}:{PORT}",)
    raise OptionError(
        "INVALID_OPTION",
        owner="2pc",
        option="checkpointEndpoint",
        value=text,
        expectation=f"the WebHDFS addresses of the NameNodes of {scheme}://{host}, such as "
        "http://namenode1:9870,http://namenode2:9870 (hdfs-site.xml: dfs.namenode.http-address). "
        f"For commands, set the environment variable {WEBHDFS}",
    )


class HdfsFiles:
    """The `connector.location.files.LocationFiles` in HDFS. It is pickled to executors, so it holds no client."""

    def __init__(self, url: str, endpoints: tuple[str, ...]) -> None:
        self._url = url  # The location's URL, as `hdfs_url` returns it.
        self._root = f"/{url.partition('://')[2].partition('/')[2]}"
        self.endpoints = endpoints  # As `endpoints_of` returns them.

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles.names`."""
        return list(self.listing(folder))

    def listing(self, folder: str) -> Mapping[str, str]:
        """Return the names in a folder, each with a tag that no other file has; the tag of a folder is empty."""
        try:
            found = self._statuses(folder)
        except OSError as error:
            raise LocationError("LOCATION_UNREADABLE", path=self.shown(folder), reason=str(error)) from error
        return {each["pathSuffix"]: _tag(each) if each["type"] == "FILE" else "" for each in found}

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles.tree`."""
        return [name for name, is_file in self._walk(folder) if is_file]

    def read(self, name: str) -> bytes:
        """See `LocationFiles.read`."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles.chunks`."""
        with self._client().ask("GET", self._path(name), "OPEN") as response:
            try:
                yield from response.iter_content(CHUNK)
            except OSError as error:
                raise OSError(f"reading {self.shown(name)}: {told_error(error)}") from None

    def exists(self, name: str) -> bool:
        """See `LocationFiles.exists`."""
        return self._status(name) is not None

    def mark(self, name: str) -> str | None:
        """See `LocationFiles.mark`."""
        found = self._status(name)
        return None if found is None else _tag(found)

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles.create`."""
        return self.create_tagged(name, data) is not None

    def create_tagged(self, name: str, data: bytes) -> str | None:
        """Create a file. Return its tag, which is never empty, or None if the name is taken."""
        return self._write(name, io.BytesIO(data), "NONE")

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles.put`."""
        if isinstance(data, bytes):
            self._write(name, io.BytesIO(data), "OVERWRITE")
            return
        with tempfile.SpooledTemporaryFile(SPOOLED) as file:  # a request may be repeated
            file.writelines(data)
            self._write(name, cast("BinaryIO", file), "OVERWRITE")

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles.delete`."""
        for name in names:
            self._delete(name)

    def remove(self, folder: str) -> None:
        """See `LocationFiles.remove`."""
        if folder:
            self._delete(folder, recursive="true")
            return
        folders = [name for name, is_file in self._walk("") if not is_file]
        for name in sorted(folders, key=len, reverse=True):
            with suppress(_NotEmptyError):
                self._delete(name)

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles.journal_store`."""
        return ObjectJournalStore(self, folder)

    def shown(self, name: str) -> str:
        """See `LocationFiles.shown`."""
        return f"{self._url}/{name}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _client(self) -> _WebHdfs:
        return _client(self.endpoints)

    def _status(self, name: str) -> dict[str, Any] | None:
        try:
            found = self._client().answer("GET", self._path(name), "GETFILESTATUS")
        except FileNotFoundError:
            return None
        return cast("dict[str, Any]", found["FileStatus"])

    def _statuses(self, folder: str) -> list[dict[str, Any]]:
        try:
            found = self._client().answer("GET", self._path(folder), "LISTSTATUS")
        except FileNotFoundError:
            return []
        return [each for each in found["FileStatuses"]["FileStatus"] if each["pathSuffix"]]

    def _walk(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield a folder, its subfolders, and their files, relative to the location, each with whether it is a file."""
        yield folder, False
        for each in self._statuses(folder):
            name = f"{folder}/{each['pathSuffix']}".lstrip("/")
            if each["type"] == "FILE":
                yield name, True
            else:
                yield from self._walk(name)

    def _delete(self, name: str, recursive: str = "false") -> None:
        self._client().answer("DELETE", self._path(name), "DELETE", recursive=recursive)

    def _write(self, name: str, data: BinaryIO, how: str) -> str | None:
        """Write a file under a temporary name, and rename it. Return its tag; None if HDFS did not rename it.

        `how` is an option of HDFS's rename: with ``NONE``, the name must be free.
        """
        folder, _, file = self._path(name).rpartition("/")
        temporary = f"{folder}/.{file}.{uuid.uuid4().hex}"
        client = self._client()
        try:
            with client.ask("PUT", temporary, "CREATE", data, **DURABLE):
                pass
            tag = _tag(client.answer("GET", temporary, "GETFILESTATUS")["FileStatus"])
            try:
                found = client.answer("PUT", temporary, "RENAME", destination=self._path(name), renameoptions=how)
                renamed = found is None or bool(found["boolean"])
            except (FileExistsError, FileNotFoundError):  # or a try before this one renamed it, and its answer was lost
                renamed = self.mark(name) == tag
        except OSError:
            with suppress(OSError):
                client.answer("DELETE", temporary, "DELETE", recursive="false")
            raise
        if renamed:
            return tag
        client.answer("DELETE", temporary, "DELETE", recursive="false")
        if how == "NONE" and self.exists(name):
            return None
        raise OSError(f"writing {self.shown(name)}: the file was not renamed to its name, or it is deleted or replaced")


def _tag(status: Mapping[str, Any]) -> str:
    """Return a value that changes if a file is replaced. A rename keeps it."""
    return f"{status['fileId']} {status['length']} {status['modificationTime']}"


class _NotEmptyError(OSError):
    """A folder is not empty."""


class _ElsewhereError(OSError):
    """A server does not answer now, so the request has to be sent to another one, or again."""


ERRORS: Final[Mapping[str, type[OSError]]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "PathIsNotEmptyDirectoryException": _NotEmptyError,
}
"""The Python errors of HDFS's errors."""


@dataclass
class _Request:
    """A request, which may be sent several times."""

    method: str
    path: str
    op: str
    data: BinaryIO | None  # The file to send.
    parameters: Mapping[str, str]
    avoided: list[str] = field(default_factory=list)  # DataNodes that did not answer, each as host:port.


class _WebHdfs:
    """Sends requests to that of some NameNodes which is active."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._endpoints = list(endpoints)
        self._user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE))

    def answer(self, method: str, path: str, op: str, **parameters: str) -> Any:
        """Send a request that transfers no file. Return the answer; None if it is empty. Raises the errors of `ask`."""
        with self.ask(method, path, op, **parameters) as response:
            return response.json() if response.content else None

    def ask(self, method: str, path: str, op: str, data: BinaryIO | None = None, /, **parameters: str) -> Response:
        """Send a request, again and to other servers if one does not answer. The caller closes the response.

        Raises
        ------
        FileNotFoundError, FileExistsError, PermissionError, OSError
            After an OSError of no subclass, the request may have been obeyed.
        """
        deadline = time.monotonic() + PATIENCE
        request = _Request(method, path, op, data, parameters)
        while True:
            for endpoint in tuple(self._endpoints):
                try:
                    found = self._send(endpoint, request)
                except _ElsewhereError as error:
                    last = error
                    continue
                if endpoint != self._endpoints[0]:  # ask it first from now on
                    self._endpoints = [endpoint, *(each for each in self._endpoints if each != endpoint)]
                return found
            if time.monotonic() > deadline:
                raise OSError(f"{last} (the addresses come from the option checkpointEndpoint or from {WEBHDFS})")
            time.sleep(PAUSE)

    def _send(self, endpoint: str, request: _Request) -> Response:
        """Send a request once: to a NameNode and, if that says so, to the DataNode that has to get or give the file."""
        query = {"op": request.op, "user.name": self._user, **request.parameters}
        if request.avoided:
            query["excludedatanodes"] = ",".join(request.avoided)
        found = self._once(request.method, f"{endpoint}/webhdfs/v1{quote(request.path)}", params=query)
        if found.status_code != TEMPORARY_REDIRECT:
            try:
                return _checked(found, request)
            except OSError as error:
                if request.avoided and type(error) is OSError:  # there may be no other DataNode
                    request.avoided.clear()
                    raise _ElsewhereError(str(error)) from None
                raise
        place = found.headers["Location"]
        _ = found.content  # so that the connection is kept
        if request.data is not None:
            request.data.seek(0)
        try:
            found = self._once(request.method, place, data=request.data, headers=OCTETS)
        except _ElsewhereError:
            request.avoided.append(urlsplit(place).netloc)
            raise
        return _checked(found, request)

    def _once(self, method: str, url: str, **more: Any) -> Response:
        from requests import RequestException

        try:
            return self._session.request(method, url, timeout=TIMEOUTS, stream=True, allow_redirects=False, **more)
        except RequestException as error:
            raise _ElsewhereError(f"{method} {urlsplit(url).netloc}: {told_error(error)}") from None


def _checked(response: Response, request: _Request) -> Response:
    """Return a response. If it contains an error, raise the error."""
    if response.ok:
        return response
    with response:
        raise _error_of(response, f"{request.op} {request.path}", request.path)


def _error_of(response: Response, what: str, path: str) -> OSError:
    try:
        found = response.json()["RemoteException"]
        kind, message = str(found["exception"]), str(found["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, message = f"HTTP {response.status_code}", response.reason
    said = f"{what}: {kind}: {message}"
    if response.status_code == UNAUTHORIZED:
        return OSError(
            f"{what}: {urlsplit(response.url).netloc} wants Kerberos, which is not supported: use singleDriver=true"
        )
    if kind in ELSEWHERE:
        return _ElsewhereError(said)
    if kind in ERRORS:
        return ERRORS[kind](said)
    if kind in ("AccessControlException", "SecurityException"):
        return PermissionError(errno.EACCES, said, path)
    return OSError(said)


@functools.lru_cache(maxsize=16)
def _client(endpoints: tuple[str, ...]) -> _WebHdfs:
    """Return the cached client of a location. Its connections outlive a micro-batch."""
    try:
        return _WebHdfs(endpoints)
    except ImportError as error:
        raise OptionError(
            "MISSING_PACKAGE",
            owner=f"checkpointLocation in HDFS ({', '.join(endpoints)})",
            package="barrier-kafka[hdfs]",
            option="checkpointLocation",
        ) from error
