"""A rewind that another process has resumed has no effect any more, wherever it stood still."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.transactional.state_machine import Execution, World
from tests.transactional.test_outdated_view import stopped_view
from tests.transactional.test_rewind import five_checkpoints
from transactional import faults
from transactional.errors import FencedError


@pytest.mark.parametrize("point", ["rewind.aborted", "rewind.settled", "rewind.restored", "rewind.deleted"])
def test_a_rewind_that_was_taken_over_neither_restores_tables_nor_deletes_logs(
    monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    world = World(max_batches=50, retained=10)
    known = five_checkpoints(world)
    first, _ = world.rewinder()
    frozen = [True]

    def reach(at: str) -> None:
        if at == point and frozen:
            frozen.clear()
            world.resume()  # on another machine, with --query-stopped: `barrier recover`
            execution = world.start()
            assert world.run(execution, 3, 3)
            world.kill()
            wanted.update(world.visible)
            logs.update(world.files.offsets)

    wanted: Counter[int] = Counter()
    logs: dict[int, object] = {}
    monkeypatch.setattr(faults, "reach", reach)
    preview = first.preview(known[2])
    first.begin(preview, {"restoreTables": True})
    with pytest.raises(FencedError):
        first.finish()
    assert +world.visible == +wanted, "rows that the query committed after the rewind are gone"
    assert world.files.offsets == logs, "files of the query that runs are gone"


def test_no_run_is_claimed_during_a_rewind() -> None:
    world = World(max_batches=50, retained=10)
    known = five_checkpoints(world)
    run = world.truth.newest_run
    assert run is not None
    rewinder, _ = world.rewinder()
    rewinder.begin(rewinder.preview(known[2]), {})
    view, journal = stopped_view(world), world._journal()
    coordinator = world._coordinator(Execution("ending", view.batch, ""), journal, view)
    journal.load()
    with pytest.raises(FencedError, match="REWIND_NOT_DONE"):
        coordinator._claimant.claim(run.token)
    assert world._journal().load().newest_run == run
