from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.kafka.offsets import Partition, SourceOffset
from transactional.barrier import BarrierKind, CheckpointBarrier, barrier_of_line
from transactional.errors import LocationError

partitions = st.builds(Partition, st.text("abc.-_", min_size=1, max_size=4), st.integers(0, 300))
positions = st.dictionaries(partitions, st.integers(0, 2**62), max_size=20)
barriers = st.builds(CheckpointBarrier, st.integers(1, 10**6), st.sampled_from(BarrierKind), st.integers(0, 2**45))
offsets = st.builds(SourceOffset, positions, positions, st.none() | barriers, st.booleans(), st.integers(0, 10**6))


@given(offsets, st.randoms(use_true_random=False))
def test_equal_offsets_have_equal_texts_whatever_order_they_were_made_in(
    offset: SourceOffset, shuffler: random.Random
) -> None:
    items = list(offset.topics.items())
    shuffler.shuffle(items)
    other = SourceOffset(dict(items), offset.start, offset.barrier, offset.barrier_rows, offset.interval)
    assert json.dumps(other.to_json()) == json.dumps(offset.to_json())


@given(offsets)
def test_an_offset_survives_its_text_to_the_letter(offset: SourceOffset) -> None:
    text = json.dumps(offset.to_json())
    again = SourceOffset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text


@given(offsets)
def test_the_protocol_reads_the_barrier_of_our_line(offset: SourceOffset) -> None:
    assert barrier_of_line(json.dumps(offset.to_json())) == offset.barrier


def test_the_text_of_version_1_stays_what_it_is() -> None:
    offset = SourceOffset(
        topics={Partition("t", 10): 7, Partition("t", 9): 5},
        start={Partition("t", 10): 0, Partition("t", 9): 5},
        barrier=CheckpointBarrier(3, BarrierKind.CHECKPOINT, 1_700_000_000_000),
        ids={"u": "idOfU", "t": "idOfT"},
    )
    assert json.dumps(offset.to_json()) == (
        '{"barrier": {"kind": "checkpoint", "number": 3, "timestamp": 1700000000000}, "barrierRows": false, '
        '"ids": {"t": "idOfT", "u": "idOfU"}, "interval": 0, "source": "barrier-kafka", "start": {"t": {"9": 5, "10": 0}}, '
        '"topics": {"t": {"9": 5, "10": 7}}, "version": 1}'
    )


def test_a_newer_version_is_refused_by_name() -> None:
    value = {**SourceOffset({}, {}).to_json(), "version": 2}
    with pytest.raises(LocationError, match=r"UNKNOWN_OFFSET_VERSION.*version 2"):
        SourceOffset.from_json(value)


def test_another_sources_offset_is_refused() -> None:
    with pytest.raises(LocationError, match="NOT_OUR_OFFSET"):
        SourceOffset.from_json({"t": {"0": 1}})
