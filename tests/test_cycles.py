"""The checker of `integration.cycles` finds what can't have been seen in one order, and nothing else."""

from __future__ import annotations

import pytest

from integration.cycles import Anomaly, Transaction, check_serializable


def transfer(name: str, source: str, target: str) -> Transaction:
    return Transaction(name, appends={source: name, target: name})


def read(name: str, **lists: str) -> Transaction:
    return Transaction(name, reads={key: tuple(values) for key, values in lists.items()})


def test_reads_of_whole_transfers_fit_an_order() -> None:
    writes = [transfer("1", "x", "y"), transfer("2", "y", "z"), transfer("3", "x", "z")]
    check_serializable([*writes, read("r0", x="", y="", z=""), read("r1", x="1", y="1", z="")])
    check_serializable([*writes, read("r2", x="13", y="12", z="23"), read("r1", x="1", y="12", z="2")])


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"x": "1", "y": ""}, "a cycle"),
        ({"x": "", "y": "1"}, "a cycle"),
        ({"x": "13", "y": "1", "z": "23"}, "a cycle"),
        ({"x": "11", "y": "1"}, "x has"),
        ({"x": "17", "y": "1"}, "no transaction has appended"),
    ],
)
def test_a_torn_read_is_found(lists: dict[str, str], said: str) -> None:
    writes = [transfer("1", "x", "y"), transfer("2", "y", "z"), transfer("3", "x", "z")]
    with pytest.raises(Anomaly, match=said):
        check_serializable([*writes, read("torn", **lists), read("all", y="12")])


def test_two_reads_in_different_orders_are_found() -> None:
    writes = [transfer("1", "x", "y"), transfer("2", "x", "y")]
    with pytest.raises(Anomaly, match="another read has"):
        check_serializable([*writes, read("r1", x="12"), read("r2", x="21")])
    with pytest.raises(Anomaly, match="a cycle"):
        check_serializable([*writes, read("r1", x="12", y="21")])
