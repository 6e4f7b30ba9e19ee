"""A route of ``2pc-multi`` is still the same store when another route is added, or moved: its target must be there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.connector.multi.test_store_matrix import TestStoreMatrixOfOneOfTwoTables as OfTwoTables
from tests.test_delta_conformance import TestDeltaSink as OfOneTable
from transactional.errors import StoreError
from transactional.testing.store_matrix import _Query

ONE = OfOneTable()


def started(folder: Path, *names: str) -> _Query:
    """Two micro-batches are committed; then a new driver is about to plan the next."""
    options = {f"{name}.{key}": value for name in names for key, value in OfTwoTables.route(folder, name).items()}
    query = _Query(OfTwoTables(), {"sinks": ",".join(names), **options}, versions=False)  # type: ignore[arg-type]
    query.run(0, [0])
    query.run(1, [1])
    query.restart()
    return query


def added(folder: Path, name: str) -> Mapping[str, str]:
    return {
        "sinks": f"one,two,{name}",
        **{f"{name}.{key}": value for key, value in OfTwoTables.route(folder, name).items()},
    }


@pytest.mark.parametrize("moved", [False, True], ids=["added", "moved"])
def test_a_table_that_is_gone_is_not_made_anew_because_another_route_has_changed(tmp_path: Path, moved: bool) -> None:
    query = started(tmp_path, "one", "two")
    shutil.rmtree(tmp_path / "two")
    query.options |= {"one.path": str(tmp_path / "uno")} if moved else added(tmp_path, "three")
    with pytest.raises(StoreError, match=r"STORE_GONE.*two"):
        query.run(2, [2])
    assert not (tmp_path / "two").exists()


def test_a_route_may_be_added_or_moved(tmp_path: Path) -> None:
    query = started(tmp_path, "one", "two")
    query.options |= {"one.path": str(tmp_path / "uno")}
    query.run(2, [2])
    assert sorted(ONE.visible({"path": str(tmp_path / "uno")})) == [2]
    assert sorted(ONE.visible({"path": str(tmp_path / "two")})) == [0, 1, 2]
