"""Bodies of journal entries, as tests write them by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from transactional import entries
from transactional.barrier import SourceLine
from transactional.entries import ALWAYS, KINDS, Fact, RestoreBegun
from transactional.entry import canonical
from transactional.ledger import Ledger

__all__ = ["completed", "fact_of", "lines", "recorded", "restore_begun", "restored", "run_body", "settled"]


def completed(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A body of which a test gives what matters to it: other fields that every entry of the kind has are empty."""
    found: dict[str, Any] = {}
    for each in fields(KINDS[kind]):
        if each.default is not MISSING and each.metadata == ALWAYS:
            found[each.name] = each.default
        elif each.default is MISSING and each.name != "request":
            found[each.metadata.get("key", each.name)] = {} if each.default_factory is not MISSING else None
    return {**found, **body}


def fact_of(kind: str, body: Mapping[str, Any]) -> Fact:
    """The fact of a body of which a test gives what matters to it."""
    return entries.fact_of(kind, completed(kind, body))


def lines(*texts: str) -> list[SourceLine]:
    """The source lines of one file of ``offsets/``."""
    return [SourceLine.parse(text) for text in texts]


def run_body(**replaced: Any) -> dict[str, Any]:
    """Of a `run` entry."""
    return {
        "driver": "d",
        "settings": "s",
        "sink": "x",
        "location": "here",
        "prefix": "p",
        "identity": {},
        "queryId": "q",
        "lifetime": None,
        "process": {},
        "setup": {"class": "x:Y"},
        "retained": 100,
        **replaced,
    }


def recorded(batch: int, parts: Sequence[Any], covers: Sequence[int] | None = None, **replaced: Any) -> dict[str, Any]:
    """Of a `prepared` entry; with `covers`, of a `decided` one."""
    body = {
        "run": 1,
        "batch": batch,
        "sources": "s",
        "writers": len(parts),
        "origin": "",
        "parts": list(parts),
        "barrier": None,
        "began": 0,
        "reason": "",
        "hooks": {},
        **replaced,
    }
    return body if covers is None else {**body, "covers": list(covers)}


def settled(checkpoint: int, run: int = 1, **output: Any) -> dict[str, Any]:
    """Of a `settled` entry."""
    return {"checkpoint": checkpoint, "run": run, "output": output}


def restored(saved: Ledger, checkpoint: int, claim: bool, location: str, position: int) -> Ledger:
    """Return the ledger of a restored location; `saved` was cut to the checkpoint."""
    return Ledger.opened(restore_begun(saved, checkpoint, claim, location), position)


def restore_begun(saved: Ledger, checkpoint: int, claim: bool, location: str) -> RestoreBegun:
    """Return the first entry of a restored location."""
    return RestoreBegun(
        savepoint="s",
        origin=saved.location,
        checkpoint=checkpoint,
        claim=claim,
        location=location,
        query="q",
        partitions=None,
        forced=False,
        ledger=json.loads(canonical(saved.to_json())),
    )
