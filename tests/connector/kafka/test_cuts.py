"""Cuts: the least and the newest, compared with every combination of marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from connector.kafka.marks.cuts import Lineage, are_related, by_roundness, newest_cut, next_cut, pace


@dataclass(frozen=True)
class Mark:
    """What a cut needs to know of one."""

    lineage: Lineage
    timestamp: int = 0


@st.composite
def channels(draw: st.DrawFn) -> dict[str, list[Mark]]:
    """Up to three channels, with barriers of some of three origins that never go back; the first mark is the current one."""
    found = {}
    for name in draw(st.sampled_from([("a",), ("a", "b"), ("a", "b", "c")])):
        origins = draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=2, unique=True))
        steps = draw(st.lists(st.tuples(*[st.integers(0, 2) for _ in origins]), min_size=1, max_size=4))
        marks, at = [Mark(dict.fromkeys(origins, 0) | {name: 0})], dict.fromkeys(origins, 0)
        for number, step in enumerate(steps, 1):
            at = {origin: at[origin] + more for origin, more in zip(origins, step, strict=True)}
            marks.append(Mark({**at, name: number}, number))
        found[name] = marks
    return found


def agree(marks: Mapping[str, Sequence[Mark]], cut: Mapping[str, int]) -> bool:
    seen: dict[str, int] = {}
    return all(
        seen.setdefault(origin, barrier) == barrier
        for name, passed in cut.items()
        for origin, barrier in marks[name][passed].lineage.items()
    )


def every_cut(marks: Mapping[str, Sequence[Mark]]) -> list[dict[str, int]]:
    choices = product(*(range(len(each)) for each in marks.values()))
    return [cut for chosen in choices if agree(marks, cut := dict(zip(marks, chosen, strict=True)))]


@given(channels(), st.booleans())
def test_the_next_cut_is_the_least_and_the_newest_the_greatest(marks: dict[str, list[Mark]], first: bool) -> None:
    """`first`: the channels have no current mark yet."""
    at = {name: None if first else each[0].lineage for name, each in marks.items()}
    ahead = {name: each[1:] for name, each in marks.items()}
    least = dict.fromkeys(marks, int(first))
    cuts = [cut for cut in every_cut(marks) if any(cut.values()) and all(cut[name] >= least[name] for name in cut)]
    found, newest = next_cut(at, ahead, least), newest_cut(at, ahead)
    if not cuts:
        assert found is None
        assert newest is None
        return
    assert newest == {name: max(cut[name] for cut in cuts) for name in marks}
    assert found in cuts
    assert not [cut for cut in cuts if cut != found and all(cut[name] <= found[name] for name in cut)]


@given(st.sets(st.integers(1, 60), min_size=1), st.data())
def test_two_that_are_behind_differently_meet_at_the_roundest(numbers: set[int], data: st.DataObject) -> None:
    """Whoever jumps within a part of the barriers that holds the roundest of all stops there."""
    best = by_roundness(numbers)[0]
    low, high = data.draw(st.integers(1, best)), data.draw(st.integers(best, 60))
    assert by_roundness({number for number in numbers if low <= number <= high})[0] == best


def test_the_pace_is_that_of_one_origin_or_nobody_s() -> None:
    assert pace({"m": {"q": 3}}, {"m": "q"}) == "q"
    assert pace({"m": {"r": 5, "q": 3}}, {"m": "q"}) == "r", "who is behind it"
    assert pace({"m": {"s/1": 5, "r": 5, "q": 3}}, {"m": "q"}) == "s/1"
    assert pace({"m": {"s/1": 5, "t/1": 5, "q": 3}}, {"m": "q"}) is None, "others may count the other one"
    assert pace({"m": {"r": 5, "p": 5, "q": 3}}, {"m": "q"}) is None
    assert pace({"m": {"r": 5, "q": 3}, "n": {"r": 5, "p": 3}}, {"m": "q", "n": "p"}) == "r"


def test_channels_are_related_by_a_common_origin() -> None:
    assert are_related([{"s": 1, "a": 1}, {"s": 1, "b": 4}])
    assert not are_related([{"a": 1}, {"b": 4}])
    assert not are_related([{"a": 1, "s": 2}])
