"""How many tasks read a micro-batch. Each offset records it, so that a replay has the same tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["TaskLimits"]

_NAMES: Final = {"least": "minPartitions", "longest": "maxRecordsPerPartition", "most": "maxPartitions"}
"""Field → its name in the offset log, which is the name of the option."""


@dataclass(frozen=True)
class TaskLimits:
    """The limits that divide a micro-batch's ranges among tasks.

    Parameters
    ----------
    least : int or None
        ``minPartitions``: the approximate minimum number of tasks.
    longest : int or None
        ``maxRecordsPerPartition``: the maximum number of offsets per task.
    most : int or None
        ``maxPartitions``: the maximum number of tasks, if the other limits allow it. If it is less than the number of ranges,
        a task reads several ranges. None: each task reads one range.
    """

    least: int | None = None
    longest: int | None = None
    most: int | None = None

    @property
    def splits(self) -> bool:
        """Whether several tasks may read one partition."""
        return self.least is not None or self.longest is not None

    def to_json(self) -> dict[str, int]:
        """Return the limits that are set, by the names of their options."""
        values = {name: getattr(self, field) for field, name in sorted(_NAMES.items(), key=lambda pair: pair[1])}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TaskLimits:
        """Parse the result of `to_json`."""
        return cls(**{field: int(value[name]) for field, name in _NAMES.items() if name in value})
