"""The stores of ``2pc-multi``, as the crash matrix sees them: one output, whose rows are where they were routed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from integration.driver_process import Output

__all__ = ["MultiOutput"]


class MultiOutput:
    """See `integration.driver_process.Output`."""

    def __init__(self, outputs: Mapping[str, Output], route: Callable[[int], str | None]) -> None:
        self.outputs = outputs  # By the names of the sinks.
        self._route = route  # Where a row goes, by its value; None for all.

    def rows(self) -> Counter[int]:
        """See `Output`: a row is there when it is in each store that it is for, and twice when it is twice in any."""
        found = {name: output.rows() for name, output in self.outputs.items()}
        for name, rows in found.items():
            strays = [value for value in rows if self._route(value) not in (name, None)]
            assert not strays, f"rows of other sinks in {name}: {strays}"
        counts: Counter[int] = Counter()
        for value in set().union(*found.values()):
            each = [rows[value] for name, rows in found.items() if self._route(value) in (name, None)]
            counts[value] = max(each) if max(each) > 1 else min(each)
        return +counts

    def open_transactions(self) -> list[str]:
        """See `Output`."""
        return [f"{name}/{each}" for name, output in self.outputs.items() for each in output.open_transactions()]

    def lose(self, names: list[str]) -> None:
        """See `Output`."""
        for name, output in self.outputs.items():
            own = [each.partition("/")[2] for each in names if each.startswith(f"{name}/")]
            if own:
                output.lose(own)

    def is_quiet(self) -> bool:
        """See `Output`."""
        return all(output.is_quiet() for output in self.outputs.values())
