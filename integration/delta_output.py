"""A Delta table, as the crash matrix and a reader beside it see it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import obstore
from deltalake import DeltaTable
from obstore.store import S3Store

from connector.delta.delta_log import MARK
from integration.object_store import BUCKET

__all__ = ["DeltaOutput", "TableOnS3", "WholeReader"]

LOOK_EVERY = 0.02


class DeltaOutput:
    """The table of a job with the sink ``2pc-delta``; see `integration.driver_process.Output`."""

    def __init__(self, path: Path) -> None:
        self.path = path  # Of the table.

    def rows(self) -> Counter[int]:
        """See `Output`."""
        if not DeltaTable.is_deltatable(str(self.path)):
            return Counter()
        return Counter(map(int, DeltaTable(str(self.path)).to_pyarrow_table(columns=["value"])["value"].to_pylist()))

    def open_transactions(self) -> list[str]:
        """See `Output`: names of notes."""
        return sorted(note.stem for note in self.path.glob("_barrier/*/*.json"))

    def lose(self, names: list[str]) -> None:
        """See `Output`: their files vanish, as by a VACUUM that keeps nothing."""
        for file in self.path.rglob("*.parquet"):
            if any(name in file.name for name in names):
                file.unlink()

    def is_quiet(self) -> bool:
        """See `Output`."""
        return not self.open_transactions()

    # -- what the log says ------------------------------------------------------------------------------------------

    def files(self) -> set[str]:
        """Parquet files in the folder, relative to it."""
        found = self.path.rglob("*.parquet")
        return {str(file.relative_to(self.path)) for file in found if "_delta_log" not in file.parts}

    def marks(self) -> list[dict[str, object]]:
        """Our marks, oldest first."""
        history = reversed(DeltaTable(str(self.path)).history())
        return [version[MARK] for version in history if MARK in version]


class TableOnS3:
    """Likewise, in an object store whose address and credentials are in the environment."""

    def __init__(self, path: str) -> None:
        self.path = path  # ``s3://`` with `BUCKET`.

    def rows(self) -> Counter[int]:
        """See `Output`."""
        if not DeltaTable.is_deltatable(self.path):
            return Counter()
        return Counter(DeltaTable(self.path).to_pyarrow_table(columns=["value"])["value"].to_pylist())

    def open_transactions(self) -> list[str]:
        """See `Output`."""
        return sorted(Path(key).stem for key in self._keys() if key.startswith("_barrier/") and key.endswith(".json"))

    def lose(self, names: list[str]) -> None:
        """See `Output`."""
        raise NotImplementedError

    def is_quiet(self) -> bool:
        """See `Output`."""
        return not self.open_transactions()

    def files(self) -> set[str]:
        """See `DeltaOutput`."""
        return {key for key in self._keys() if key.endswith(".parquet") and "_delta_log" not in key}

    def _keys(self) -> list[str]:
        """What lies below the table's folder, relative to it."""
        prefix = self.path.removeprefix(f"s3://{BUCKET}/")
        store = S3Store(BUCKET, client_options={"allow_http": True}, virtual_hosted_style_request=False)
        return [each["path"].removeprefix(f"{prefix}/") for part in obstore.list(store, f"{prefix}/") for each in part]


class WholeReader:
    """A thread that reads the table all the time: it must see only whole checkpoints, and their number grow.

    Parameters
    ----------
    read : Callable[[], Counter[int]]
        What a reader sees now.
    rows : int
        Of a checkpoint; the values of checkpoint n are n * rows to (n + 1) * rows, exclusive.
    """

    def __init__(self, read: Callable[[], Counter[int]], rows: int) -> None:
        self._look = read
        self._rows = rows
        self._over = threading.Event()
        self._problem: BaseException | None = None
        self._seen = 0
        self.looks = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()

    def finish(self, rows: int) -> None:
        """Stop reading, and look once more: that look has to see `rows` rows.

        Raises
        ------
        AssertionError
            Anything but whole checkpoints was seen, a look failed, or there was none before this one.
        """
        self.stop()
        if self._problem is not None:
            raise AssertionError(f"look {self.looks} of the reader failed: {self._problem}") from self._problem
        assert self.looks > 0, "the reader never looked"
        self._take()
        assert self._seen == rows, f"in the end the reader sees {self._seen} rows of {rows}"

    def _read(self) -> None:
        try:
            while not self._over.is_set():
                self._take()
                time.sleep(LOOK_EVERY)
        except BaseException as problem:  # noqa: BLE001 - raised by `finish`.
            self._problem = problem

    def _take(self) -> None:
        self.looks += 1
        found = self._look()
        is_whole = found == Counter(range(found.total())) and found.total() % self._rows == 0
        assert is_whole, f"a reader saw {sorted(found.elements())} after {self._seen} rows"
        assert found.total() >= self._seen, f"a reader saw {found.total()} rows after {self._seen}"
        self._seen = found.total()
