"""A checkpoint location on an object store: S3, and what speaks its protocol; Google's and Azure's by the same client.

Exclusive create is the store's conditional put (``If-None-Match: *``). That a store honours it is seen before the first
create of every process; one that ignores it is refused.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from transactional.errors import JournalError, LocationError, OptionError
from transactional.journal import JournalStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ObjectFiles", "ObjectJournalStore", "canonical_url", "told_error"]

SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "abfss", "abfss": "abfss"}
"""Hadoop's names of one store, and the one by which the journal knows it."""

PROBE = ".conditional-put"
"""What is created twice to see that the second create is refused; stays in the journal's folder, empty."""

KEPT = 1000
"""Entries that a process keeps, of a few KB each: those of several queries between two snapshots."""

AT_ONCE = 16
"""Requests; each takes tens of milliseconds."""

SPOOLED = 16 << 20
"""Bytes of a file to write that are kept in memory; the rest of it waits on a disk."""

_ENTRY = re.compile(r"(\d+)\.(snapshot\.)?json")

NO_BUCKET = "NoSuchBucket"
"""What S3 calls it; the client takes it for a missing file, or for a failed listing."""

CONFLICTS = 8
"""Tries at a create that the store answers with a conflict (409), though nothing is there."""

CONFLICT_SECONDS = 0.05
"""Before the second try; doubles."""


def canonical_url(location: str) -> str | None:
    """One text for all ways to name a place: ``s3a://bucket//a/`` is ``s3://bucket/a``. None for another kind of store.

    As in Hadoop's Path nothing is decoded: ``%20`` stays ``%20``.

    Raises
    ------
    OptionError
        ``INVALID_LOCATION``: no bucket, or a name that no path of an object store can have.
    """
    scheme, colon, rest = location.partition(":")
    known = SCHEMES.get(scheme.lower())
    if not colon or known is None:
        return None
    bucket, _, path = rest.removeprefix("//").partition("/")
    parts = [part for part in path.split("/") if part]
    wrong = not rest.startswith("//") or not bucket or any(part in (".", "..") for part in parts)
    if wrong or (known == "abfss" and "@" not in bucket):
        shape = (
            "abfss://container@account.dfs.core.windows.net/folder" if known == "abfss" else f"{scheme}://bucket/folder"
        )
        raise OptionError(
            "INVALID_LOCATION",
            f"checkpointLocation={location} names no folder: write {shape}",
            option="checkpointLocation",
        )
    return "/".join([f"{known}://{bucket}", *parts])


