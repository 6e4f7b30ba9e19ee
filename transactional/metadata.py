"""Versioned serialisation of journal entries and snapshots: whole or absent, checked, refused when newer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transactional.errors import JournalError

__all__ = ["FORMAT", "Entry", "EntryKind", "canonical", "decode", "encode"]

DAMAGED = (
    "It was changed, or the disk damaged it (a crash leaves whole files or none): restore it from a backup. What it says, a "
    "decision perhaps, can't be known without it; then start the query on a new checkpoint location, from offsets that you "
    "have compared with its output."
)

FORMAT = 1


class EntryKind:
    """The kinds of fact that bind. A kind that this version does not know is refused by name."""

    RUN = "run"
    MARK = "mark"
    PREPARED = "prepared"
    DECIDED = "decided"
    SETTLED = "settled"
    VERDICT = "verdict"
    REPAIR = "repair"
    VOID = "void"
    ABORTED = "aborted"
    FENCED = "fenced"
    RESOLVE = "resolve"
    ADOPT = "adopt"
    SNAPSHOT = "snapshot"

    ALL = frozenset(
        {RUN, MARK, PREPARED, DECIDED, SETTLED, VERDICT, REPAIR, VOID, ABORTED, FENCED, RESOLVE, ADOPT, SNAPSHOT}
    )


@dataclass(frozen=True)
class Entry:
    """One fact of the journal.

    Parameters
    ----------
    number : int
        Its place, from 1; taken by exclusive create, never given twice.
    kind : str
        One of `EntryKind`.
    nonce : str
        Tells our entry from another's at the same number when a create's answer was lost.
    time : int
        Milliseconds since the epoch; for people.
    body : Mapping[str, Any]
        JSON.
    """

    number: int
    kind: str
    nonce: str
    time: int
    body: Mapping[str, Any] = field(default_factory=dict)


def canonical(value: Any) -> str:
    """JSON text with sorted keys and no spaces: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def encode(entry: Entry) -> bytes:
    """The entry's bytes, complete with format and checksum."""
    value = {
        "body": json.loads(canonical(entry.body)),  # as it will be read: keys that are no strings sort differently
        "format": FORMAT,
        "kind": entry.kind,
        "nonce": entry.nonce,
        "number": entry.number,
        "time": entry.time,
    }
    return canonical({**value, "checksum": _checksum(value)}).encode() + b"\n"


def decode(data: bytes, source: str) -> Entry:
    """Inverse of `encode`.

    Raises
    ------
    JournalError
        Torn or changed (checksum), or of a newer format or an unknown kind; names `source`.
    """
    try:
        value = json.loads(data)
        version = value["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(
            "JOURNAL_ENTRY_TORN", f"{source} is not a whole journal entry: {error}. {DAMAGED}", file=source
        ) from error
    if version != FORMAT:
        raise JournalError(
            "JOURNAL_FORMAT_UNKNOWN",
            f"{source} has journal format {version}; this version reads format {FORMAT}: use the version that wrote it, "
            "or a newer one",
            file=source,
            format=version,
        )
    checksum = value.pop("checksum", None)
    if checksum != _checksum(value):
        raise JournalError("JOURNAL_ENTRY_CHANGED", f"the checksum of {source} does not match. {DAMAGED}", file=source)
    if value["kind"] not in EntryKind.ALL:
        raise JournalError(
            "JOURNAL_KIND_UNKNOWN",
            f"{source} holds an entry of kind {value['kind']!r}, which this version does not know: use a newer version",
            file=source,
            kind=value["kind"],
        )
    return Entry(value["number"], value["kind"], value["nonce"], value["time"], value["body"])


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]
