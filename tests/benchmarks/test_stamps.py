"""The functions that the timeline stamps exist."""

from __future__ import annotations

import importlib
from functools import reduce

import pytest

from integration.benchmarks.stamps import STAMPED
from integration.benchmarks.timeline import KINDS


@pytest.mark.parametrize("module", STAMPED)
def test_stamped_functions_exist(module: str) -> None:
    for name in STAMPED[module]:
        assert callable(reduce(getattr, name.split("."), importlib.import_module(module)))


def test_a_process_is_known_by_a_call_that_is_stamped() -> None:
    assert set(KINDS) <= {name for names in STAMPED.values() for name in names}
