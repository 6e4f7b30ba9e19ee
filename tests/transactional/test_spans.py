"""Hashes of spans of bytes: those of the definition, which is written down here once more, a byte at a time."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from transactional import spans
from transactional.spans import GOLDEN, hash_spans

MASK = 2**64 - 1
EDGES = [0, 1, 7, 8, 9, 63, 64, 65, 80, 81, 127, 128, 129, 503, 504, 505, 511, 512, 513, 1023, 1024, 1025, 5000]
"""Lengths at which a word, a group of widths or the short spans end."""


def mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def defined(span: bytes) -> int:
    if len(span) > 512:
        return xxhash.xxh3_64_intdigest(span)
    words = [int.from_bytes(span[at : at + 8], "little") for at in range(0, len(span), 8)]
    keys = [mixed((position + 1) * GOLDEN & MASK) for position in range(len(words))]
    found = sum(mixed(word ^ key) - mixed(key) for word, key in zip(words, keys, strict=True))
    return mixed((found + (len(span) + 1) * GOLDEN) & MASK)


def hashed(values: Sequence[bytes], before: bytes = b"", after: bytes = b"") -> list[int]:
    lengths = np.array([len(value) for value in values], np.int64)
    starts = np.cumsum(lengths) - lengths + len(before)
    found: list[int] = hash_spans(before + b"".join(values) + after, starts, lengths).tolist()
    return found


@given(st.lists(st.binary(max_size=200) | st.binary(min_size=480, max_size=1100), max_size=30), st.data())
def test_each_span_has_the_hash_of_the_definition(values: list[bytes], data: st.DataObject) -> None:
    before, after = data.draw(st.binary(max_size=9)), data.draw(st.binary(max_size=600))
    assert hashed(values, before, after) == [defined(value) for value in values]


@pytest.mark.parametrize("length", EDGES)
def test_a_span_of_any_length_at_the_end_of_its_bytes(length: int) -> None:
    value = random.Random(length).randbytes(length)
    assert hashed([value]) == hashed([value], after=b"x" * 2000) == [defined(value)]
    assert hashed([value] * 3) == [defined(value)] * 3


def test_many_more_than_are_mixed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    values = [chance.randbytes(chance.choice(EDGES)) for _ in range(300)]
    whole = hashed(values)
    assert whole == [defined(value) for value in values]
    monkeypatch.setattr(spans, "_RUN", 7)
    monkeypatch.setattr(spans, "_BLOCK", 64)
    spans._tables.cache_clear()
    assert hashed(values) == whole
    spans._tables.cache_clear()


@given(st.binary(max_size=40) | st.binary(min_size=500, max_size=1100), st.data())
def test_whatever_changes_in_a_span_changes_its_hash(value: bytes, data: st.DataObject) -> None:
    others = {value + b"\0", b"\0" + value, value + value, value[:-1], value[::-1]}
    if value:
        at, bit = data.draw(st.integers(0, len(value) - 1)), data.draw(st.integers(0, 7))
        others.add(value[:at] + bytes([value[at] ^ (1 << bit)]) + value[at + 1 :])
        others.add(value[:-1] + bytes([value[-1] ^ 1]))
    words = [value[start : start + 8] for start in range(0, len(value) - 7, 8)]
    if len(words) > 1:
        first, second = sorted(data.draw(st.sets(st.integers(0, len(words) - 1), min_size=2, max_size=2)))
        words[first], words[second] = words[second], words[first]
        others.add(b"".join(words) + value[8 * len(words) :])
    different = sorted({*others, value})
    assert len(set(hashed(different))) == len(different)


def test_similar_spans_do_not_meet_and_each_bit_of_a_hash_is_as_often_one_as_zero() -> None:
    """Numbers as text, words of few bits, zeros of any length: what a weak sum would bring together."""
    values = [b"%d" % number for number in range(50_000)] + [b"%08d" % number for number in range(50_000, 100_000)]
    values += [bytes(length) for length in range(1, 2000)]
    values += [(1 << one | 1 << two).to_bytes(24, "little") + b"!" for one in range(192) for two in range(one + 1, 192)]
    found = hashed(values)
    assert len(set(found)) == len(set(values)) == len(values)
    ones = [sum(hash_ >> bit & 1 for hash_ in found) / len(found) for bit in range(64)]
    assert all(0.49 < share < 0.51 for share in ones)


def test_a_long_span_beside_short_ones_takes_little_memory() -> None:
    value = random.Random(0).randbytes(10_000_000)
    data = b"a" + value + b"b"
    starts, lengths = np.array([0, 1, len(value) + 1]), np.array([1, len(value), 1])
    tracemalloc.start()
    try:
        found = hash_spans(data, starts, lengths).tolist()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 0.01 * len(data)
    assert found == [defined(b"a"), defined(value), defined(b"b")]
