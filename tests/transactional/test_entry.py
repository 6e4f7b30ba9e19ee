"""Entries as bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transactional.entry import Entry, EntryKind, canonical, decode, encode
from transactional.errors import JournalError
from transactional.journal import Journal, LocalJournalStore, MemoryJournalStore
from transactional.ledger import Ledger, apply

GOLDEN = Path(__file__).parents[1] / "golden" / "journal"
NEWEST = {"stopped", "restarted"}  # in v2-stop
RESTORE = {"restoring", "opened"}  # in v2-restored
KINDS = EntryKind.ALL - NEWEST - RESTORE  # in v2

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
    data = encode(Entry(1, "unheard of", "n", 0, {}))
    with pytest.raises(JournalError, match=r"FORMAT_UNKNOWN.*1\.json.*'unheard of'"):
        decode(data, "1.json")


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"17", b"\xff\xfe", b"null", b"{}", b'{"format":[]}', b'{"format":{}}', b'{"format":null}', DEEP),
        *(b'{"format":2,"body":' + DEEP + b"}", b'{"format":2,"body":"\\ud800"}'),
    ],
    ids=lambda data: data[:30].decode("latin-1"),
)
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(JournalError, match=r"JOURNAL_DAMAGED.*1\.json"):
        decode(data, "1.json")


@pytest.mark.parametrize("name", ["1.json", "1.snapshot.json"])
def test_a_folder_at_an_entrys_name_is_no_entry(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(JournalError, match=rf"JOURNAL_DAMAGED.*{name}"):
        Journal(LocalJournalStore(str(tmp_path))).load()


def test_equal_values_have_equal_texts() -> None:
    assert (
        canonical({"b": 1, "a": [1, "ä"]})
        == canonical(json.loads('{"a": [1, "\\u00e4"], "b": 1}'))
        == '{"a":[1,"ä"],"b":1}'
    )


def golden(version: str) -> MemoryJournalStore:
    store = MemoryJournalStore()
    for path in (GOLDEN / version).iterdir():
        store.files[path.name] = path.read_bytes()
    return store


def folded(store: MemoryJournalStore) -> Ledger:
    """Entry by entry, without the snapshot."""
    ledger = Ledger()
    for number in range(1, len(store.files)):
        apply(ledger, decode(store.files[f"{number}.json"], f"{number}.json"))
    return ledger


def test_the_golden_journal_is_read() -> None:
    store = golden("v2")
    ledger = folded(store)
    assert Journal(store).load().known_handles() == ledger.known_handles()
    assert {decode(data, name).kind for name, data in store.files.items()} >= KINDS
    assert (ledger.query, ledger.identity_suffix, ledger.accounted) == ("", "-01234567", 2)
    assert [(c.batches, c.settled) for c in ledger.checkpoints.values()] == [([0, 1], True), ([2], True)]
    assert ledger.voided == [3]


@pytest.mark.parametrize("version", ["v2", "v2-stop"])
def test_what_this_version_writes_is_format_2_to_the_byte(version: str) -> None:
    store = golden(version)
    for name, data in store.files.items():
        assert encode(decode(data, name)) == data, name
    assert Journal(store).load() == folded(store)
    assert KINDS | NEWEST | RESTORE == EntryKind.ALL, "a new kind of entry needs a golden file"


def test_a_stop_and_a_restart_are_read_as_they_were_written() -> None:
    store = golden("v2-stop")
    assert {decode(data, name).kind for name, data in store.files.items()} >= NEWEST
    ledger = folded(store)
    assert ledger.newest_run is not None
    assert (ledger.newest_run.ended, ledger.stop, ledger.stop_asked, ledger.stopping) == ("stopped", 1, False, False)
    assert [(each.by, each.number, each.condition) for each in ledger.restarts] == [("supervise", 1, "WRITE_FAILED")]


def test_a_restored_journal_is_read_as_it_was_written() -> None:
    store = golden("v2-restored")
    assert {decode(data, name).kind for name, data in store.files.items()} >= RESTORE
    assert all(encode(decode(data, name)) == data for name, data in store.files.items())
    ledger = Ledger()
    for number in (1, 2, 41):
        apply(ledger, decode(store.files[f"{number}.json"], f"{number}.json"))
    assert Journal(store).load() == ledger
    assert ledger.restored is not None
    assert (ledger.position, ledger.restored.checkpoint, ledger.restored.claim, ledger.accounted) == (41, 5, True, 2)


def test_a_format_of_the_future_is_refused_by_name() -> None:
    value = json.loads(encode(Entry(1, EntryKind.FENCED, "n", 0, {})))
    with pytest.raises(JournalError, match=r"FORMAT_UNKNOWN.*1\.json .*has journal format 3.*supports only format 2"):
        decode(json.dumps({**value, "format": 3}).encode(), "1.json")
