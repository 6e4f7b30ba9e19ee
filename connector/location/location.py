"""The checkpoint location: a folder that holds Spark's logs and our journal, on a disk or in an object store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from connector.location.files import GuardedFiles, LocalFiles, LocationFiles
from connector.location.object_store import ObjectFiles, canonical_url
from connector.location.single_driver import FilesystemFiles
from connector.location.spark_files import read_text
from transactional.errors import LocationError, OptionError
from transactional.journal import Journal
from transactional.sink import Options

__all__ = ["CheckpointLocation", "local_path", "nearest"]

SINGLE_DRIVER = "BARRIER_SINGLE_DRIVER"
"""The environment variable by which commands get what a query gets by the option singleDriver."""

SINGLE_DRIVER_OPTION = "singleDriver"

STORE_OPTIONS = {"endpoint": "checkpointEndpoint", "region": "checkpointRegion"}
"""The object store's settings, and the sink's options that give them."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def local_path(text: str) -> str | None:
    """Return the local path that Hadoop's Path makes of a path or a ``file:`` URI; None if it is not local.

    Hadoop takes the text as it is: ``%20`` stays ``%20``, and ``#`` and ``?`` have no meaning.
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
    """Return the path, or the nearest one above it that is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


class CheckpointLocation:
    """One query's checkpoint location, read and written through the same root.

    Parameters
    ----------
    location : str
        As given to ``checkpointLocation``: a local path or a ``file:`` URI; a folder of an object store (``s3a://bucket/..``,
        ``gs://``, ``abfss://``); with `single_driver` what else pyarrow knows (``hdfs://``).
    options : Mapping[str, str], optional
        ``endpoint`` and ``region`` of an object store, if the environment does not set them.
    single_driver : bool
        Something else guarantees one driver: the store need not create a file exclusively.

    Attributes
    ----------
    path : str
        Canonical: an absolute local path, or a URL.

    Raises
    ------
    OptionError
        ``NO_EXCLUSIVE_CREATE``: nothing there arbitrates which of two drivers decides.
    """

    def __init__(
        self, location: str, options: Mapping[str, str] | None = None, single_driver: bool | None = None
    ) -> None:
        path, url = local_path(location), canonical_url(location)
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
        else:
            allowed = os.environ.get(SINGLE_DRIVER, "") == "true" if single_driver is None else single_driver
            if not allowed:
                raise OptionError("NO_EXCLUSIVE_CREATE", location=location, option="checkpointLocation")
            self.path = location.rstrip("/")
            files = FilesystemFiles(self.path)
        self.files: LocationFiles = GuardedFiles(files)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> CheckpointLocation:
        """Make a location from a sink's options."""
        given = Options(options)
        location = given.get("checkpointLocation")
        if not location:
            raise OptionError(
                "MISSING_OPTION",
                owner="2pc",
                option="checkpointLocation",
                reason='set .option("checkpointLocation", ...) on the writer itself, as Spark does not pass a sink '
                "spark.sql.streaming.checkpointLocation, and without the location nothing is exactly-once",
            )
        store = {name: given[key].strip() for name, key in STORE_OPTIONS.items() if key in given}
        single = given[SINGLE_DRIVER_OPTION].strip().lower() == "true" if SINGLE_DRIVER_OPTION in given else None
        return cls(location, store, single)

    def check_writable(self) -> None:
        """Check that this user can make the location, or write into it. Nothing is asked of an object store."""
        if not self.is_local:
            return
        there = nearest(self.path)
        if not os.path.isdir(there):
            raise LocationError("LOCATION_NOT_A_FOLDER", reason=f"{there} is a file")
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise LocationError("LOCATION_NOT_OURS", path=there)

    def as_options(self) -> dict[str, str]:
        """Return the options from which `from_options` makes this location in another process."""
        store = {STORE_OPTIONS[name]: value for name, value in self._store.items()}
        single = {} if self._single_driver is None else {SINGLE_DRIVER_OPTION: str(self._single_driver).lower()}
        return {"checkpointLocation": self.path, **store, **single}

    def as_hadoop(self) -> str:
        """Return the location as Spark writes it into its own files: on an object store under the scheme that was given."""
        return f"file:{self.path}" if self.is_local else self._given.rstrip("/")

    def query_id(self) -> str:
        """Return the query's id, from Spark's ``metadata`` file."""
        path = self.files.shown("metadata")
        try:
            return str(json.loads(read_text(self.files, "metadata"))["id"])
        except OptionError:  # a ValueError, too
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
