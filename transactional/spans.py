"""64-bit hashes of many spans of bytes in one call. numpy hashes the short spans, so they need no Python objects.

A span of up to 512 bytes is read as 64-bit words (little-endian; the last word is padded with zero bytes). Each word is
combined with a key for its position, and mixed by the finalizer of SplitMix64 (Steele et al. 2014). Then the sum of the mixed
words and the length are mixed once more::

    hash = mix((sum of mix(word[j] ^ key[j]) - mix(key[j])) + (length + 1) * G)        key[j] = mix((j + 1) * G)

All numbers are modulo 2**64; G is 2**64 / golden ratio. A word of zeros adds nothing to the sum, so any number of zero words
may follow a span. The hash of a longer span is its XXH3-64. For a long span, creating one Python object is faster than
mixing many words in numpy.

If two spans have the same length of up to 512 bytes and differ in one word, they never have the same hash, because each step
is one-to-one. Any other two different spans have the same hash with a probability of about 2**-64: every bit of a mixed word
depends on every bit of the word, so the mixed words are practically independent. The hash is good enough to detect rows that
are computed differently, but can't protect against constructed collisions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

GOLDEN = 0x9E3779B97F4A7C15

_MOST = 64
"""The maximum number of words of a short span."""

_WIDTHS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, _MOST)
"""The widths, in words, into which short spans are grouped. Each span is read with the smallest width that fits. There
are few widths, so that a batch has few groups."""

_BLOCK = 16_384
"""The number of words that are mixed in one call. Two arrays of this size fit into the cache of a CPU core."""

_RUN = 16_384
"""The number of spans that are hashed in one call, so that their arrays also fit into the cache."""


def mix(values: np.ndarray[Any, Any], scratch: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """Mix 64-bit values with the finalizer of SplitMix64, in place, and return them. `scratch` is memory that may be reused."""
    import numpy as np

    scratch = np.empty(min(len(values), _BLOCK), np.uint64) if scratch is None else scratch
    one, two, three, factor, another = _constants()
    for first in range(0, len(values), _BLOCK):
        block = values[first : first + _BLOCK]
        spare = scratch[: len(block)]
        np.bitwise_xor(block, np.right_shift(block, one, spare), block)
        np.multiply(block, factor, block)
        np.bitwise_xor(block, np.right_shift(block, two, spare), block)
        np.multiply(block, another, block)
        np.bitwise_xor(block, np.right_shift(block, three, spare), block)
    return values


def hash_spans(data: Any, starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a 64-bit hash of each span. Besides the result, the function needs memory for a few numbers per span.

    Parameters
    ----------
    data : bytes-like
        The bytes that contain all spans.
    starts, lengths : numpy.ndarray
        The first byte of each span in `data`, and its length in bytes.

    Returns
    -------
    numpy.ndarray
        The hashes, as uint64.
    """
    import numpy as np

    octets, hashes = np.frombuffer(data, np.uint8), np.empty(len(lengths), np.uint64)
    for first in range(0, len(lengths), _RUN):
        run = slice(first, first + _RUN)
        _hash_run(octets, starts[run], lengths[run], hashes[run])
    return hashes


def _hash_run(
    octets: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    hashes: np.ndarray[Any, Any],
) -> None:
    import numpy as np

    (long,) = np.nonzero(lengths > 8 * _MOST)
    if len(long) == 0:
        _hash_short(octets, starts, lengths, hashes)
        return
    import xxhash

    (short,) = np.nonzero(lengths <= 8 * _MOST)
    found = np.empty(len(short), np.uint64)
    _hash_short(octets, starts[short], lengths[short], found)
    hashes[short] = found
    view, begins = octets.data, starts[long]
    ends = (begins + lengths[long]).tolist()
    hashes[long] = [xxhash.xxh3_64_intdigest(view[begin:end]) for begin, end in zip(begins.tolist(), ends, strict=True)]