class ObjectFiles:
    """See `connector.location.files.LocationFiles`. Holds no client: pickled to executors with its location.

    Parameters
    ----------
    url : str
        As `canonical_url` gives it.
    options : Mapping[str, str]
        ``endpoint`` and ``region``, over what the environment says.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        self._options = tuple(sorted(options.items()))

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles`. A request for each 1000.

        Raises
        ------
        LocationError
            ``LOCATION_UNREADABLE``: the store does not answer, or refuses.
        """
        return list(self.listing(folder))

    def listing(self, folder: str) -> Mapping[str, str]:
        """What is in a folder, each with the tag of its content; folders, and what has no tag, with the empty one.

        Raises
        ------
        LocationError
            As `names`.
        """
        import obstore

        try:
            with _told(self.shown(folder), "listing"):
                found = obstore.list_with_delimiter(self._client(), folder)
        except OSError as error:
            raise LocationError("LOCATION_UNREADABLE", str(error), path=self.shown(folder)) from error
        tags = dict.fromkeys(found["common_prefixes"], "")
        tags.update({each["path"]: each["e_tag"] or "" for each in found["objects"]})
        return {name: tag for path, tag in tags.items() if (name := path[len(folder) :].strip("/"))}

    def read(self, name: str) -> bytes:
        """See `LocationFiles`."""
        import obstore

        with _told(self.shown(name), "reading"):
            return bytes(obstore.get(self._client(), name).bytes().to_bytes())

    def exists(self, name: str) -> bool:
        """See `LocationFiles`."""
        import obstore

        try:
            with _told(self.shown(name), "looking for"):
                obstore.head(self._client(), name)
        except FileNotFoundError:
            return bool(self.names(name))
        return True

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles`."""
        return ObjectJournalStore(self, folder)

    def shown(self, name: str) -> str:
        """See `LocationFiles`."""
        return f"{self._url}/{name}"

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles`."""
        import obstore

        with _told(self.shown(name), "reading"):
            for chunk in obstore.get(self._client(), name).stream():
                yield bytes(chunk)

    def mark(self, name: str) -> str | None:
        """See `LocationFiles`."""
        import obstore

        try:
            with _told(self.shown(name), "looking for"):
                found = obstore.head(self._client(), name)
        except FileNotFoundError:
            return None
        return f"{found['e_tag']} {found['last_modified'].isoformat()}"

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles`."""
        import obstore

        if isinstance(data, bytes):
            with _told(self.shown(name), "writing"):
                obstore.put(self._client(), name, data, use_multipart=False)
            return
        with tempfile.SpooledTemporaryFile(SPOOLED) as file:  # the client can't read another object while it writes one
            file.writelines(data)
            file.seek(0)
            with _told(self.shown(name), "writing"):
                obstore.put(self._client(), name, cast("BinaryIO", file))

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles`."""
        import obstore

        with _told(self.shown(folder), "listing"):
            return [str(each["path"]) for page in obstore.list(self._client(), folder or None) for each in page]

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles`."""
        return self.create_tagged(name, data) is not None

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles`."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._delete, names))

    def remove(self, folder: str) -> None:
        """See `LocationFiles`."""
        if folder:
            self.delete(self.tree(folder))

    def _delete(self, name: str) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError), _told(self.shown(name), "deleting"):
            obstore.delete(self._client(), name)

    # -- for the journal --------------------------------------------------------------------------------------------

    def create_tagged(self, name: str, data: bytes) -> str | None:
        """One conditional put: the new object's tag, not empty, or None where the name is taken.

        Raises
        ------
        OSError
            Nobody knows whether it was done.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        pause = CONFLICT_SECONDS
        for _ in range(CONFLICTS):
            try:
                with _told(self.shown(name), "writing"):
                    made = obstore.put(self._client(), name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                if self.exists(name):
                    return None
            else:
                return made["e_tag"] or "untagged"
            # S3 answers 409 where a delete or another put was under way, and nothing has landed: the client calls that taken.
            time.sleep(pause)
            pause *= 2
        raise OSError(f"{self.shown(name)}: the store answers every conditional put with a conflict")

    def _client(self) -> ObjectStore:
        return _client(self._url, self._options)


class ObjectJournalStore:
    """See `transactional.journal.JournalStore`.

    Entries never change, and a journal is read again at every planning and commit. So what was read is kept in the process, by
    the tag of its content that the listing gives; and what a listing shows anew is read at once, many at a time.

    Parameters
    ----------
    files : ObjectFiles
    folder : str
        Relative to the location.
    """

    def __init__(self, files: ObjectFiles, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._tags: Mapping[str, str] = {}

    def create(self, name: str, data: bytes) -> bool:
        """See `JournalStore`.

        Raises
        ------
        OSError
            Nobody knows whether it was done.
        JournalError
            ``NO_CONDITIONAL_PUT``: the store has overwritten where it was to refuse.
        """
        self._see_that_it_arbitrates()
        tag = self._files.create_tagged(f"{self._folder}/{name}", data)
        if tag is not None:
            _KEPT.keep(self._key(name, tag), data)
        return tag is not None

    def names(self) -> list[str]:
        """See `JournalStore`."""
        self._tags = self._files.listing(self._folder)
        self._read_ahead()
        return list(self._tags)

    def read(self, name: str) -> bytes:
        """See `JournalStore`.

        Raises
        ------
        JournalError
            ``JOURNAL_STORE_FAILED``
        """
        tag = self._tags.get(name, "")
        data = _KEPT.get(self._key(name, tag)) if tag else None
        if data is None:
            data = self._fetch(name)
            if tag:
                _KEPT.keep(self._key(name, tag), data)
        return data

    def delete(self, name: str) -> None:
        """See `JournalStore`."""
        self._files.delete([f"{self._folder}/{name}"])

    def _key(self, name: str, tag: str) -> tuple[str, str]:
        return self._files.shown(f"{self._folder}/{name}"), tag

    def _fetch(self, name: str) -> bytes:
        try:
            return self._files.read(f"{self._folder}/{name}")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError("JOURNAL_STORE_FAILED", str(error), file=name, reason=str(error)) from error

    def _read_ahead(self) -> None:
        """Of what a journal reads next, the newest snapshot and the entries after it: what is not kept yet."""
        numbers = {match: int(match[1]) for match in filter(None, map(_ENTRY.fullmatch, self._tags))}
        folded = max((number for match, number in numbers.items() if match[2]), default=0)
        wanted = [match[0] for match, number in numbers.items() if number > folded or (match[2] and number == folded)]
        missing = [name for name in wanted if self._tags[name] and _KEPT.get(self._key(name, self._tags[name])) is None]
        if len(missing) < 2:
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._try_to_keep, missing))

    def _try_to_keep(self, name: str) -> None:
        with contextlib.suppress(OSError, JournalError):  # who needs it finds out
            _KEPT.keep(self._key(name, self._tags[name]), self._fetch(name))

    def _see_that_it_arbitrates(self) -> None:
        """Create a file that is there: a store that ignores the condition would let both drivers decide."""
        probe = f"{self._folder}/{PROBE}"
        where = self._files.shown(probe)
        if where in _ARBITRATING:
            return
        if self._files.create(probe, b"") and self._files.create(probe, b""):
            raise JournalError(
                "NO_CONDITIONAL_PUT",
                f"{where} was created twice: this store ignores If-None-Match, and can't tell which of two drivers decides. "
                "Use a store that honours it (S3, MinIO, R2, Ceph of a recent version), or a local disk",
                path=where,
            )
        _ARBITRATING.add(where)


