"""Rows as CSV: what PostgreSQL reads back; the server's own reading is integration/test_postgresql_sink.py's."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.sql.csv_rows import as_csv, as_text, numbers, repeated


def literal(value: object) -> str:
    """Reference: an element of PostgreSQL's array literals."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(literal, value)) + "}"
    if isinstance(value, bytes):
        return literal("\\x" + value.hex())
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=20)), st.integers(0, 3), st.integers(0, 3))
def test_bytes_are_hexadecimal(values: list[bytes | None], begin: int, end: int) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array(values, kind)[begin : max(begin, len(values) - end)]
        wanted = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        assert as_text(column).to_pylist() == wanted


@pytest.mark.parametrize(
    ("kind", "inner"),
    [
        (pa.list_(pa.int64()), st.integers(-(2**63), 2**63 - 1)),
        (pa.list_(pa.string()), st.text(max_size=8)),
        (pa.large_list(pa.binary()), st.binary(max_size=8)),
        (pa.list_(pa.list_(pa.string())), st.lists(st.none() | st.text(max_size=4), max_size=3)),
    ],
)
def test_arrays_are_literals(kind: pa.DataType, inner: st.SearchStrategy[object]) -> None:
    @settings(deadline=None)
    @given(
        st.lists(st.none() | st.lists(st.none() | inner, max_size=4), max_size=6), st.integers(0, 3), st.integers(0, 3)
    )
    def check(values: list[list[object] | None], begin: int, end: int) -> None:
        column = pa.array(values, kind)[begin : max(begin, len(values) - end)]
        wanted = [None if value is None else literal(value) for value in column.to_pylist()]
        assert as_text(column).to_pylist() == wanted

    check()


def test_nulls_and_empty_texts_differ() -> None:
    batch = pa.RecordBatch.from_pydict({"a": ["", None, 'x"y,\n'], "n": [1, None, 3], "b": [b"", None, b"\x01"]})
    text = bytes(as_csv(batch, repeated("run", 3), numbers(7, 3))).decode()
    assert text == '"run",7,"",1,"\\x"\n"run",8,,,\n"run",9,"x""y,\n",3,"\\x01"\n'


def test_nothing_imports_pandas() -> None:
    """It costs a task's worker 0.75 s."""
    program = """
import sys, struct
import pyarrow as pa
from pyarrow import ipc
from connector.sql.csv_rows import as_csv, numbers, repeated
text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("=ii", 0, 2)), pa.py_buffer(b"ab")])
data = text.cast(pa.binary())
lists = pa.ListArray.from_arrays(pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(struct.pack("=ii", 0, 1))]), text)
rows = pa.RecordBatch.from_arrays([text, data, lists], ["a", "b", "c"])
as_csv(rows, repeated("x", 1), numbers(0, 1))
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
