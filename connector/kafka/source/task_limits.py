"""The limits on the tasks of a micro-batch. Each end offset records the limits, so that a replay has the same tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from transactional.errors import LocationError

_NAMES: Final = {"least": "minPartitions", "longest": "maxRecordsPerPartition", "most": "maxPartitions"}
"""The name of each field in the offset log, which is also the name of its option."""


LONG: Final = 100_000
"""The number of offsets above which reading takes much longer than starting the task.

By default, ranges are not packed into longer tasks.
"""


@dataclass(frozen=True)
class TaskLimits:
    """The limits that divide a micro-batch's ranges among tasks."""

    least: int | None = None  # ``minPartitions``: the approximate minimum number of tasks.
    longest: int | None = None  # ``maxRecordsPerPartition``: the maximum number of offsets per task.
    # ``maxPartitions``: the maximum number of tasks, if the other limits allow it. If it is less than the number of ranges, a
    # task reads several ranges. None: each task reads one range.
    most: int | None = None

    def with_slots(self, slots: int | None, offsets: int) -> TaskLimits:
        """Return these limits with a default for `most`, if it is not set.

        The default is `slots`, or more if tasks would otherwise read more than `LONG` offsets on average.

        Parameters
        ----------
        slots : int or None
            How many tasks can run at the same time; None if that is not known.
        offsets : int
            The number of offsets to read.
        """
        if self.most is not None or slots is None:
            return self
        return replace(self, most=max(slots, -(-offsets // LONG)))

    @property
    def splits(self) -> bool:
        """True if several tasks may read one partition."""
        return self.least is not None or self.longest is not None

    def to_json(self) -> dict[str, int]:
        """Return the limits that are set, by the names of their options."""
        values = {name: getattr(self, field) for field, name in sorted(_NAMES.items(), key=lambda pair: pair[1])}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TaskLimits:
        """Parse the result of `to_json`."""
        unknown = sorted(set(value) - set(_NAMES.values()))
        if unknown:
            raise LocationError(
                "FORMAT_UNKNOWN",
                what="The barrier-kafka offset in the checkpoint location",
                found=f"the unknown task limits {', '.join(unknown)}",
                known=", ".join(sorted(_NAMES.values())),
            )
        return cls(**{field: int(value[name]) for field, name in _NAMES.items() if name in value})
