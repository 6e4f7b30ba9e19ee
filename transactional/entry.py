"""Journal entries and snapshots as bytes, with a format number and a checksum.

Damaged entries and other formats are rejected. ``tests/golden`` has files of this format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from transactional.errors import JournalError

FORMAT: Final = 2

UNFIT: Final = (KeyError, TypeError, ValueError, AttributeError)
"""The errors that parsing raises if the JSON has an unexpected shape, because this version did not write it."""


class EntryKind:
    """The kinds of journal entries. If this release does not know the kind of an entry, the journal is rejected."""

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
    DECLINED = "declined"
    RESTORED = "restored"
    REQUEST = "request"
    STOPPED = "stopped"
    RESTARTED = "restarted"
    REWIND_BEGUN = "rewind begun"
    REWIND_DONE = "rewind done"
    MOVED = "moved"
    RESTORING = "restoring"
    OPENED = "opened"
    SNAPSHOT = "snapshot"

    ALL = frozenset(
        {RUN, MARK, PREPARED, DECIDED, SETTLED, VERDICT, REPAIR, VOID, ABORTED, FENCED, RESOLVE, ADOPT, SNAPSHOT}
        | {DECLINED, RESTORED, REQUEST, STOPPED, RESTARTED, REWIND_BEGUN, REWIND_DONE, MOVED, RESTORING, OPENED}
    )


@dataclass(frozen=True)
class Entry:
    """One entry of the journal."""

    # The entry's number, from 1. A process takes a number by creating the file of this number exclusively, so no number is used
    # twice.
    number: int
    kind: str  # One of `EntryKind`.
    # A random string. If the answer to a create was lost, the nonce in the file shows whether the entry is ours.
    nonce: str
    time: int  # When the entry was made, in milliseconds since the epoch. For people only.
    body: Mapping[str, Any] = field(default_factory=dict)  # The body, as JSON.


def canonical(value: Any) -> str:
    """Return a value as JSON text with sorted keys and no spaces, so that equal values give the same string."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def checksum(value: Any) -> str:
    """Return the checksum of a JSON value. Store it with the value in a file, to detect damage later."""
    return _checksum(canonical(value).encode())


def encode(entry: Entry) -> bytes:
    """Return the entry as bytes, with format number and checksum."""
    body = canonical(entry.body)
    if entry.kind == EntryKind.SNAPSHOT:  # sort the keys as strings, as a reader will see them
        body = canonical(json.loads(body))
    rest = {"format": FORMAT, "kind": entry.kind, "nonce": entry.nonce, "number": entry.number, "time": entry.time}
    head, tail = f'{{"body":{body},', canonical(rest)[1:]
    return f'{head}"checksum":"{_checksum((head + tail).encode())}",{tail}\n'.encode()


def decode(data: bytes, source: str) -> Entry:
    """Build an entry from the bytes that `encode` returned. `source` names the file in error messages.

    Raises
    ------
    JournalError
        ``JOURNAL_DAMAGED``: the bytes are not an intact entry. ``FORMAT_UNKNOWN``: a different version wrote the entry.
    """
    try:
        value = json.loads(data)
        version = value["format"]
        if not isinstance(version, int):
            raise TypeError("the format is not a number")
        known = value.pop("checksum", None)
        # The checksum is that of the bytes: with hundreds of tasks an entry has megabytes, and is slow to serialize again.
        intact = known == _checksum(_without_checksum(data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise torn(source, error) from error
    if version != FORMAT:
        found, readable = f"journal format {version}", f"format {FORMAT}"
        raise JournalError("FORMAT_UNKNOWN", what=source, found=found, known=readable)
    if not intact:
        raise JournalError("JOURNAL_DAMAGED", reason=f"the checksum of {source} does not match", file=source)
    try:
        entry = Entry(value["number"], value["kind"], value["nonce"], value["time"], value["body"])
        if entry.kind not in EntryKind.ALL:
            found, kinds = f"an entry of kind {entry.kind!r}", ", ".join(sorted(EntryKind.ALL))
            raise JournalError("FORMAT_UNKNOWN", what=source, found=found, known=kinds)
        return entry
    except UNFIT as error:
        raise torn(source, error) from error


def torn(source: str, why: Exception) -> JournalError:
    """Return the error for a file that has the name of an entry, but is not a complete entry."""
    return JournalError("JOURNAL_DAMAGED", reason=f"{source} is not a complete journal entry: {why}", file=source)


_CHECKSUM_KEY: Final = b'"checksum":"'
_CHECKSUM_LENGTH: Final = 32


def _checksum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_CHECKSUM_LENGTH]


def _without_checksum(data: bytes) -> bytes:
    """Return an entry's bytes without the checksum.

    If the entry's body also has a key ``checksum``, the last one in the bytes is the entry's.
    """
    at = data.rfind(_CHECKSUM_KEY)
    return data[:at] + data[at + len(_CHECKSUM_KEY) + _CHECKSUM_LENGTH + 2 :].rstrip(b"\n")
