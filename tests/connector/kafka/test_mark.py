"""A mark's JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connector.kafka.client.topics import Partition
from connector.kafka.marks.mark import Mark
from transactional.checkpoint import CheckpointMark
from transactional.errors import StoreError

MARK = Mark(
    CheckpointMark("q", 17, 14, {"q": 17, "root": 5}, True, 100, 1_700_000_000_000, False),
    {Partition("out", 0): 7, Partition("out", 1): 0},
    {"out": "abc"},
)


def test_a_mark_is_read_as_it_was_written() -> None:
    assert Mark.from_json(MARK.to_json(), "marks, offset 3") == MARK
    assert json.loads(MARK.key) == ["q", 17]


def test_a_mark_that_an_older_build_has_written_is_understood() -> None:
    golden = (
        b'{"version":1,"query":"q","checkpoint":17,"after":14,"lineage":{"q":17,"root":5},"exact":true,"rows":100,'
        b'"time":1700000000000,"restarted":false,"topics":{"out":{"id":"abc","ends":{"0":7,"1":0}}}}'
    )
    assert Mark.from_json(golden, "x") == MARK
    assert MARK.to_json() == golden


@pytest.mark.parametrize("value", [None, b"", b"[]", b"text", b"{}", b'{"version": 2}', b'{"version": 1}'])
def test_what_is_no_mark_is_named_with_its_offset(value: bytes | None) -> None:
    with pytest.raises(StoreError, match=r"FORMAT_UNKNOWN.*marks, offset 3"):
        Mark.from_json(value, "marks, offset 3")


def test_marks_of_two_checkpoints_have_two_keys() -> None:
    assert MARK.key != replace(MARK, checkpoint=replace(MARK.checkpoint, checkpoint=18)).key
