"""The ledger's record of the rows that a batch write has written as one version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transactional.digest import digest_of_all
from transactional.entry import canonical


def _sum(parts: Iterable[Mapping[str, Any]]) -> tuple[int, str]:
    found = list(parts)
    return sum(part["rows"] for part in found), digest_of_all(part["digest"] for part in found)


@dataclass(frozen=True)
class Written:
    """The rows that a batch write has written as one version. This record is kept longer than the parts."""

    rows: int
    digest: str  # Digest of all rows, no matter how they were divided into parts; empty if unknown.
    # Digest of the parts, including their handles. So two writes of the same version have different frames, even if they have
    # the same rows.
    frame: str
    # Number of rows and digest of each route, for a sink that combines several sinks.
    routes: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Any]]) -> Written:
        """Return the record of a batch write that wrote these parts. Each part has the form that `Part.to_json` returns."""
        ordered = sorted(
            (dict(part) for part in parts), key=lambda part: (int(part["partition"]), part.get("route", ""))
        )
        frame = hashlib.sha256(canonical(ordered).encode()).hexdigest()[:16]
        by_route: dict[str, list[dict[str, Any]]] = {}
        for part in ordered:
            by_route.setdefault(part.get("route", ""), []).append(part)
        sums = {route: _sum(own) for route, own in by_route.items()}
        return cls(*_sum(ordered), frame, {} if [*sums] == [""] else sums)
