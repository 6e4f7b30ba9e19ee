"""One of two tables behind ``2pc-multi`` goes back, is gone, or is another one: neither is written into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from connector.multi.sink import MultiSink
from tests.test_delta_conformance import TestDeltaSink as OfOneTable
from transactional.testing import StoreMatrix


class TestStoreMatrixOfOneOfTwoTables(StoreMatrix):
    """The table of the route ``two`` is damaged; that of ``one`` is not."""

    sink_type = MultiSink
    one = OfOneTable()

    @pytest.fixture
    def sink_options(self, tmp_path: Path) -> Mapping[str, str]:
        tables = {
            f"{name}.{key}": value for name in ("one", "two") for key, value in self.route(tmp_path, name).items()
        }
        return {"sinks": "one,two", **tables}

    @staticmethod
    def route(folder: Path, name: str) -> Mapping[str, str]:
        return {"format": "2pc-delta", "path": str(folder / name)}

    def schema(self) -> pa.Schema:
        return self.one.schema()

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return self.one.batch(numbers)

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        """What is in the damaged table; the other one never has more rows than were committed."""
        whole = sorted(self.one.visible({"path": options["one.path"]}))
        found = sorted(self.one.visible({"path": options["two.path"]}))
        assert whole in ([0, 1, 2], [0, 1, 2, 3])
        assert len(found) < len(whole) == 3 or found == whole, (found, whole)
        return found

    def takeCopy(self, options: Mapping[str, str]) -> Path:
        return self.one.takeCopy({"path": options["two.path"]})

    def putBack(self, options: Mapping[str, str], copy: Path) -> None:
        self.one.putBack({"path": options["two.path"]}, copy)

    def remove(self, options: Mapping[str, str]) -> None:
        self.one.remove({"path": options["two.path"]})

    def replace(self, options: Mapping[str, str]) -> None:
        self.one.replace({"path": options["two.path"]})

    def emptyLog(self, options: Mapping[str, str]) -> bool:
        return self.one.emptyLog({"path": options["two.path"]})
