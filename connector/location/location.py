"""The checkpoint location: a folder that holds Spark's logs and our journal, on a disk or in an object store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from connector.location.files import GuardedFiles, LocalFiles, LocationFiles
from connector.location.hdfs import HdfsFiles, endpoints_of, hdfs_url
from connector.location.object_store import ObjectFiles, canonical_url
from connector.location.single_driver import FilesystemFiles
from connector.location.spark_files import read_text
from transactional.errors import LocationError, OptionError
from transactional.journal import Journal
from transactional.sink import Options

SINGLE_DRIVER = "BARRIER_SINGLE_DRIVER"
"""The environment variable that commands read instead of the query's option singleDriver."""

SINGLE_DRIVER_OPTION = "singleDriver"

STORE_OPTIONS = {"endpoint": "checkpointEndpoint", "region": "checkpointRegion"}
"""Maps each setting of an object store to the sink option that sets it."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def local_path(text: str) -> str | None:
    """Return the local path that Hadoop uses for a path or a ``file:`` URI; None if the text names another store.

    Hadoop does not decode the text: ``%20`` stays ``%20``, and ``#`` and ``?`` have no special meaning.
    """
    scheme = _SCHEME.match(text)
    if scheme is None:
        return text
    rest = text[scheme.end() :]
    if scheme.group(1) != "file":
        return None
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    return slash + path if host in ("", "localhost") else None


def nearest(path: str) -> str:
    """Return the path if it exists, otherwise its nearest parent that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


class CheckpointLocation:
    """The checkpoint location of one query: access to its files and its journal.

    Parameters
    ----------
    location : str
        The value of ``checkpointLocation``: a local path, a ``file:`` URI, or a folder in HDFS (``hdfs://``, ``webhdfs://``,
        ``swebhdfs://``) or in an object store (``s3a://bucket/..``, ``gs://``, ``abfss://``). With `single_driver`, also any
        other URL that pyarrow can open; then pyarrow also opens ``hdfs://``.
    options : Mapping[str, str], optional
        ``endpoint`` and ``region`` of the object store; in HDFS, ``endpoint`` is a list of WebHDFS addresses. By default, the
        environment's values are used.
    single_driver : bool, optional
        True if something else guarantees a single driver. In that case, the store need not support exclusive create. By
        default, the environment variable ``BARRIER_SINGLE_DRIVER`` decides.

    Attributes
    ----------
    path : str
        The canonical name of the location: an absolute local path, or a URL.

    Raises
    ------
    OptionError
        ``NO_EXCLUSIVE_CREATE``: the store can't create a file exclusively, so two drivers could run the query at the same time.
    """

    def __init__(
        self, location: str, options: Mapping[str, str] | None = None, single_driver: bool | None = None
    ) -> None:
        path, url = local_path(location), canonical_url(location)
        alone = os.environ.get(SINGLE_DRIVER, "") == "true" if single_driver is None else single_driver
        hdfs = None if alone else hdfs_url(location)
        self._given = location
        self._store, self._single_driver = dict(options or {}), single_driver
        files: LocationFiles
        self.is_local = path is not None
        if path is not None:
            self.path = os.path.realpath(path)
            files = LocalFiles(self.path)
        elif url is not None:
            self.path = url
            files = ObjectFiles(url, options or {})
        elif hdfs is not None:
            self.path = hdfs
            files = HdfsFiles(hdfs, endpoints_of(hdfs, self._store.get("endpoint")))
        else:
            if not alone:
                raise OptionError("NO_EXCLUSIVE_CREATE", location=location, option="checkpointLocation")
            self.path = location.rstrip("/")
            files = FilesystemFiles(self.path)
        self.files: LocationFiles = GuardedFiles(files)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> CheckpointLocation:
        """Return the location that a sink's options name. Raises OptionError if ``checkpointLocation`` is not set."""
        given = Options(options)
        location = given.get("checkpointLocation")
        if not location:
            raise OptionError(
                "MISSING_OPTION",
                owner="2pc",
                option="checkpointLocation",
                reason='set .option("checkpointLocation", ...) on the writer itself, because Spark does not pass '
                "spark.sql.streaming.checkpointLocation to a sink. Without a location, exactly-once is impossible",
            )
        store = {name: given[key].strip() for name, key in STORE_OPTIONS.items() if key in given}
        single = given[SINGLE_DRIVER_OPTION].strip().lower() == "true" if SINGLE_DRIVER_OPTION in given else None
        return cls(location, store, single)

    def check_writable(self) -> None:
        """Check that this user can create the location or write into it. Only a local path is checked."""
        if not self.is_local:
            return
        there = nearest(self.path)
        if not os.path.isdir(there):
            raise LocationError("LOCATION_NOT_A_FOLDER", reason=f"{there} is a file")
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise LocationError("LOCATION_NOT_OURS", path=there)

    def as_options(self) -> dict[str, str]:
        """Return the options with which `from_options` opens this location in another process."""
        store = {STORE_OPTIONS[name]: value for name, value in self._store.items()}
        single = {} if self._single_driver is None else {SINGLE_DRIVER_OPTION: str(self._single_driver).lower()}
        return {"checkpointLocation": self.path, **store, **single}

    def as_hadoop(self) -> str:
        """Return the location as Spark's own files name it: the URL of an object store has the scheme that the user wrote."""
        return f"file:{self.path}" if self.is_local else self._given.rstrip("/")

    def query_id(self) -> str:
        """Return the query's id, from Spark's ``metadata`` file."""
        path = self.files.shown("metadata")
        try:
            return str(json.loads(read_text(self.files, "metadata"))["id"])
        except OptionError:  # is also a ValueError
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LocationError(
                "LOGS_INCONSISTENT",
                reason=f"{path}, which Spark writes when the query starts, can't be read ({error})",
                path=path,
            ) from error

    def journal(self) -> Journal:
        """Open the journal at ``barrier/log``."""
        return Journal(self.files.journal_store("barrier/log"))
