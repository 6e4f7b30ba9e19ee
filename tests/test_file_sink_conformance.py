"""The file sink of the tests keeps the contract that its own tests of crashes rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from integration.file_sink import FileSink, committed_rows, pending_files
from transactional.testing import SinkConformance


class TestFileSink(SinkConformance):
    sink_type = FileSink

    @pytest.fixture
    def sink_options(self, tmp_path: Path) -> Mapping[str, str]:
        return {"path": str(tmp_path / "table")}

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        return [int(row["value"]) for row in committed_rows(Path(options["path"]))]

    def unfinished(self, options: Mapping[str, str]) -> int:
        return len(pending_files(Path(options["path"])))