class _Kept:
    """Contents by name and tag, the last used ones. A tag stands for one content, so that none is ever stale."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def get(self, key: tuple[str, str]) -> bytes | None:
        """The content, where it is kept."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def keep(self, key: tuple[str, str], data: bytes) -> None:
        """Keep a content, and forget the one that was not used for longest."""
        with self._lock:
            self._found[key] = data
            if len(self._found) > self._most:
                self._found.popitem(last=False)


_KEPT = _Kept(KEPT)

_ARBITRATING: set[str] = set()
"""Folders whose store was seen to refuse a second create: a fact about the store, whichever query has found it."""


@functools.lru_cache(maxsize=16)
def _client(url: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """The client of a place; its connections outlive a micro-batch. Credentials come from the environment alone."""
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise OptionError(
            "OBJECT_STORES_NOT_INSTALLED",
            f"checkpointLocation={url}: the client of object stores is not installed where the driver's Python runs: "
            "pip install 'barrier-kafka[object-stores]'",
            option="checkpointLocation",
        ) from error
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    given: Any = dict(options)
    client: Any = {"allow_http": True} if given.get("endpoint", "").startswith("http:") else None
    with _told(url, "opening"):
        if scheme == "s3":
            return S3Store(bucket, prefix=path or None, config=given, client_options=client)
        if scheme == "gs":
            return GCSStore(bucket, prefix=path or None, client_options=client)
        container, _, host = bucket.partition("@")
        given = {"account_name": host.partition(".")[0], **{key: given[key] for key in given if key == "endpoint"}}
        return AzureStore(container, prefix=path or None, config=given, client_options=client)


def told_error(error: Exception) -> str:
    """A store's error as a message may show it: an Azure URL may carry its signature, further lines repeat the request."""
    first = str(error).partition("\n")[0].partition(": <?xml")[0]
    return re.sub(r"\?\S+", "?...", first)[:300]


@contextlib.contextmanager
def _told(what: str, doing: str) -> Iterator[None]:
    """Let through what callers know; anything else that the client raises is an OSError that says where and why."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError:
        raise
    except FileNotFoundError as error:
        if NO_BUCKET not in str(error):
            raise FileNotFoundError(what) from None
        raise OSError(f"{doing} {what}: there is no such bucket") from None
    except (BaseError, ValueError) as error:
        if NO_BUCKET in str(error):
            raise OSError(f"{doing} {what}: there is no such bucket") from None
        raise OSError(
            f"{doing} {what}: {told_error(error)} (credentials, region and endpoint come from the environment of the driver: "
            "AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, ...)"
        ) from None
