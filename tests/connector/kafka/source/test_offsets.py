from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import SourceOffset
from tests.transactional.bodies import lines
from transactional.barrier import BarrierKind, CheckpointBarrier, SourceLine, sources_digest
from transactional.errors import LocationError

partitions = st.builds(Partition, st.text("abc.-_", min_size=1, max_size=4), st.integers(0, 300))
positions = st.dictionaries(partitions, st.integers(0, 2**62), max_size=8)
barriers = st.builds(CheckpointBarrier, st.integers(1, 10**6), st.sampled_from(BarrierKind), st.integers(0, 2**45))
ids = st.dictionaries(st.text("abc.-_", min_size=1, max_size=4), st.text("xyz", min_size=1), max_size=3)
ends = st.builds(
    SourceOffset,
    topics=positions,
    start=positions,
    barrier=st.none() | barriers,
    barrier_rows=st.booleans(),
    interval=st.integers(0, 10**6),
    ids=ids,
    barrier_empty=st.integers(0, 10),
    min_pause=st.integers(0, 10**6),
)
offsets = st.builds(replace, ends, planned=st.lists(ends, max_size=2).map(tuple))
unhurried = settings(deadline=None)


@unhurried
@given(offsets, st.randoms(use_true_random=False))
def test_equal_offsets_have_equal_texts_whatever_order_they_were_made_in(
    offset: SourceOffset, shuffler: random.Random
) -> None:
    items = list(offset.topics.items())
    shuffler.shuffle(items)
    other = replace(offset, topics=dict(items))
    assert json.dumps(other.to_json()) == json.dumps(offset.to_json())


@unhurried
@given(offsets)
def test_an_offset_survives_its_text_to_the_letter(offset: SourceOffset) -> None:
    text = json.dumps(offset.to_json())
    again = SourceOffset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text


@unhurried
@given(offsets)
def test_the_protocol_reads_the_barrier_of_our_line(offset: SourceOffset) -> None:
    assert SourceLine.parse(json.dumps(offset.to_json())).barrier == offset.barrier


OFFSET = SourceOffset(
    topics={Partition("t", 10): 7, Partition("t", 9): 5},
    start={Partition("t", 10): 0, Partition("t", 9): 5},
    barrier=CheckpointBarrier(3, BarrierKind.CHECKPOINT, 1_700_000_000_000),
    ids={"u": "idOfU", "t": "idOfT"},
)


def test_the_text_of_version_1_stays_what_it_is() -> None:
    assert json.dumps(OFFSET.to_json()) == (
        '{"barrier": {"kind": "checkpoint", "number": 3, "timestamp": 1700000000000}, "barrierEmpty": 0, '
        '"barrierRows": false, "ids": {"t": "idOfT", "u": "idOfU"}, "interval": 0, "minPause": 0, '
        '"source": "barrier-kafka", "start": {"t": {"9": 5, "10": 0}}, "topics": {"t": {"9": 5, "10": 7}}, "version": 1}'
    )
    planned = replace(SourceOffset({}, {}), planned=(SourceOffset({Partition("t", 0): 1}, {}),))
    assert json.dumps(planned.to_json()) == (
        '{"barrier": null, "barrierEmpty": 0, "barrierRows": false, "ids": {}, "interval": 0, "minPause": 0, '
        '"planned": [{"barrier": null, "barrierEmpty": 0, "barrierRows": false, "ids": {}, "interval": 0, '
        '"minPause": 0, "source": "barrier-kafka", "start": {}, "topics": {"t": {"0": 1}}, "version": 1}], '
        '"source": "barrier-kafka", "start": {}, "topics": {}, "version": 1}'
    )


def test_what_an_older_release_wrote_is_read_and_lacks_nothing_that_matters() -> None:
    text = (
        '{"barrier": {"kind": "checkpoint", "number": 3, "timestamp": 1700000000000}, "barrierRows": false, '
        '"ids": {"t": "idOfT", "u": "idOfU"}, "interval": 0, "source": "barrier-kafka", "start": {"t": {"9": 5, "10": 0}}, '
        '"topics": {"t": {"9": 5, "10": 7}}, "version": 1}'
    )
    assert SourceOffset.from_json(json.loads(text)) == OFFSET


@unhurried
@given(st.lists(ends, min_size=1, max_size=4))
def test_planned_ends_come_in_their_order_and_each_carries_the_others(planned: list[SourceOffset]) -> None:
    at = replace(OFFSET, planned=tuple(planned))
    assert at.same_end(OFFSET)
    texts = [json.dumps(at.to_json())]
    for nth, end in enumerate(planned):
        at = SourceOffset.from_json(json.loads(texts[-1])).next_planned()
        assert at.same_end(end)
        assert list(at.planned) == planned[nth + 1 :]
        texts.append(json.dumps(at.to_json()))
    # To Spark, each is another offset than the one before, also where a no-data micro-batch repeated an end.
    assert all(one != following for one, following in pairwise(texts))
    assert texts[-1] == json.dumps(planned[-1].to_json())


@unhurried
@given(offsets)
def test_a_planned_micro_batch_has_the_digest_of_the_one_that_it_repeats(offset: SourceOffset) -> None:
    plain = json.dumps(replace(offset, planned=()).to_json())
    assert sources_digest(lines(json.dumps(offset.to_json()))) == sources_digest(lines(plain))


def test_planned_ends_within_planned_ends_are_refused() -> None:
    value: dict[str, Any] = OFFSET.to_json()
    nested = {**value, "planned": [{**value, "planned": [value]}]}
    with pytest.raises(LocationError, match="OFFSETS_DISAGREE"):
        SourceOffset.from_json(nested)


def test_a_newer_version_is_refused_by_name() -> None:
    value = {**SourceOffset({}, {}).to_json(), "version": 2}
    with pytest.raises(LocationError, match=r"FORMAT_UNKNOWN.*version 2"):
        SourceOffset.from_json(value)


def test_another_sources_offset_is_refused() -> None:
    with pytest.raises(LocationError, match="NOT_OUR_OFFSET"):
        SourceOffset.from_json({"t": {"0": 1}})
