"""A checkpoint location in HDFS, through its REST interface WebHDFS.

Exclusive create is a rename that HDFS rejects if the new name is taken. The NameNode decides, so of two processes
exactly one succeeds. A file is first written under a temporary name, so it is complete, or does not exist.

The NameNode shows a rename before the rename is durable, but answers only when the rename is durable. So if an answer
was lost, the files that the NameNode shows are certain to be durable only after `HdfsFiles.sync`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from connector.location.files import CHUNK, GONE, reading, spooled
from connector.location.object_journal import ObjectJournalStore
from connector.location.urls import split_url, told_error
from connector.location.webhdfs import ADDRESSES, NotEmptyError, Request, client
from transactional.errors import OptionError
from transactional.journal import JournalStore

if TYPE_CHECKING:
    from requests import Response

    from connector.location.webhdfs import WebHdfs

SCHEMES: Final = {"hdfs": "", "webhdfs": "http", "swebhdfs": "https"}
"""Maps Hadoop's URL schemes for HDFS to the scheme of the WebHDFS address; empty if the URL does not contain one."""

PORT: Final = 9870
"""A NameNode's default port for WebHDFS."""

ADDRESS: Final = re.compile(r"https?://[\w.:\[\]-]+")

DURABLE: Final = {"createflag": "CREATE,SYNC_BLOCK"}
"""Parameters of a create request that make the DataNodes fsync the file before they answer."""


def hdfs_url(location: str) -> str | None:
    """Return the canonical URL of a location in HDFS; None if the location is not in HDFS.

    For example, ``hdfs://host:8020//a/`` becomes ``hdfs://host:8020/a``. As in Hadoop, nothing is decoded.
    """
    found = split_url(location, SCHEMES)
    if found is None:
        return None
    scheme, host, parts = found
    if not host or "@" in host or not parts:
        expectation = f"a folder with its NameNode or nameservice, such as {scheme}://namenode:8020/folder"
        raise OptionError(
            "INVALID_OPTION", owner="2pc", option="checkpointLocation", value=location, expectation=expectation
        )
    return "/".join([f"{scheme}://{host}", *parts])


def endpoints_of(url: str, given: str | None) -> tuple[str, ...]:
    """Return the WebHDFS addresses of a location's NameNodes. `given` is the value of checkpointEndpoint, if it is set."""
    scheme, _, rest = url.partition("://")
    host, _, _ = rest.partition("/")
    pairs = [each.partition("=") for each in os.environ.get(ADDRESSES, "").split()]
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
        f"For commands, set the environment variable {ADDRESSES}={host}=http://namenode1:9870,http://namenode2:9870",
    )


