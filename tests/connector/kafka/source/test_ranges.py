from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.kafka.client.topics import Partition
from connector.kafka.source.planning.micro_batch import TriggerLimits, share_out
from connector.kafka.source.planning.ranges import OffsetRange, ranges_between
from transactional.errors import StoreError

A, B = Partition("a", 0), Partition("a", 1)
starts = st.dictionaries(st.builds(Partition, st.sampled_from("ab"), st.integers(0, 12)), st.integers(0, 100))


@given(st.data(), starts)
def test_ranges_cover_exactly_what_lies_between(data: st.DataObject, start: dict[Partition, int]) -> None:
    end = {partition: offset + data.draw(st.integers(0, 50)) for partition, offset in start.items()}
    ranges = ranges_between(start, end)
    assert ranges == sorted(ranges)
    assert all(len(wanted) > 0 for wanted in ranges)
    assert sum(map(len, ranges)) == sum(end.values()) - sum(start.values())
    assert {wanted.partition for wanted in ranges} == {p for p in start if end[p] > start[p]}


def test_an_end_before_its_start_is_an_error_with_both() -> None:
    with pytest.raises(StoreError, match=r"DATA_LOST.*a-1: read up to 9, ends at 3"):
        ranges_between({A: 1, B: 9}, {A: 2, B: 3})


def test_a_partition_with_one_end_only_is_an_error() -> None:
    with pytest.raises(StoreError, match=r"OFFSETS_DISAGREE.*only one of the two has a-1"):
        ranges_between({A: 1, B: 9}, {A: 2})


def test_a_range_shows_what_it_reads() -> None:
    assert str(OffsetRange(A, 3, 5)) == "a-0 [3, 5)"


backlogs = st.dictionaries(st.integers(), st.integers(0, 10**12), max_size=40)


@given(backlogs, st.integers(1, 10**12), st.integers(0, 1000))
def test_the_limit_is_used_up_and_never_passed(backlog: dict[int, int], limit: int, turn: int) -> None:
    shares = share_out(backlog, limit, turn)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert shares.keys() == backlog.keys()
    assert all(0 <= shares[key] <= backlog[key] for key in backlog)


@given(backlogs, st.integers(1, 10**6))
def test_no_partition_with_a_backlog_is_starved_while_the_limit_lasts(backlog: dict[int, int], limit: int) -> None:
    waiting = [key for key, rows in backlog.items() if rows]
    shares = share_out(backlog, max(limit, len(waiting)))
    assert all(shares[key] >= 1 for key in waiting)


@given(st.integers(1, 30), st.integers(1, 30))
def test_partitions_take_turns_under_a_limit_below_their_number(partitions: int, limit: int) -> None:
    backlog = dict.fromkeys(range(partitions), 10**6)
    got = [share_out(backlog, limit, turn) for turn in range(partitions)]
    assert all(any(shares[key] for shares in got) for key in backlog)


def test_what_is_left_goes_by_backlog() -> None:
    assert share_out({"big": 9001, "small": 11, "none": 0}, 903) == {"big": 901, "small": 2, "none": 0}


LIMITS = TriggerLimits(least=10, delay_ms=1000)


@pytest.mark.parametrize(
    ("limits", "waiting", "since", "now", "held"),
    [
        (TriggerLimits(), 1, 0, 1, False),
        (LIMITS, 1, None, 1, False),
        (LIMITS, 9, 0, 999, True),
        (LIMITS, 10, 0, 1, False),
        (LIMITS, 9, 0, 1000, False),
        (LIMITS, 0, 0, 500, True),
        (LIMITS, 9, 500, 400, False),
    ],
)
def test_rows_wait_until_they_are_enough_or_long_enough(
    limits: TriggerLimits, waiting: int, since: int | None, now: int, held: bool
) -> None:
    assert limits.hold_back(waiting, since, now) is held
