"""A task's Parquet files: one open file per partition value. When a file is large enough, the task begins a new one."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, BinaryIO, Final, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connector.delta.statistics import Seen, file_statistics, without_floating
from connector.delta.storage import TableFolder
from transactional import RowRefusedError

ROW_GROUP_ROWS: Final = 1 << 20
ROW_GROUP_BYTES: Final = 64 << 20
LEAST_GROUP_ROWS: Final = 1 << 14
"""The limits of a row group, which stays in memory until it is complete. A row group has about `ROW_GROUP_BYTES` bytes
before encoding, but at least `LEAST_GROUP_ROWS` and at most `ROW_GROUP_ROWS` rows."""

OPEN_FILES: Final = 64
"""The maximum number of files that a task may have open. If it needs another file, it closes the least recently written
file."""

LONGEST_NAME: Final = 256
"""The maximum length of a folder's name in bytes, including the slash. File systems on disks have the same limit."""

UNSAFE: Final = "\"#%'*/:=?\\\x7f{[]^"
"""The characters that Spark escapes in the names of partition folders, in addition to control characters."""


class AddedFile(TypedDict):
    """A file of a prepared transaction, with the fields of an ``add`` action in Delta's log."""

    path: str
    size: int
    partitionValues: dict[str, str | None]
    modificationTime: int
    stats: str


@dataclass
class OpenFile:
    """A data file that the task is writing, and the statistics of its rows so far."""

    path: str
    values: dict[str, str | None]
    stream: BinaryIO | pa.NativeFile
    writer: pq.ParquetWriter
    seen: Seen
    touched: int = 0


