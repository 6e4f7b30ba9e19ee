"""Abilities that only some sinks have: a method without its class would never be called, and is refused."""

from __future__ import annotations

from typing import Any

import pytest

from transactional import capabilities
from transactional.testing import RecordingSink


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("guardRun", "GuardsRuns"),
        ("lifetime", "Expires"),
        ("checkHistory", "KeepsEvidence"),
        ("publishMark", "MarksCheckpoints"),
        ("restoreOutput", "Restorable"),
        ("route", "Routes"),
    ],
)
def test_a_method_that_would_never_be_called_is_refused_when_its_sink_is_defined(name: str, missing: str) -> None:
    def method(self: RecordingSink, *given: Any) -> None:
        raise AssertionError

    with pytest.raises(
        TypeError, match=rf"Mine has {name}, but is not a subclass of {missing}, so the framework would never use it"
    ):
        type("Mine", (RecordingSink,), {name: method})
    type("Mine", (getattr(capabilities, missing), RecordingSink), {name: method})
