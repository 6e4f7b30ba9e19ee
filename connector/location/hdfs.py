"""A checkpoint location in HDFS, through its REST interface WebHDFS.

Exclusive create is a rename that HDFS refuses if the new name is taken. The NameNode decides, so of two processes exactly one
succeeds. A file is first written under a temporary name, so it is complete, or does not exist.

The NameNode shows a rename before the rename is durable, and answers when it is. So if an answer was lost, what the NameNode
shows counts only after `HdfsFiles.sync`.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import pwd
import re
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from urllib.parse import quote, urlsplit

from connector.location.files import AT_ONCE, CHUNK, GONE, SPOOLED
from connector.location.object_journal import ObjectJournalStore
from connector.location.object_store import told_error
from transactional.errors import LocationError, OptionError
from transactional.journal import JournalStore, closed_journal

if TYPE_CHECKING:
    from requests import Response

SCHEMES: Final = {"hdfs": "", "webhdfs": "http", "swebhdfs": "https"}
"""Hadoop's URL schemes for HDFS, each with the scheme of WebHDFS's URL; empty if the location does not contain its address."""

PORT: Final = 9870
"""A NameNode's default port for WebHDFS."""

WEBHDFS: Final = "BARRIER_WEBHDFS"
"""The environment variable with addresses of WebHDFS, for commands and for locations without the option checkpointEndpoint."""

ADDRESS: Final = re.compile(r"https?://[\w.:\[\]-]+")

TIMEOUTS: Final = (5.0, 15.0)
"""Seconds to wait for a connection, and for an answer."""

PATIENCE: Final = 30.0
"""Seconds for which a request is repeated if no server answers it, as during a failover."""

PAUSE: Final = 0.5
"""Seconds between two rounds of requests to all NameNodes."""

OCTETS: Final = {"Content-Type": "application/octet-stream"}
DONE: Final = (200, 201)
TEMPORARY_REDIRECT: Final = 307
UNAUTHORIZED: Final = 401

DURABLE: Final = {"createflag": "CREATE,SYNC_BLOCK"}
"""Parameters of a create after which the DataNodes fsync the file before they answer."""

ELSEWHERE: Final = ("StandbyException", "RetriableException", "SafeModeException", "ObserverRetryOnActiveException")
"""Errors of a NameNode that does not serve now: another one may, or this one after some time."""

NO_DATANODE: Final = "Failed to find datanode"
NO_FOLDER: Final = "is not a directory"
"""Parts of the texts of errors that have no name of their own."""


