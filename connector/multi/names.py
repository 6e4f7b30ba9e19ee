"""What the several sinks of a query are called."""

from __future__ import annotations

from typing import Final

__all__ = ["NAME", "under_route"]

NAME: Final = "2pc-multi"


def under_route(name: str, route: str) -> str:
    """Return a query's id or prefix as one of its sinks knows it: two of one format never meet under one name."""
    return f"{name}-{route}" if route else name
