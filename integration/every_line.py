"""The conformance kit's deaths within a commit, at every line of a sink instead of a few: for the suites of the sinks here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

__all__ = ["EveryLine"]


class EveryLine:
    """A test beside those of `SinkConformance`."""

    @pytest.mark.matrix
    @pytest.mark.timeout(3600)  # a new process for each line of the sink that a commit executes
    def test_a_commit_can_die_at_every_line(
        self, sink_options: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        suite: Any = self
        monkeypatch.setattr(type(self), "deaths", 1000)
        suite.test_a_commit_that_dies_anywhere_is_whole_or_nothing_and_can_be_repeated(sink_options)
