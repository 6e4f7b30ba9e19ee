"""Which rows go where: the masks against a model in plain Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.multi.routes import can_route, routed
from transactional.errors import RowRefusedError

NAMES = ("orders", "audit", "dead")

one = st.none() | st.sampled_from(NAMES)
several = st.none() | st.lists(st.sampled_from(NAMES), min_size=1, max_size=4)


def model(routes: list[str | list[str] | None], name: str) -> list[int]:
    """The rows of a sink, by number."""
    return [
        number
        for number, route in enumerate(routes)
        if route is None or name == route or (isinstance(route, list) and name in route)
    ]


@pytest.mark.parametrize("large", [False, True])
@settings(deadline=None)
@given(routes=st.lists(one, max_size=12) | st.lists(several, max_size=12), cut=st.integers(0, 3))
def test_each_sink_gets_its_rows_in_their_order(large: bool, routes: list[str | list[str] | None], cut: int) -> None:
    text = pa.large_string() if large else pa.string()
    lists = any(isinstance(route, list) for route in routes)
    kind = (pa.large_list(text) if large else pa.list_(text)) if lists else text
    assert can_route(kind)
    batch = pa.record_batch({"route": pa.array(routes, kind), "number": range(len(routes))}).slice(cut)
    found = {name: rows["number"].to_pylist() for name, rows in routed(batch, batch.column(0), NAMES)}
    left = routes[cut:]
    assert found == {name: [row + cut for row in rows] for name in NAMES if (rows := model(left, name))}


@pytest.mark.parametrize(
    ("routes", "shown"),
    [
        (["orders", "order"], r"order\b"),
        (["", None], 'the route "",'),
        ([["orders", "elsewhere"]], "elsewhere"),
        ([["orders"], []], "an empty array"),
        ([["orders", None]], "a null in an array"),
        (["Orders"], "Orders"),
    ],
    ids=str,
)
def test_a_row_that_would_be_nowhere_is_refused(routes: list[object], shown: str) -> None:
    batch = pa.record_batch({"route": pa.array(routes)})
    with pytest.raises(RowRefusedError, match=f"ROUTE_UNKNOWN.*{shown}.*orders, audit, dead"):
        list(routed(batch, batch.column(0), NAMES))


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary(), pa.list_(pa.int32()), pa.struct([("a", pa.string())])])
def test_other_columns_can_not_route(kind: pa.DataType) -> None:
    assert not can_route(kind)


def test_what_a_null_hides_is_no_route() -> None:
    lists = pa.array([["audit"], ["dead"], ["orders"]])
    hidden = pa.Array.from_buffers(lists.type, 3, [pa.py_buffer(b"\x05"), lists.buffers()[1]], children=[lists.values])
    assert hidden.to_pylist() == [["audit"], None, ["orders"]]
    batch = pa.record_batch({"route": hidden, "number": [0, 1, 2]})
    found = {name: rows["number"].to_pylist() for name, rows in routed(batch, hidden, NAMES)}
    assert found == {"orders": [1, 2], "audit": [0, 1], "dead": [1]}
