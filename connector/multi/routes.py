"""Split the rows of a batch among sinks, with Arrow's masks and row numbers instead of Python code per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from transactional import RowRefusedError

SHOWN, LONGEST = 3, 80
"""The maximum number of unknown sink names that an error quotes, and the maximum number of characters of each name."""


def can_route(kind: pa.DataType) -> bool:
    """Return whether the ``routeColumn`` can have this type: strings, or lists of strings."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def routed(batch: pa.RecordBatch, column: pa.Array, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the name of each sink that gets rows from a batch, with these rows in the order of the batch.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        All rows.
    column : pyarrow.Array
        For each row, the name of a sink, a list of names, or null for all sinks.
    names : Sequence[str]
        The names of all sinks.

    Raises
    ------
    RowRefusedError
        ``ROUTE_UNKNOWN``: a row has a name that is not in `names`, or a list that is empty or contains null.
    """
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        _check(column, names)
        for name in names:
            yield from _rows(name, batch, pc.fill_null(pc.equal(column, name), True))
        return
    everywhere = pc.indices_nonzero(column.is_null()).cast(pa.int64()) if column.null_count else None
    there = pc.indices_nonzero(column.is_valid()).cast(pa.int64()) if column.null_count else None
    column = column if there is None else column.filter(column.is_valid())  # a null may hide a list with values
    if pc.any(pc.equal(pc.list_value_length(column), 0)).as_py():
        raise RowRefusedError("ROUTE_UNKNOWN", routes=["(an empty array)"], sinks=list(names))
    flat, rows = pc.list_flatten(column), pc.list_parent_indices(column).cast(pa.int64())
    rows = rows if there is None else there.take(rows)
    if flat.null_count:
        raise RowRefusedError("ROUTE_UNKNOWN", routes=["(a null in an array)"], sinks=list(names))
    _check(flat, names)
    for name in names:
        chosen = pc.unique(rows.filter(pc.equal(flat, name)))
        if everywhere is not None:
            chosen = pa.concat_arrays([chosen, everywhere])
            chosen = chosen.take(pc.array_sort_indices(chosen))
        if len(chosen):
            yield name, batch if len(chosen) == batch.num_rows else batch.take(chosen)


def _rows(name: str, batch: pa.RecordBatch, mask: pa.Array) -> Iterator[tuple[str, pa.RecordBatch]]:
    count = mask.true_count
    if count:
        yield name, batch if count == batch.num_rows else batch.filter(mask)


def _check(found: pa.Array, names: Sequence[str]) -> None:
    unknown = sorted({name for name in pc.unique(found).to_pylist() if name is not None} - set(names))
    if unknown:
        raise RowRefusedError(
            "ROUTE_UNKNOWN", routes=[f'"{name[:LONGEST]}"' for name in unknown[:SHOWN]], sinks=list(names)
        )
