"""Tests with handles that older versions of a sink made: the current version must understand them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from transactional.sink import Outcome
from transactional.testing.bench import Bench


class GoldenHandles:
    """The part of `SinkConformance` that tests the handles in `golden_handles`."""

    golden_handles: ClassVar[Path | None] = None
    keyed_by_data: ClassVar[Collection[str]] = ()

    def test_handles_of_former_versions_are_understood(self, sink_options: Mapping[str, str]) -> None:
        """`inspect` must return a state for each golden handle, although the handle's transaction no longer exists."""
        suite: Any = self
        bench = Bench(suite, sink_options)
        golden = self._golden()
        kept = bench.prepare([1])
        for handle in golden:
            (state,) = bench.sink().inspect([handle])
            assert state.outcome in (Outcome.LOST, Outcome.UNKNOWN), (
                f"{handle}: transaction gone, but inspect returned {state}"
            )
        bench.commit(kept)
        bench.must_see([1])

    def test_a_handle_has_the_shape_of_the_newest_golden_one(self, sink_options: Mapping[str, str]) -> None:
        """A new handle must have the shape of the newest golden handle. If you change the shape, add a golden handle for it."""
        suite: Any = self
        newest = self._golden()[-1]
        fresh = Bench(suite, sink_options).prepare([1])
        assert self._shape(fresh) == self._shape(newest), f"add the new handle to {self.golden_handles}, as a file"

    def _golden(self) -> list[dict[str, Any]]:
        if self.golden_handles is None:
            pytest.skip("golden_handles is not set")
        files = sorted(self.golden_handles.glob("*.json"))
        assert files, f"{self.golden_handles} has no file with a handle: add the first one, as 1.json"
        return [json.loads(file.read_text()) for file in files]

    def _shape(self, handle: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: [shape(each) for each in value.values()][:1] if key in self.keyed_by_data else shape(value)
            for key, value in handle.items()
        }


def shape(value: Any) -> Any:
    """Return the shape of a JSON value: type names replace the values, and a list keeps only its first item."""
    if isinstance(value, Mapping):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__