class HdfsFiles:
    """Implements `connector.location.files.LocationFiles` for HDFS.

    Executors get pickled copies of the object, so it holds no client.
    """

    def __init__(self, url: str, endpoints: tuple[str, ...]) -> None:
        self._url = url  # The location's URL, as `hdfs_url` returns it.
        self._root = f"/{url.partition('://')[2].partition('/')[2]}"
        self.endpoints = endpoints  # As `endpoints_of` returns them.

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles.names`."""
        return list(self.listing(folder))

    def listing(self, folder: str) -> Mapping[str, str]:
        """Map each name in a folder to a tag that no other file has. The tag of a subfolder is empty."""
        with reading(self.shown(folder)):
            found = self._statuses(folder)
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
            length = response.headers.get("Content-Length")
            if length is None and response.headers.get("Transfer-Encoding") != "chunked":
                raise OSError(f"reading {self.shown(name)}: the answer does not contain the file's length")
            got = 0
            try:
                for chunk in response.iter_content(CHUNK):
                    got += len(chunk)
                    yield chunk
            except OSError as error:
                raise OSError(f"reading {self.shown(name)}: {told_error(error)}") from None
            if length is not None and got != int(length):  # older versions of urllib3 do not notice
                raise OSError(f"reading {self.shown(name)}: the answer ended after {got} of {length} bytes")

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
        """Make sure that all changes that the NameNode has made so far are durable, even those whose answers were lost.

        The NameNode logs its changes one after the other. So when it answers a new change, all earlier ones are
        durable. The new change is a temporary subfolder of `folder`. Each attempt gives it another name: if the
        subfolder already existed, the NameNode would answer immediately.
        """
        request = self._request("PUT", folder, "MKDIRS", lambda: f"{folder}/.sync.{uuid.uuid4().hex}".lstrip("/"))
        with self._client().send(request):
            pass
        self._clean(request.names)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles.put`."""
        if isinstance(data, bytes):
            self._write(name, io.BytesIO(data), "OVERWRITE")
            return
        with spooled(data) as file:  # a request may be repeated
            self._write(name, file, "OVERWRITE")

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
            with suppress(NotEmptyError):
                self._delete(name)

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles.journal_store`."""
        return ObjectJournalStore(self, folder)

    def shown(self, name: str) -> str:
        """See `LocationFiles.shown`."""
        return f"{self._url}/{name}"

    def _client(self) -> WebHdfs:
        return client(self.endpoints)

    def _request(
        self, method: str, name: str, op: str, fresh: Callable[[], str] | None = None, /, **parameters: str
    ) -> Request:
        """Return a request for a file or folder. With `fresh`, each attempt uses a new name from `fresh`."""
        return Request(method, self._root, fresh or (lambda: name), op, self.shown(name), parameters)

    def _send(self, method: str, name: str, op: str, **parameters: str) -> Response:
        return self._client().send(self._request(method, name, op, None, **parameters))

    def _answer(self, method: str, name: str, op: str, part: str, **parameters: str) -> Any:
        """Send a request that transfers no file. Return the field `part` of the answer; None if the answer is empty."""
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
        """Yield the names of a folder, its subfolders and all files in them, relative to the location.

        Each name comes with True if it is a file, False if it is a folder.
        """
        yield folder, False
        for each in self._statuses(folder):
            name = f"{folder}/{each['pathSuffix']}".lstrip("/")
            if each["type"] == "FILE":
                yield name, True
            else:
                yield from self._walk(name)

    def _delete(self, name: str, recursive: str = "false") -> None:
        self._answer("DELETE", name, "DELETE", "boolean", recursive=recursive)

    def _clean(self, names: Iterable[str]) -> None:
        """Delete these files and folders, if they exist."""
        for name in names:
            with suppress(OSError):
                self._delete(name)

    def _write(self, name: str, data: BinaryIO, how: str) -> str | None:
        """Write a file under a temporary name, and rename it. Return its tag; None if another file has the name.

        `how` is an option of HDFS's rename: with ``NONE``, the name must be free; with ``OVERWRITE``, a file of this
        name is replaced.
        """
        folder, slash, file = name.rpartition("/")
        # Each try writes a file of its own: one that is abandoned may still write.
        request = self._request("PUT", name, "CREATE", lambda: f"{folder}{slash}.{file}.{uuid.uuid4().hex}", **DURABLE)
        request.data = data
        try:
            with self._client().send(request):
                pass
            tag = self._rename(request.names[-1], name, how)
        except BaseException:
            self._clean(request.names)
            raise
        self._clean(request.names if tag is None else request.names[:-1])
        return tag

    def _rename(self, temporary: str, name: str, how: str) -> str | None:
        """Rename a temporary file, after it was written, to its final name. Returns and raises the same as `_write`."""
        status = self._status(temporary)
        if status is None:
            raise OSError(f"writing {self.shown(name)}: its temporary file was deleted")
        tag = _tag(status)
        target = f"{self._root}/{name}"
        try:
            said = self._answer("PUT", temporary, "RENAME", "boolean", destination=target, renameoptions=how)
            renamed = said is None or said  # gateways that ignore `how` answer with a boolean
        except (FileExistsError, FileNotFoundError):
            renamed = False
        if renamed:
            return tag
        # The name is taken, perhaps by us: then an earlier try renamed the file, and its answer was lost.
        self.sync(name.rpartition("/")[0])
        found = self.mark(name)
        if found == tag:
            return tag
        if found is not None and how == "NONE":
            return None
        raise OSError(f"writing {self.shown(name)}: the file was not renamed to its name, or was deleted or replaced")


def _tag(status: Mapping[str, Any]) -> str:
    """Return a file's tag, from its status. The tag changes if the file is replaced, but not if the file is renamed."""
    return f"{status['fileId']} {status['length']} {status['modificationTime']}"