@dataclass
class DataFiles:
    """The data files of one transaction."""

    folder: TableFolder
    schema: pa.Schema  # The table's schema.
    partition_by: Sequence[str]  # The names of the partition columns.
    name: str  # The beginning of the files' names.
    file_bytes: int  # The size in bytes at which a file is closed.
    compression: str
    indexed: int  # The number of columns that get statistics; a negative number means all.
    # Called with the paths of all files of the transaction, before a new file is created.
    announce: Callable[[Sequence[str]], None]
    added: list[AddedFile] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    _open: dict[tuple[str | None, ...], OpenFile] = field(default_factory=dict)
    _planned: dict[tuple[str | None, ...], str] = field(default_factory=dict)
    _clock: int = 0

    def __post_init__(self) -> None:
        kept = [column for column in self.schema if column.name not in self.partition_by]
        self._inside = pa.schema(kept)
        self._bounded = without_floating(self._inside)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write each row of a batch to the file for the row's partition values. The batch must have the table's columns."""
        parts = list(split(batch, self.partition_by))
        wanted = dict.fromkeys(values for values, _ in parts)  # null and the empty string become the same value
        self._plan([values for values in wanted if values not in self._open and values not in self._planned])
        for values, rows in parts:
            self._write_part(values, rows.select(self._inside.names))

    def finish(self) -> list[AddedFile]:
        """Close all files, make them durable, and return their descriptions."""
        for values in list(self._open):
            self._close(values)
        self.folder.sync_names(file["path"] for file in self.added)
        return self.added

    def drop(self) -> None:
        """Close the open files, and delete all files of the transaction."""
        for file in self._open.values():
            file.writer.close()
            file.stream.close()
        self._open.clear()
        self.folder.delete(self.paths)

    def _write_part(self, values: tuple[str | None, ...], rows: pa.RecordBatch) -> None:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(min(self._open, key=lambda key: self._open[key].touched))
            self._plan([] if values in self._planned else [values])
            file = self._open[values] = self._create(self._planned.pop(values), values)
        self._clock += 1
        file.touched = self._clock
        file.seen.add(rows)
        group_rows = ROW_GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)
        file.writer.write_batch(rows, row_group_size=min(max(group_rows, LEAST_GROUP_ROWS), ROW_GROUP_ROWS))
        if file.stream.tell() >= self.file_bytes:
            self._close(values)

    def _plan(self, fresh: Sequence[tuple[str | None, ...]]) -> None:
        """Choose a path for the next file of each of these partition values.

        Pass all paths to `announce` before the files are created.
        """
        if fresh:
            for values in fresh:
                self._planned[values] = self._path(values, len(self.paths))
                self.paths.append(self._planned[values])
            self.announce(self.paths)

    def _path(self, values: tuple[str | None, ...], number: int) -> str:
        folders = [f"{escaped(c)}={folder_of(v)}/" for c, v in zip(self.partition_by, values, strict=True)]
        for column, folder in zip(self.partition_by, folders, strict=True):
            if len(folder.encode()) > LONGEST_NAME:
                reason = f"a value of the partition column {column} makes a folder name of more than {LONGEST_NAME - 1} bytes"
                raise RowRefusedError("ROW_REFUSED", owner="2pc-delta", reason=reason, column=column)
        codec = "" if self.compression == "none" else f".{self.compression}"
        return f"{''.join(folders)}{self.name}-c{number:03d}{codec}.parquet"

    def _create(self, path: str, values: tuple[str | None, ...]) -> OpenFile:
        stream = self.folder.create(path)
        writer = pq.ParquetWriter(
            stream, self._inside, compression=self.compression, write_statistics=self._bounded, store_schema=False
        )
        return OpenFile(path, dict(zip(self.partition_by, values, strict=True)), stream, writer, Seen(self._inside))

    def _close(self, values: tuple[str | None, ...]) -> None:
        file = self._open.pop(values)
        file.writer.close()
        size = file.stream.tell()
        if isinstance(file.stream, pa.NativeFile):
            file.stream.close()
        else:
            file.stream.flush()
            os.fsync(file.stream.fileno())
            file.stream.close()
        self.added.append(
            AddedFile(
                path=file.path,
                size=size,
                partitionValues=file.values,
                modificationTime=int(time.time() * 1000),
                stats=file_statistics(file.writer.writer.metadata, self._inside, file.seen, self.indexed),
            )
        )


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Split a batch by the values of its partition columns.

    Yield each combination of values, in the form in which Delta's log stores them, with its rows.
    """
    if not partition_by:
        yield (), batch
        return
    code = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    for name in partition_by:
        encoded = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        code = pc.add(pc.multiply(code, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        code = pc.dictionary_encode(code).indices.cast(pa.int64())  # fewer codes than rows, so no product overflows
    order = pc.sort_indices(code)
    rows = batch.take(order)
    start = 0
    for end in pc.run_end_encode(code.take(order)).run_ends.to_pylist():
        yield (
            tuple(partition_text(name, rows.column(name)[start]) for name in partition_by),
            rows.slice(start, end - start),
        )
        start = end


def partition_text(column: str, value: pa.Scalar) -> str | None:
    """Return a partition column's value in the form in which Delta's log stores it. Raise if the log can't store it."""
    try:
        return text_of(value.as_py())
    except (ValueError, OverflowError) as problem:
        reason = f"a value of the partition column {column} can't be written: {problem}"
        raise RowRefusedError("ROW_REFUSED", owner="2pc-delta", reason=reason, column=column) from None


def text_of(value: Any) -> str | None:
    """Return a partition value in the form in which Delta's log stores it.

    Return None for null and for an empty string, which Delta reads as null.
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" " if value.tzinfo is None else "T", timespec="microseconds")
        return text if value.tzinfo is None else text + "Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return repr(value).replace("inf", "Infinity").replace("nan", "NaN")
    return str(value)


def folder_of(value: str | None) -> str:
    """Return a partition value as Spark writes it in a folder's name."""
    return "__HIVE_DEFAULT_PARTITION__" if value is None else escaped(value)


def escaped(text: str) -> str:
    """Return a string with the escapes that Spark uses in the names of folders."""
    return "".join(f"%{ord(c):02X}" if c < " " or c in UNSAFE else c for c in text)
