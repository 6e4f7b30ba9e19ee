"""The compiled helper on messages made by hand, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from connector.kafka import native
from connector.kafka.client.topics import Partition
from connector.kafka.native.columns import native_columns
from connector.kafka.native.library import native_library
from connector.kafka.source.reading import native_records
from connector.kafka.source.reading.native_records import NativeRecords
from tests.connector.kafka.native.synthetic import Messages
from tests.results import ROOT
from transactional.errors import StoreError

SOURCE = Path(native.__file__).parent / "columns.c"
HERE = Partition("topic", 0)

compiler = shutil.which("cc")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The helper with sanitizers, and the library that has to be loaded before it."""
    if compiler is None:
        pytest.skip("no C compiler: the helper is not there either")
    made = str(tmp_path_factory.mktemp("helper") / "columns.so")
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-shared", "-fPIC")
    built = subprocess.run([compiler, *flags, str(SOURCE), "-o", made], capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"this compiler has no sanitizers: {built.stderr[-200:]}")
    asked = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return made, asked.stdout.strip()


def run(sanitized: tuple[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    made, preloaded = sanitized
    # Python itself frees not everything at its end.
    environment = {**os.environ, "LD_PRELOAD": preloaded, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    command = [sys.executable, "-m", "tests.connector.kafka.native.synthetic", made, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_columns_are_the_rows_and_no_byte_beyond_them_is_touched(sanitized: tuple[str, str]) -> None:
    ran = run(sanitized, "20261122", "100")
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_a_buffer_that_is_too_short_by_one_byte_is_seen(sanitized: tuple[str, str]) -> None:
    ran = run(sanitized, "20261122", "20", "1")
    assert ran.returncode != 0
    assert "heap-buffer-overflow" in ran.stderr


@pytest.mark.skipif(native_columns() is None, reason="the helper was not compiled")
@pytest.mark.parametrize(("key", "value", "fits"), [(1, 9, True), (10, 0, False), (0, 10, False)])
def test_more_bytes_than_a_column_holds_are_refused(
    key: int, value: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_records, "LARGEST_COLUMN", 9)
    library, columns = native_library(), native_columns()
    assert library is not None
    assert columns is not None
    row = bytes(key), bytes(value)
    messages = Messages([(*row, 0, None)])
    records = NativeRecords(library, columns, messages.pointers, np.array([7]), (), ((HERE, 1),))
    if fits:
        assert records.to_batch(("key", "value")).to_pylist() == [{"key": row[0], "value": row[1]}]
        return
    with pytest.raises(StoreError, match="10 bytes of one column") as refused:
        records.to_batch(("key", "value"))
    assert (refused.value.condition, refused.value.parameters["offset"]) == ("READ_FAILED", 7)
