"""Entries as bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transactional.errors import JournalError
from transactional.metadata import Entry, EntryKind, canonical, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from(sorted(EntryKind.ALL)))
def test_an_entry_survives_its_bytes(body: dict[str, Any], kind: str) -> None:
    entry = Entry(7, kind, "n", 12, body)
    assert decode(encode(entry), "7.json") == entry


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_byte_is_read_as_another_entry(place: int, change: int) -> None:
    entry = Entry(7, EntryKind.SETTLED, "nonce", 12, {"checkpoint": 3, "run": 1})
    data = bytearray(encode(entry))
    data[place % len(data)] ^= change
    try:
        found = decode(bytes(data), "7.json")
    except JournalError:
        return
    assert found == entry  # white space at the end


def test_keys_that_are_no_strings_are_written_as_they_are_read() -> None:
    entry = Entry(1, EntryKind.SNAPSHOT, "n", 0, {"runs": {10: 1, 9: 2}})
    assert decode(encode(entry), "1.json").body == {"runs": {"10": 1, "9": 2}}


def test_a_kind_that_this_version_does_not_know_is_refused_by_name() -> None:
    data = encode(Entry(1, "rewind begun", "n", 0, {}))
    with pytest.raises(JournalError, match=r"JOURNAL_KIND_UNKNOWN.*1\.json.*'rewind begun'"):
        decode(data, "1.json")


@pytest.mark.parametrize("data", [b"", b"[]", b"17", b"\xff\xfe", b"null", b"{}"])
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(JournalError, match=r"JOURNAL_ENTRY_TORN.*1\.json"):
        decode(data, "1.json")


def test_equal_values_have_equal_texts() -> None:
    assert (
        canonical({"b": 1, "a": [1, "ä"]})
        == canonical(json.loads('{"a": [1, "\\u00e4"], "b": 1}'))
        == '{"a":[1,"ä"],"b":1}'
    )


def test_the_format_is_that_of_version_1() -> None:
    data = encode(Entry(3, EntryKind.SETTLED, "n", 12, {"run": 1, "checkpoint": 2}))
    assert json.loads(data) == {
        "body": {"checkpoint": 2, "run": 1},
        "checksum": "6b6172a6769f47afebedf6a8b323b2a6",
        "format": 1,
        "kind": "settled",
        "nonce": "n",
        "number": 3,
        "time": 12,
    }
