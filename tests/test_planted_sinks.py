"""The kit for sinks finds every bug of `tests.planted_sinks`, in the sink of docs/write-a-sink.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests.planted_sinks import BUGS
from tests.test_write_a_sink import SINK, suite
from transactional.errors import TransactionLostError


@pytest.mark.parametrize("bug", BUGS)
def test_the_kit_finds_a_planted_bug(bug: str, tmp_path: Path) -> None:
    """The test that finds it is the same that the correct sink passes, in tests/test_write_a_sink.py."""
    module = "planted_" + re.sub(r"\W+", "_", bug)
    found = suite(BUGS[bug].planted(SINK), module)
    found.seconds = 0.2
    test = getattr(found(), BUGS[bug].found_by)
    cell = {"damage": "gone", "moment": BUGS[bug].moment} if "damage" in inspect.signature(test).parameters else {}
    with pytest.raises((AssertionError, TransactionLostError)):
        test({"path": str(tmp_path / "events.db")}, **cell)