def hdfs_url(location: str) -> str | None:
    """Return the canonical URL of a location in HDFS; None if the location is not in HDFS.

    For example, ``hdfs://host:8020//a/`` becomes ``hdfs://host:8020/a``. As in Hadoop, nothing is decoded.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or scheme.lower() not in SCHEMES:
        return None
    host, _, path = rest.removeprefix("//").partition("/")
    parts = [part for part in path.split("/") if part]
    wrong = not rest.startswith("//") or not host or "@" in host or not parts
    if wrong or any(part in (".", "..") for part in parts):
        expectation = f"a folder with its NameNode or nameservice, such as {scheme}://namenode:8020/folder"
        raise OptionError(
            "INVALID_OPTION", owner="2pc", option="checkpointLocation", value=location, expectation=expectation
        )
    return "/".join([f"{scheme.lower()}://{host}", *parts])


def endpoints_of(url: str, given: str | None) -> tuple[str, ...]:
    """Return the WebHDFS addresses of a location's NameNodes. `given` is the value of checkpointEndpoint, if it is set."""
    scheme, _, rest = url.partition("://")
    host, _, _ = rest.partition("/")
    pairs = [each.partition("=") for each in os.environ.get(WEBHDFS, "").split()]
    text = given or {authority: addresses for authority, _, addresses in pairs}.get(host, "")
    with_port = re.fullmatch(r"(.+):\d+", host)
    if text:
        found = tuple(each.strip().rstrip("/") for each in text.split(","))
        if all(map(ADDRESS.fullmatch, found)):
            return found
    elif SCHEMES[scheme]:
        return (f"{SCHEMES[scheme]}://{host}",)
    elif with_port:
        return (f"http://{with_port[1]}:{PORT}",)
    raise OptionError(
        "INVALID_OPTION",
        owner="2pc",
        option="checkpointEndpoint",
        value=text,
        expectation=f"the WebHDFS addresses of the NameNodes of {scheme}://{host}, such as "
        "http://namenode1:9870,http://namenode2:9870 (hdfs-site.xml: dfs.namenode.http-address). "
        f"For commands, set the environment variable {WEBHDFS}={host}=http://namenode1:9870,http://namenode2:9870",
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
        except PermissionError as error:
            raise closed_journal(error) from error
        except GONE:
            raise
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
        with self._send("GET", name, "OPEN") as response:
            left = int(response.headers.get("Content-Length", 0))
            try:
                for chunk in response.iter_content(CHUNK):
                    left -= len(chunk)
                    yield chunk
            except OSError as error:
                raise OSError(f"reading {self.shown(name)}: {told_error(error)}") from None
            if left:  # older versions of urllib3 do not notice
                raise OSError(f"reading {self.shown(name)}: the answer ended {left} bytes before its end")

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

    def sync(self, folder: str) -> None:
        """Make all changes durable that the NameNode has made so far, also those whose answers were lost.

        The NameNode logs its changes one after the other. So when it answers a new change, all earlier ones are durable. Each
        try makes a folder of its own, because a change that was made already is answered at once.
        """
        request = self._request("PUT", folder, "MKDIRS", lambda: f"{folder}/.sync.{uuid.uuid4().hex}".lstrip("/"))
        with self._client().send(request):
            pass
        self._clean(request.paths)

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

    def _request(
        self, method: str, name: str, op: str, fresh: Callable[[], str] | None = None, /, **parameters: str
    ) -> _Request:
        """Return a request for a file or folder. With `fresh`, each try is for another name, which `fresh` returns."""
        names = fresh or (lambda: name)
        return _Request(method, lambda: self._path(names()), op, self.shown(name), parameters)

    def _send(self, method: str, name: str, op: str, **parameters: str) -> Response:
        return self._client().send(self._request(method, name, op, None, **parameters))

    def _answer(self, method: str, name: str, op: str, part: str, **parameters: str) -> Any:
        """Send a request that transfers no file. Return this part of the answer; None if the answer is empty."""
        with self._send(method, name, op, **parameters) as response:
            if not response.content:
                return None
            try:
                return response.json()[part]
            except (ValueError, KeyError, TypeError):
                raise OSError(f"{op} {self.shown(name)}: {response.content[:100]!r} is no answer of WebHDFS") from None

    def _status(self, name: str) -> dict[str, Any] | None:
        try:
            found = self._answer("GET", name, "GETFILESTATUS", "FileStatus")
        except GONE:
            return None
        if found is None:
            raise OSError(f"GETFILESTATUS {self.shown(name)}: the answer is empty")
        return cast("dict[str, Any]", found)

    def _statuses(self, folder: str) -> list[dict[str, Any]]:
        try:
            found = self._answer("GET", folder, "LISTSTATUS", "FileStatuses")
        except FileNotFoundError:
            return []
        if found is None:
            raise OSError(f"LISTSTATUS {self.shown(folder)}: the answer is empty")
        statuses: list[dict[str, Any]] = found["FileStatus"]
        if any(not each["pathSuffix"] for each in statuses):
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", self.shown(folder))
        return statuses

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
        self._answer("DELETE", name, "DELETE", "boolean", recursive=recursive)

    def _clean(self, paths: Iterable[str]) -> None:
        """Delete files of these paths that are left."""
        for path in paths:
            with suppress(OSError):
                self._delete(path.removeprefix(self._root).lstrip("/"))

    def _write(self, name: str, data: BinaryIO, how: str) -> str | None:
        """Write a file under a temporary name, and rename it. Return its tag; None if another file has the name.

        `how` is an option of HDFS's rename: with ``NONE``, the name must be free.
        """
        folder, slash, file = name.rpartition("/")
        # Each try writes a file of its own: one that is abandoned may still write.
        request = self._request("PUT", name, "CREATE", lambda: f"{folder}{slash}.{file}.{uuid.uuid4().hex}", **DURABLE)
        request.data = data
        try:
            with self._client().send(request):
                pass
            temporary = request.paths[-1].removeprefix(self._root).lstrip("/")
            status = self._status(temporary)
            if status is None:
                raise OSError(f"writing {self.shown(name)}: its temporary file was deleted")
            tag = _tag(status)
            try:
                said = self._answer(
                    "PUT", temporary, "RENAME", "boolean", destination=self._path(name), renameoptions=how
                )
                renamed = said is None or said  # gateways that ignore `how` answer with a boolean
            except (FileExistsError, FileNotFoundError):
                renamed = False
            if renamed:
                del request.paths[-1]
                return tag
            # The name is taken, perhaps by us: then an earlier try renamed the file, and its answer was lost.
            self.sync(folder)
            if self.mark(name) == tag:
                del request.paths[-1]
                return tag
        finally:
            self._clean(request.paths)
        if how == "NONE" and self.exists(name):
            return None
        raise OSError(f"writing {self.shown(name)}: the file was not renamed to its name, or was deleted or replaced")


def _tag(status: Mapping[str, Any]) -> str:
    """Return a value that changes if a file is replaced. A rename keeps it."""
    return f"{status['fileId']} {status['length']} {status['modificationTime']}"


class _NotEmptyError(OSError):
    """A folder is not empty."""


class _ElsewhereError(OSError):
    """A server does not answer now, so the request has to be sent to another one, or again."""


PYTHON_ERRORS: Final[Mapping[str, type[OSError]]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "ParentNotDirectoryException": NotADirectoryError,
    "PathIsNotEmptyDirectoryException": _NotEmptyError,
}
"""The Python errors of HDFS's errors."""


@dataclass
class _Request:
    """A request, which may be sent several times."""

    method: str
    path: Callable[[], str]  # Returns the path for the next try.
    op: str
    shown: str  # The file's URL, for messages.
    parameters: Mapping[str, str]
    data: BinaryIO | None = None  # The file to send.
    avoided: list[str] = field(default_factory=list)  # IP addresses of DataNodes that did not answer.
    paths: list[str] = field(default_factory=list)  # Of all tries.


class _WebHdfs:
    """Sends requests to that of some NameNodes which is active."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._endpoints = list(endpoints)
        self._user = os.environ.get("HADOOP_USER_NAME") or _user()
        self._session = requests.Session()
        self._session.trust_env = False  # as Hadoop's client: no proxy, and no password of ~/.netrc
        self._session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE))

    def send(self, request: _Request) -> Response:
        """Send a request, again and to other servers if one does not answer. The caller closes the response.

        Raises
        ------
        FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError
            The request was not obeyed; but an earlier try, whose answer was lost, may have been.
        OSError
            The request may have been obeyed.
        OptionError
            ``LOCATION_UNKNOWN_STORE``: the server wants Kerberos.
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

    def _try(self, endpoint: str, request: _Request) -> Response:
        """Send a request once: to a NameNode and, if that says so, to the DataNode that has to get or give the file."""
        request.paths.append(request.path())
        query = {"op": request.op, "user.name": self._user, **request.parameters}
        if request.avoided:
            query["excludedatanodes"] = ",".join(request.avoided)
        try:
            found = self._once(request.method, f"{endpoint}/webhdfs/v1{quote(request.paths[-1])}", params=query)
        except _ElsewhereError as error:
            raise _ElsewhereError(f"{error} (addresses: option checkpointEndpoint, or {WEBHDFS})") from None
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
    """Return the name of the process's user, as Hadoop finds it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container with a user that has no name
        return str(os.geteuid())


def _checked(response: Response, request: _Request) -> Response:
    """Return a response. If it does not say that the request was obeyed, raise an error."""
    if response.status_code in DONE:
        return response
    with response:
        raise _error_of(response, request)


def _error_of(response: Response, request: _Request) -> Exception:
    try:
        found = response.json()["RemoteException"]
        kind, message = str(found["exception"]), str(found["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, message = f"HTTP {response.status_code}", response.reason
    said = f"{request.op} {request.shown}: {kind}: {message}"
    if response.status_code == UNAUTHORIZED:
        reason = f"{urlsplit(response.url).netloc} wants Kerberos, which is not supported: use singleDriver=true"
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
