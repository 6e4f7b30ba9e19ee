"""The name of the format ``2pc-multi``, and the query ids and prefixes of its sinks."""

from __future__ import annotations

from typing import Final

NAME: Final = "2pc-multi"


def under_route(name: str, route: str) -> str:
    """Return one sink's query id or prefix: `name` with the sink's name at the end, so that no two sinks share it."""
    return f"{name}-{route}" if route else name
