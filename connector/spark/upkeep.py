"""Who keeps a query up, in its program (`supervise`) or from outside (`barrier run`), and what it may take for its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from connector.spark.process import is_alive

__all__ = ["Upkeep"]


@dataclass(frozen=True)
class Upkeep:
    """Who keeps a query up.

    Parameters
    ----------
    given : Mapping[str, str]
        Options of its sink that the journal does not keep (secrets); other sinks' may be among them.
    drivers : Collection[str]
        In which it was kept up: no query of ours runs there now.
    single_driver : bool
        Nothing else starts the query: a former driver that can't be seen from here (of another container) is gone.
    """

    given: Mapping[str, str]
    drivers: Collection[str]
    single_driver: bool = False

    def is_alive(self, process: Mapping[str, Any]) -> bool | None:
        """Whether a driver's process runs; None where nobody can tell."""
        alive = is_alive(process)
        return False if alive is None and self.single_driver else alive
