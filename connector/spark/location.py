"""The checkpoint location: a local folder that holds Spark's logs and our journal."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from transactional.errors import LocationError, OptionError
from transactional.journal import Journal, LocalJournalStore

__all__ = ["CheckpointLocation", "local_path"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def local_path(text: str) -> str | None:
    """The local path that Hadoop's Path makes of a path or a ``file:`` URI; None where it is elsewhere.

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


class CheckpointLocation:
    """One query's checkpoint location, read and written through the same root.

    Parameters
    ----------
    location : str
        A local path, or a ``file:`` URI, as given to ``checkpointLocation``.

    Raises
    ------
    OptionError
        Not on a local disk: only there is exclusive create known to arbitrate.
    """

    def __init__(self, location: str) -> None:
        path = local_path(location)
        if path is None:
            raise OptionError(
                "LOCATION_NOT_LOCAL",
                f"checkpointLocation={location}: the journal needs exclusive create, which this version does on local "
                "disks only (a path or a file: URI that every driver of the query shares)",
                option="checkpointLocation",
            )
        self.path = os.path.realpath(path)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> CheckpointLocation:
        """From a sink's options.

        Raises
        ------
        OptionError
            The option is missing: Spark passes the location only where it is set on the writer.
        """
        location = options.get("checkpointlocation") or options.get("checkpointLocation")
        if not location:
            raise OptionError(
                "MISSING_OPTION",
                'set .option("checkpointLocation", ...) on the writer itself: Spark does not tell a sink of '
                "spark.sql.streaming.checkpointLocation, and without the location nothing is exactly-once",
                option="checkpointLocation",
            )
        return cls(location)

    def query_id(self) -> str:
        """The query's id, from Spark's ``metadata`` file.

        Raises
        ------
        LocationError
            It is not a checkpoint location (any more).
        """
        path = os.path.join(self.path, "metadata")
        try:
            with open(path, encoding="utf-8") as file:
                return str(json.load(file)["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LocationError(
                "NO_SPARK_METADATA",
                f"{path} can't be read ({error}): Spark writes it when the query starts; was the location deleted "
                "while the query ran, or does the driver see another disk?",
                path=path,
            ) from error

    def journal(self) -> Journal:
        """The journal at ``barrier/log``."""
        return Journal(LocalJournalStore(os.path.join(self.path, "barrier", "log")))