def _hash_short(
    octets: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    hashes: np.ndarray[Any, Any],
) -> None:
    """Write the hashes of spans of at most `_MOST` words into `hashes`. Spans with the same width are hashed in one call."""
    import numpy as np

    groups = _group_of_length()[lengths]
    if len(groups) and groups.min() == groups.max():
        _sum_words(octets, starts, lengths, int(groups[0]), hashes)
    else:
        order, end = np.argsort(groups, kind="stable"), 0
        for group, size in enumerate(np.bincount(groups).tolist()):
            if size:
                chosen, end = order[end : end + size], end + size
                found = np.empty(size, np.uint64)
                _sum_words(octets, starts[chosen], lengths[chosen], group, found)
                hashes[chosen] = found
    hashes += (lengths + 1).astype(np.uint64) * np.uint64(GOLDEN)
    mix(hashes)


def _sum_words(
    octets: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    group: int,
    sums: np.ndarray[Any, Any],
) -> None:
    """Write the sum of each span's mixed words into `sums`. All spans have the width ``_WIDTHS[group]``."""
    import numpy as np

    width = _WIDTHS[group]
    readable = int(np.searchsorted(starts, len(octets) - 8 * width, side="right"))
    if readable < len(starts):  # the group's width would reach beyond the end of the data
        origin = int(starts[readable])
        end = np.zeros(16 * width, np.uint8)
        end[: len(octets) - origin] = octets[origin:]
        _sum_readable(end, starts[readable:] - origin, lengths[readable:], group, sums[readable:])
    if readable:
        _sum_readable(octets, starts[:readable], lengths[:readable], group, sums[:readable])


def _sum_readable(
    octets: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    group: int,
    sums: np.ndarray[Any, Any],
) -> None:
    """Do the same as `_sum_words`, for spans that can be read at full width without passing the end of `octets`."""
    import numpy as np

    width, whole = _WIDTHS[group], _WIDTHS[group - 1] if group else 0
    keys, surplus, masks = _tables(group)
    windows: np.ndarray[Any, Any] = np.ndarray((len(octets) - 8 * width + 1,), f"V{8 * width}", octets, strides=(1,))
    step = _BLOCK // width
    scratch = np.empty(min(step, len(starts)) * width, np.uint64)
    for first in range(0, len(starts), step):
        block = slice(first, first + step)
        words = windows[starts[block]].view("<u8").astype(np.uint64, copy=False)
        grid, tails = words.reshape(-1, width), lengths[block] - 8 * whole
        shortest = tails.min()
        for column, mask in enumerate(masks):
            if shortest < 8 * (column + 1):
                grid[:, whole + column] &= mask[tails]
        mix(np.bitwise_xor(words, keys[: len(words)], words), scratch)
        if width > 1:
            np.einsum("ij->i", grid, out=sums[block])
        else:
            sums[block] = words
    sums -= surplus


@lru_cache(maxsize=1)
def _constants() -> tuple[np.ndarray[Any, Any], ...]:
    """Return the shifts and the factors of SplitMix64's finalizer, as the numpy arrays that are fastest to use."""
    import numpy as np

    return tuple(np.array(each, np.uint64) for each in (30, 27, 31, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@lru_cache(maxsize=1)
def _group_of_length() -> np.ndarray[Any, Any]:
    """Return an array that gives, for each length from 0 to 512 bytes, the index of the span's group in `_WIDTHS`."""
    import numpy as np

    words = (np.arange(8 * _MOST + 1) + 7) // 8
    return np.searchsorted(_WIDTHS, words).astype(np.uint8)


@lru_cache(maxsize=len(_WIDTHS))
def _tables(group: int) -> tuple[np.ndarray[Any, Any], np.uint64, np.ndarray[Any, Any]]:
    """Return the keys for a block of words, the sum of a span of zeros, and masks for the last words of a group's spans.

    All earlier words are whole in every span of the group. Each mask is indexed by the number of bytes after the whole words.
    """
    import numpy as np

    width, whole = _WIDTHS[group], _WIDTHS[group - 1] if group else 0
    keys = mix(np.arange(1, width + 1, dtype=np.uint64) * np.uint64(GOLDEN))
    zeros = mix(keys.copy()).sum(dtype=np.uint64)
    octets = np.arange(8 * (width - whole))
    masks = np.where(octets < np.arange(len(octets) + 1)[:, None], 0xFF, 0).astype(np.uint8).view("<u8")
    return np.tile(keys, _BLOCK // width), zeros, np.ascontiguousarray(masks.T, np.uint64)
