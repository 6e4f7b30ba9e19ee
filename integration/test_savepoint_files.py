"""What savepoints rest on: once Spark has ``commits/N``, the files that micro-batch N + 1 needs are not written again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from connector.location.log_rewind import check_can_go_back
from connector.location.offset_log import newest
from connector.location.state_files import files_of_snapshot, state_files
from integration.driver_process import wait_until
from integration.test_spark_rewind import (  # noqa: F401 - pytest finds fixtures by their names here
    STORES,
    Query,
    later_snapshots,
    query,
    session,
    settings,
    wait_stores_closed,
)

QUICK = ("default",)
LONG = tuple(store for store in STORES if store not in QUICK)


class Stands(NamedTuple):
    """How a file stands."""

    sha256: str
    modified: int
    inode: int


def stands(path: Path) -> Stands | None:
    """None where it is gone."""
    try:
        found = path.stat()
        return Stands(hashlib.sha256(path.read_bytes()).hexdigest(), found.st_mtime_ns, found.st_ino)
    except FileNotFoundError:
        return None


def needed(query: Query, batch: int) -> dict[str, Stands]:  # noqa: F811
    """The files that Spark needs to go on after a committed micro-batch, and how they stand."""
    root = Path(query.location.path)
    check_can_go_back(query.location, batch)
    names = [f"offsets/{batch}", f"commits/{batch}", *([f"offsets/{batch - 1}"] if batch else []), "metadata"]
    for name in list(state_files(query.location, batch)):
        names.append(name)
        if name.endswith(".zip"):
            shared = files_of_snapshot((root / name).read_bytes())
            assert shared is not None, f"{name} lists no files"
            names += [os.path.join(os.path.dirname(name), each) for each in shared]
    found = {name: stands(root / name) for name in names}
    missing = [name for name, each in found.items() if each is None]
    assert not missing, missing
    return {name: each for name, each in found.items() if each is not None}


def changed(query: Query, seen: dict[int, dict[str, Stands]]) -> list[str]:  # noqa: F811
    """Files that stand otherwise than they were seen; those that are gone are not among them."""
    root = Path(query.location.path)
    return [
        name
        for names in seen.values()
        for name, before in names.items()
        if (now := stands(root / name)) is not None and now != before
    ]


def run_to(query: Query, until: int, seen: dict[int, dict[str, Stands]]) -> None:  # noqa: F811
    """Micro-batches of ten rows; each is looked at in the moment in which it is committed."""
    with query.running() as drain:
        for end in range(10 * (newest(query.location, "commits") + 2), until + 1, 10):
            query.control(until=end, step=10)
            drain()
            batch = newest(query.location, "commits")
            seen[batch] = needed(query, batch)


@pytest.mark.slow
@pytest.mark.parametrize("store", [*QUICK, *(pytest.param(store, marks=pytest.mark.matrix) for store in LONG)])
def test_the_files_of_a_committed_micro_batch_do_not_change(store: str, query: Query) -> None:  # noqa: F811
    """While the query goes on, maintenance makes snapshots, and a micro-batch whose commit was lost runs again."""
    seen: dict[int, dict[str, Stands]] = {}
    query.control(until=0, step=10)
    with settings(query.session, STORES[store]):
        run_to(query, 50, seen)
        wait_until(lambda: later_snapshots(query, 2), "a snapshot that maintenance made late")
        assert changed(query, seen) == []
        wait_stores_closed(query.session)
        replayed = newest(query.location, "commits")
        for name in (f"commits/{replayed}", f"commits/.{replayed}.crc"):
            Path(query.location.path, name).unlink(missing_ok=name.endswith("crc"))
        query.control(until=50, step=10)
        with query.running() as drain:
            drain()
            assert newest(query.location, "commits") == replayed
            seen[replayed] = needed(query, replayed)
        run_to(query, 70, seen)
        wait_stores_closed(query.session)
        # Of the version that was made twice maintenance may have written a snapshot each time; changes are written once.
        snapshots = {
            f"state/0/{partition}/{replayed + 1}.{kind}" for partition in (0, 1) for kind in ("zip", "snapshot")
        }
        assert set(changed(query, seen)) <= snapshots
        query.check_counts()
