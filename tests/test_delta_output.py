"""The reader beside a Delta table: it must report whatever it sees that no reader may see."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from integration.delta_output import WholeReader

PATIENCE = 30.0
"""Seconds; a look takes milliseconds."""


def after_looks(number: int, look: Callable[[int], Counter[int]]) -> WholeReader:
    """A reader of two rows a checkpoint that has looked so often; `look` gets the number of the look, from 1."""
    looked = threading.Event()

    def read() -> Counter[int]:
        if reading.looks >= number:
            looked.set()
        return look(reading.looks)

    ready = threading.Event()

    def first() -> Counter[int]:
        assert ready.wait(PATIENCE)
        return read()

    reading = WholeReader(first, 2)
    ready.set()
    assert looked.wait(PATIENCE)
    return reading


def rows(number: int) -> Counter[int]:
    return Counter(range(number))


def test_a_table_that_grows_by_whole_checkpoints_passes() -> None:
    after_looks(3, lambda look: rows(0 if look == 1 else 2 if look == 2 else 4)).finish(4)


def test_a_look_that_raises_is_reported() -> None:
    def fails(look: int) -> Counter[int]:
        if look == 2:
            raise OSError("planted")
        return rows(4)

    with pytest.raises(AssertionError, match=r"look 2.*planted"):
        after_looks(2, fails).finish(4)


@pytest.mark.parametrize("seen", [0, 2])
def test_a_table_that_never_holds_all_rows_is_reported(seen: int) -> None:
    with pytest.raises(AssertionError, match=f"{seen} rows of 4"):
        after_looks(2, lambda look: rows(seen)).finish(4)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(rows(3), id="part of a checkpoint"),
        pytest.param(rows(0), id="fewer than before"),
        pytest.param(rows(2) + rows(2), id="doubled"),
        pytest.param(Counter([0, 2]), id="not the next"),
    ],
)
def test_one_look_at_what_no_reader_may_see_is_reported(second: Counter[int]) -> None:
    with pytest.raises(AssertionError, match="a reader saw"):
        after_looks(2, lambda look: second if look == 2 else rows(2)).finish(2)
