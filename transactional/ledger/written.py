"""What a batch write has written under its version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transactional.digest import digest_of_all
from transactional.entry import canonical

__all__ = ["Written"]


def _sum(parts: Iterable[Mapping[str, Any]]) -> tuple[int, str]:
    found = list(parts)
    return sum(part["rows"] for part in found), digest_of_all(part["digest"] for part in found)


@dataclass(frozen=True)
class Written:
    """The result of a batch write under its version; kept when its parts are forgotten.

    Parameters
    ----------
    rows : int
    digest : str
        Of all its rows, however they were cut into parts; empty if it is unknown.
    frame : str
        Distinguishes the transactions of this write from those of another that was planned under the same version.
    routes : Mapping[str, tuple[int, str]]
        Of a sink that is several: rows and digest of each route.
    """

    rows: int
    digest: str
    frame: str
    routes: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Any]]) -> Written:
        """Sum up parts as they stand in the journal: `Part.to_json`."""
        ordered = sorted(
            (dict(part) for part in parts), key=lambda part: (int(part["partition"]), part.get("route", ""))
        )
        frame = hashlib.sha256(canonical(ordered).encode()).hexdigest()[:16]
        by_route: dict[str, list[dict[str, Any]]] = {}
        for part in ordered:
            by_route.setdefault(part.get("route", ""), []).append(part)
        sums = {route: _sum(own) for route, own in by_route.items()}
        return cls(*_sum(ordered), frame, {} if [*sums] == [""] else sums)
