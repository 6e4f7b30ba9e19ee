"""What a query makes of partitions that are not what it left."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import Loss, Reason, SetAside, SourceOffset
from connector.kafka.source.planning.available import Available
from connector.kafka.source.planning.data_loss import check_joint, lost_error
from connector.kafka.source.planning.micro_batch import Timing, next_offset
from connector.kafka.source.planning.ranges import OffsetRange, narrow
from connector.kafka.source.planning.standing import resume, stand
from transactional.errors import LocationError
from transactional.schedule import Schedule

A, B, C = Partition("a", 0), Partition("a", 1), Partition("b", 0)
BEFORE = SourceOffset(topics={A: 10, B: 20, C: 30}, start={A: 0, B: 0, C: 0}, ids={"a": "one", "b": "two"})


def test_where_nothing_changed_nothing_is_lost() -> None:
    standing = stand(BEFORE, [A, B, C], {"a": "one", "b": "two"})
    assert (standing.known, standing.lost, standing.gone) == (BEFORE.topics, {}, {})
    assert resume(standing, {A: 10}, {A: 11, B: 20, C: 30}) == (BEFORE.topics, {})


def test_expired_and_truncated_partitions_go_on_where_rows_are() -> None:
    standing = stand(BEFORE, [A, B, C], {"a": "one", "b": "two"})
    positions, lost = resume(standing, {A: 15, C: 0}, {A: 16, B: 7, C: 31})
    assert positions == {A: 15, B: 7, C: 30}
    assert lost == {A: Loss(10, 15, Reason.EXPIRED), B: Loss(20, 7, Reason.TRUNCATED)}
    assert (lost[A].rows, lost[B].rows) == (5, None)
    assert resume(standing, {}, {A: 9, B: 20, C: 30})[1] == {A: Loss(10, 9, Reason.TRUNCATED)}


def test_a_topic_made_anew_is_read_from_its_first_row_and_its_other_partitions_end() -> None:
    standing = stand(BEFORE, [A, C], {"a": "other", "b": "two"})
    assert (standing.known, standing.recreated, standing.new) == ({C: 30}, (A,), ())
    positions, lost = resume(standing, {A: 3}, {A: 9, C: 30})
    assert positions == {A: 3, C: 30}
    assert lost == {A: Loss(10, 3, Reason.RECREATED), B: Loss(20, None, Reason.RECREATED)}
    assert standing.gone == {}, "it can't come back"


def test_a_topic_that_comes_back_is_read_on_and_another_of_its_name_is_new() -> None:
    away = stand(BEFORE, [C], {"b": "two"})
    assert away.lost == {A: Loss(10, None, Reason.GONE), B: Loss(20, None, Reason.GONE)}
    assert away.gone == {"a": SetAside("one", {0: 10, 1: 20})}
    after = replace(BEFORE, topics={C: 30}, ids={"b": "two"}, gone=away.gone)
    still = stand(after, [C], {"b": "two"})
    assert (still.lost, still.gone) == ({}, away.gone)
    back = stand(after, [A, B, C], {"a": "one", "b": "two"})
    assert (back.known, back.new, back.lost, back.gone) == (BEFORE.topics, (), {}, {})
    other = stand(after, [A, B, C], {"a": "other", "b": "two"})
    assert (other.known, other.new, other.lost, other.gone) == ({C: 30}, (A, B), {}, {})


def test_partitions_of_one_topic_may_go_one_after_the_other() -> None:
    ids = {"a": "one", "b": "two"}
    first = stand(BEFORE, [A, C], ids)
    after = replace(BEFORE, topics={A: 12, C: 30}, gone=first.gone)
    second = stand(after, [C], ids)
    assert second.gone == {"a": SetAside("one", {0: 12, 1: 20})}
    assert stand(replace(after, topics={C: 30}, gone=second.gone), [B, C], ids).gone == {"a": SetAside("one", {0: 12})}


def test_a_replays_tasks_stay_as_many_as_they_were() -> None:
    ranges = [OffsetRange(A, 0, 5), OffsetRange(A, 5, 10), OffsetRange(B, 0, 5), OffsetRange(C, 0, 5)]
    assert narrow(ranges, {B}, {A: 7, C: 0}, {A: 9, C: 0}) == [
        OffsetRange(A, 5, 5),
        OffsetRange(A, 7, 9),
        OffsetRange(B, 0, 0),
        OffsetRange(C, 0, 0),
    ]


def test_losses_stand_in_the_offset_and_only_where_there_are_some() -> None:
    lost = {A: Loss(10, 15, Reason.EXPIRED), C: Loss(30, None, Reason.GONE)}
    offset = replace(BEFORE, lost=lost, gone={"b": SetAside("two", {0: 30})})
    value = json.loads(json.dumps(offset.to_json()))
    assert value["lost"]["a"] == {"0": {"from": 10, "to": 15, "why": "expired"}}
    assert SourceOffset.from_json(value) == offset
    assert not {"lost", "gone"} & set(BEFORE.to_json())


def test_a_loss_makes_a_micro_batch_without_rows_once() -> None:
    moved = replace(BEFORE, topics={A: 15, B: 20, C: 30})
    lost = {A: Loss(10, 15, Reason.EXPIRED)}
    end = next_offset(Available(moved, moved.topics, lost=lost), None, Timing(Schedule(), 1000))
    assert end is not None
    assert (end.topics, end.start, end.lost) == (moved.topics, moved.topics, lost)
    assert next_offset(Available(end, end.topics), None, Timing(Schedule(), 2000)) is None


def test_the_rows_of_a_new_partition_are_not_lost_before_it_is_read() -> None:
    new = Partition("c", 0)
    lost = {new: Loss(0, 3, Reason.EXPIRED)}
    timing, first = Timing(Schedule(), 1000), {new: 3}
    assert next_offset(Available(BEFORE, BEFORE.topics, first, lost), None, timing) is None
    end = next_offset(Available(BEFORE, {**BEFORE.topics, new: 5}, first, lost), None, timing)
    assert end is not None
    assert (end.start[new], end.lost) == (3, lost)


def test_a_gap_between_micro_batches_is_an_edited_log_unless_it_is_a_loss() -> None:
    after = SourceOffset(topics={A: 20, B: 20}, start={A: 15, B: 20})
    lost = {A: Loss(10, 15, Reason.EXPIRED), C: Loss(30, None, Reason.GONE)}
    check_joint(BEFORE.topics, replace(after, lost=lost))
    for wrong in (
        {},
        {A: lost[A]},
        {**lost, A: Loss(11, 15, Reason.EXPIRED)},
        {**lost, A: Loss(10, 16, Reason.EXPIRED)},
    ):
        with pytest.raises(LocationError, match="OFFSETS_DISAGREE"):
            check_joint(BEFORE.topics, replace(after, lost=wrong))


def test_of_several_kinds_an_error_tells_the_one_that_explains_most() -> None:
    lost = {A: Loss(10, 15, Reason.EXPIRED), B: Loss(20, None, Reason.GONE), C: Loss(30, 0, Reason.RECREATED)}
    assert lost_error(lost).parameters["kind"] == "recreated"
    assert lost_error({A: lost[A], B: lost[B]}).parameters["kind"] == "gone"
    error = lost_error({A: lost[A]})
    assert (error.condition, error.parameters["kind"]) == ("DATA_LOST", "expired")
    assert "a-0: offsets [10, 15)" in str(error)
    assert "failOnDataLoss=false" in str(error)
