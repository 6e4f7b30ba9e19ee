"""The classes of entries, against the golden journals of former versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from transactional.entries import KINDS, Decided, Prepared, fact_of
from transactional.entry import EntryKind

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "journal").glob("v2*/*.json"))
NO_FIELD = {"moved": {"begun"}}
"""Keys that former versions wrote, and that nothing reads."""


def test_every_kind_but_the_snapshot_has_a_class() -> None:
    assert set(KINDS) == EntryKind.ALL - {EntryKind.SNAPSHOT}


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_what_is_read_is_written_as_it_was(file: Path) -> None:
    entry = json.loads(file.read_text())
    kind, body = entry["kind"], entry["body"]
    if kind == EntryKind.SNAPSHOT:
        return
    fact = fact_of(kind, body)
    assert type(fact) is KINDS[kind]
    written: dict[str, Any] = fact.to_json()
    assert {key: written[key] for key in body if key not in NO_FIELD.get(kind, ())} == {
        key: body[key] for key in body if key not in NO_FIELD.get(kind, ())
    }
    assert fact_of(kind, json.loads(json.dumps(written))) == fact


@pytest.mark.parametrize(
    "lacks", ["run", "batch", "sources", "began", "writers", "parts", "barrier", "reason", "hooks"]
)
def test_an_entry_without_a_field_of_its_kind_is_refused(lacks: str) -> None:
    body = Prepared(run=1, batch=2, sources="s", began=3).to_json()
    assert fact_of(EntryKind.PREPARED, body) == Prepared(run=1, batch=2, sources="s", began=3)
    del body[lacks]
    with pytest.raises(KeyError, match=lacks):
        fact_of(EntryKind.PREPARED, body)


def test_a_decision_has_all_of_the_micro_batch_that_closes_it() -> None:
    prepared = Prepared(run=1, batch=2, sources="s", began=3, writers=4, parts=[{"partition": 0}], log="l")
    decided = prepared.decided(covers=[1], hooks={"m:H": "x"}, marked=True)
    assert isinstance(decided, Decided)
    same = {**prepared.to_json(), "covers": [1], "hooks": {"m:H": "x"}, "marked": True}
    assert decided.to_json() == same
