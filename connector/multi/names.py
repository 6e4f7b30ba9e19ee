"""Names that ``2pc-multi`` gives its sinks."""

from __future__ import annotations

from typing import Final

__all__ = ["NAME", "under_route"]

NAME: Final = "2pc-multi"


def under_route(name: str, route: str) -> str:
    """Return the query id or prefix for one sink. It ends with the sink's name, so that two sinks never use the same one."""
    return f"{name}-{route}" if route else name
