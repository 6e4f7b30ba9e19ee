"""A checkpoint location in an object store: S3 and compatible stores, Google Cloud Storage, or Azure.

Exclusive create is the store's conditional put (``If-None-Match: *``). Before its first create in a journal, each process
checks that the store obeys this condition. A store that ignores it is rejected.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from connector.location.files import AT_ONCE, spooled
from connector.location.urls import split_url, told_error
from transactional.errors import LocationError, OptionError
from transactional.journal import JournalStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "abfss", "abfss": "abfss"}
"""Hadoop's URL schemes, each with the scheme that the journal uses for the same store."""

NO_BUCKET = "NoSuchBucket"
"""S3's error code for a missing bucket. The client reports this error as a missing file, or as a failed listing."""

CONFLICTS = 8
"""The maximum number of attempts to create an object, if the store answers with a conflict (409) although the object
does not exist."""

CONFLICT_SECONDS = 0.05
"""Seconds to wait before the second attempt. The wait doubles before each further attempt."""


def canonical_url(location: str) -> str | None:
    """Return the canonical URL of a location in an object store; None if it is not in an object store.

    For example, ``s3a://bucket//a/`` becomes ``s3://bucket/a``. As in Hadoop, nothing is decoded: ``%20`` stays ``%20``.
    """
    found = split_url(location, SCHEMES)
    if found is None:
        return None
    scheme, bucket, parts = found
    known = SCHEMES[scheme]
    if not bucket or (known == "abfss" and "@" not in bucket):
        shape = (
            "abfss://container@account.dfs.core.windows.net/folder" if known == "abfss" else f"{scheme}://bucket/folder"
        )
        raise OptionError(
            "INVALID_OPTION",
            owner="2pc",
            option="checkpointLocation",
            value=location,
            expectation=f"a folder in the bucket, such as {shape}",
        )
    return "/".join([f"{known}://{bucket}", *parts])


class ObjectFiles:
    """Implements `connector.location.files.LocationFiles` for object stores.

    Executors get pickled copies of the object, so it holds no client.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url  # The location's URL, as `canonical_url` returns it.
        # ``endpoint`` and ``region``. By default, the environment's values are used.
        self._options = tuple(sorted(options.items()))

    def names(self, folder: str) -> list[str]:
        """See `LocationFiles.names`. Sends one request per 1000 names."""
        return list(self.listing(folder))

    def listing(self, folder: str) -> Mapping[str, str]:
        """Map each name in a folder to its object's ETag; a subfolder, or an object without an ETag, has ``""``."""
        import obstore

        try:
            with _told(self.shown(folder), "listing"):
                found = obstore.list_with_delimiter(self._client(), folder)
        except OSError as error:
            raise LocationError("LOCATION_UNREADABLE", path=self.shown(folder), reason=str(error)) from error
        tags = dict.fromkeys(found["common_prefixes"], "")
        tags.update({each["path"]: each["e_tag"] or "" for each in found["objects"]})
        return {name: tag for path, tag in tags.items() if (name := path[len(folder) :].strip("/"))}

    def read(self, name: str) -> bytes:
        """See `LocationFiles.read`."""
        import obstore

        with _told(self.shown(name), "reading"):
            return bytes(obstore.get(self._client(), name).bytes().to_bytes())

    def exists(self, name: str) -> bool:
        """See `LocationFiles.exists`."""
        import obstore

        try:
            with _told(self.shown(name), "looking for"):
                obstore.head(self._client(), name)
        except FileNotFoundError:
            return bool(self.names(name))
        return True

    def journal_store(self, folder: str) -> JournalStore:
        """See `LocationFiles.journal_store`."""
        from connector.location.object_journal import ObjectJournalStore

        return ObjectJournalStore(self, folder)

    def shown(self, name: str) -> str:
        """See `LocationFiles.shown`."""
        return f"{self._url}/{name}"

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `LocationFiles.chunks`."""
        import obstore

        with _told(self.shown(name), "reading"):
            for chunk in obstore.get(self._client(), name).stream():
                yield bytes(chunk)

    def mark(self, name: str) -> str | None:
        """See `LocationFiles.mark`."""
        import obstore

        try:
            with _told(self.shown(name), "looking for"):
                found = obstore.head(self._client(), name)
        except FileNotFoundError:
            return None
        return f"{found['e_tag']} {found['last_modified'].isoformat()}"

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """See `LocationFiles.put`."""
        import obstore

        if isinstance(data, bytes):
            with _told(self.shown(name), "writing"):
                obstore.put(self._client(), name, data, use_multipart=False)
            return
        with (
            spooled(data) as file,
            _told(self.shown(name), "writing"),
        ):  # the client can't read and write at the same time
            obstore.put(self._client(), name, file)

    def tree(self, folder: str) -> list[str]:
        """See `LocationFiles.tree`."""
        import obstore

        with _told(self.shown(folder), "listing"):
            return [str(each["path"]) for page in obstore.list(self._client(), folder or None) for each in page]

    def create(self, name: str, data: bytes) -> bool:
        """See `LocationFiles.create`."""
        return self.create_tagged(name, data) is not None

    def delete(self, names: Iterable[str]) -> None:
        """See `LocationFiles.delete`."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._delete, names))

    def remove(self, folder: str) -> None:
        """See `LocationFiles.remove`."""
        if folder:
            self.delete(self.tree(folder))

    def _delete(self, name: str) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError), _told(self.shown(name), "deleting"):
            obstore.delete(self._client(), name)

    # -- for the journal --------------------------------------------------------------------------------------------

    def create_tagged(self, name: str, data: bytes) -> str | None:
        """Create an object with a conditional put. Return its ETag, which is never empty, or None if the name is taken."""
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
            # S3 answers 409 during a delete or another put. The client then reports a taken name, even if the name is free.
            time.sleep(pause)
            pause *= 2
        raise OSError(f"{self.shown(name)}: the store answers every conditional put with a conflict")

    def sync(self, folder: str) -> None:
        """Do nothing: an object store shows only objects that are durable."""

    def _client(self) -> ObjectStore:
        return _client(self._url, self._options)


@functools.lru_cache(maxsize=16)
def _client(url: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """Return the client of a location, cached so that its connections outlive a micro-batch.

    The client takes the credentials from environment variables.
    """
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise OptionError(
            "MISSING_PACKAGE",
            owner=f"checkpointLocation={url}",
            package="barrier-kafka[object-stores]",
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


@contextlib.contextmanager
def _told(what: str, doing: str) -> Iterator[None]:
    """Convert the client's errors in a block, except AlreadyExistsError, to OSErrors that name the object.

    If the object does not exist, the error is a FileNotFoundError; if its bucket does not exist, it is a plain OSError.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError:
        raise
    except FileNotFoundError as error:
        if NO_BUCKET not in str(error):
            raise FileNotFoundError(what) from None
        raise OSError(f"{doing} {what}: the bucket does not exist") from None
    except (BaseError, ValueError) as error:
        if NO_BUCKET in str(error):
            raise OSError(f"{doing} {what}: the bucket does not exist") from None
        raise OSError(
            f"{doing} {what}: {told_error(error)} (credentials, region and endpoint come from the environment of the driver: "
            "AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, ...)"
        ) from None
