"""The file sink of the tests keeps the contract that its own tests of crashes rest on."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from integration.file_sink import FileSink, committed_rows, pending_files
from transactional.testing import SinkConformance, StoreMatrix


class TestFileSink(StoreMatrix, SinkConformance):
    sink_type = FileSink

    @pytest.fixture
    def sink_options(self, tmp_path: Path) -> Mapping[str, str]:
        return {"path": str(tmp_path / "table")}

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        return [int(row["value"]) for row in committed_rows(Path(options["path"]))]

    def unfinished(self, options: Mapping[str, str]) -> int:
        return len(pending_files(Path(options["path"])))

    def takeCopy(self, options: Mapping[str, str]) -> Path:
        folder = Path(options["path"])
        return Path(shutil.copytree(folder, folder.with_name(uuid.uuid4().hex)))

    def putBack(self, options: Mapping[str, str], copy: Path) -> None:
        self.remove(options)
        shutil.copytree(copy, options["path"])

    def remove(self, options: Mapping[str, str]) -> None:
        shutil.rmtree(options["path"], ignore_errors=True)

    def replace(self, options: Mapping[str, str]) -> None:
        self.remove(options)
        Path(options["path"], "committed").mkdir(parents=True)
