"""Random values of every Arrow type, the extremes and the odd ones among them. The same seed makes the same values.

Values are plain Python objects, so that they can be compared without Arrow: days, ticks of times and timestamps are whole
numbers (Python's own types end with the year 9999), a text that is no UTF-8 has lone surrogates.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

__all__ = [
    "BIG",
    "EXACT",
    "Draw",
    "array",
    "batches",
    "decimals",
    "drawn",
    "floats",
    "is_utf8",
    "octets",
    "one_of",
    "plain",
    "rarely",
    "same",
    "texts",
    "value_of",
    "whole",
]

Draw = Callable[[random.Random], Any]

EXACT: Final = Context(prec=80)

BIG: Final = 1 << 20
"""Bytes of a large text."""

ALPHABET: Final = "aAbN09 .,;:'\"\\{}[]()%_-+\t\n\r\x1b\x7f\x80äßİ€\ud7ff\ue000\ufeff\ufffd\uffff\U0001f600\U0010ffff"
LENGTHS: Final = (127, 128, 254, 255, 256, 257, 4096, 4097, 65_534, 65_535, 65_536)
TEXTS: Final = (
    "",
    " ",
    "a ",
    " a",
    "NULL",
    "null",
    "\\N",
    "\\.",
    "\\x41",
    "''",
    '""',
    "{}",
    "0",
    "true",
    "1970-01-01",
    "\r\n",
)


def one_of(*values: Any) -> Draw:
    """Draw one of a few values."""
    return lambda rng: rng.choice(values)


def rarely(draw: Draw, other: Draw, odds: int = 100) -> Draw:
    """Draw from `other` with odds of 1 in `odds`."""
    return lambda rng: (other if not rng.randrange(odds) else draw)(rng)


def whole(bits: int) -> Draw:
    """Draw whole numbers of all magnitudes."""
    most = 1 << bits - 1
    edges = (0, 1, -1, most - 1, -most, most - 2, 1 - most)

    def draw(rng: random.Random) -> int:
        if not rng.randrange(20):
            return rng.choice(edges)
        number = rng.getrandbits(rng.randrange(bits))
        return number if rng.getrandbits(1) else ~number

    return draw


def decimals(precision: int, scale: int) -> Draw:
    """Draw decimals of all magnitudes."""
    most = 10**precision - 1
    edges = (0, 1, -1, most, -most, min(10**scale, most))

    def draw(rng: random.Random) -> Decimal:
        number = rng.randrange(10 ** rng.randint(0, precision)) * rng.choice((1, -1))
        return Decimal(rng.choice(edges) if not rng.randrange(20) else number).scaleb(-scale, EXACT)

    return draw


def floats(bits: int) -> Draw:
    """Draw floating-point numbers of all bit patterns; NaN, infinities, both zeros and the smallest now and then."""
    form, size = ("f", 4) if bits == 32 else ("d", 8)
    least, most = (2.0**-149, 2.0**128 - 2.0**104) if bits == 32 else (5e-324, 1.7976931348623157e308)
    rare = (math.nan, math.inf, -math.inf, 0.0, -0.0, least, -least, most, -most)

    def draw(rng: random.Random) -> float:
        if not rng.randrange(20):
            return rng.choice(rare)
        if not rng.randrange(5):
            return float(struct.unpack(form, struct.pack(form, rng.randrange(-9999, 9999) / rng.choice((1, 10))))[0])
        return float(struct.unpack(form, rng.randbytes(size))[0])

    return draw


def texts(rng: random.Random) -> str:
    """Draw texts: short ones, and now and then a known trap, one with a NUL, one that is no UTF-8, or a megabyte."""
    odd = rng.randrange(10_000)
    if odd < 2:
        return rng.choice("aä'\\") * (BIG // 2)
    if odd < 50:
        return rng.choice("aä") * rng.choice(LENGTHS)
    if odd < 300:
        return rng.choice(TEXTS)
    text = "".join(rng.choices(ALPHABET, k=int(rng.expovariate(0.3))))
    return text + rng.choice(("\0", "\0a", "\ud800", "\udfff", "\ud83d\ude00")) if odd < 330 else text


def octets(rng: random.Random) -> bytes:
    """Draw bytes."""
    odd = rng.randrange(10_000)
    if odd < 2:
        return rng.randbytes(BIG)
    if odd < 50:
        return rng.randbytes(rng.choice(LENGTHS))
    return (
        rng.choice((b"", b"\0", b"\\x41", b"'\xff", b'"\\')) if odd < 300 else rng.randbytes(int(rng.expovariate(0.3)))
    )


@functools.cache
def drawn(kind: pa.DataType) -> Draw:
    """Return what draws values of a type, all of them possible in Arrow."""
    if pa.types.is_boolean(kind):
        return one_of(True, False)
    if pa.types.is_decimal(kind):
        return decimals(kind.precision, kind.scale)
    if pa.types.is_floating(kind):
        return floats(kind.bit_width)
    if _is_text(kind):
        return texts
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return octets
    if pa.types.is_list(kind):
        each = rarely(drawn(kind.value_type), one_of(None), 8)
        return lambda rng: [each(rng) for _ in range(rng.randrange(4))]
    if pa.types.is_map(kind):
        key, item = drawn(kind.key_type), rarely(drawn(kind.item_type), one_of(None), 8)
        return lambda rng: list({repr(k): (k, item(rng)) for k in (key(rng) for _ in range(rng.randrange(4)))}.values())
    if pa.types.is_struct(kind):
        fields = [(field.name, rarely(drawn(field.type), one_of(None), 8)) for field in kind]
        return lambda rng: {name: draw(rng) for name, draw in fields}
    if pa.types.is_time(kind):
        ticks = 86_400 * (10**6 if kind.unit == "us" else 10**9)
        return lambda rng: rng.choice((0, 1, ticks - 1)) if not rng.randrange(20) else rng.randrange(ticks)
    return whole(kind.bit_width)


def value_of(draw: Draw, fits: Callable[[Any], bool], odds: int = 300) -> Draw:
    """Draw values that fit, and one that does not in `odds` draws, if there is one: each of these costs a refusal."""

    def again(rng: random.Random) -> Any:
        wanted = bool(rng.randrange(odds))
        for _ in range(odds):
            value = draw(rng)
            if fits(value) == wanted:
                break
        return value

    return again


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return plain values as an array."""
    if _is_text(kind):
        data = [None if each is None else each.encode("utf-8", "surrogatepass") for each in values]
        return pa.array(data, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()).view(kind)
    if pa.types.is_struct(kind):
        columns = [array([None if each is None else each[field.name] for each in values], field.type) for field in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array([each is None for each in values]))
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        places: list[int] = [0]
        flat: list[Any] = []
        for each in values:
            flat += each or []
            places.append(len(flat))
        ends = pa.array(
            [None if each is None else place for each, place in zip([*values, 0], places, strict=True)], pa.int32()
        )
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(ends, array(flat, kind.value_type), type=kind)
        keys, items = array([k for k, _ in flat], kind.key_type), array([v for _, v in flat], kind.item_type)
        return pa.MapArray.from_arrays(ends, keys, items, type=kind)
    return pa.array(values, kind)


def plain(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return an array's values as they were drawn."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in plain(chunk)]
    kind = column.type
    if _is_text(kind):
        data = column.view(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()).to_pylist()
        return [None if each is None else each.decode("utf-8", "surrogatepass") for each in data]
    if pa.types.is_struct(kind):
        columns = [plain(column.field(at)) for at in range(kind.num_fields)]
        names = [field.name for field in kind]
        rows = [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]
        return _where(column, rows)
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        inside = (
            column.values
            if pa.types.is_list(kind)
            else pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"])
        )
        flat = plain(inside)
        if pa.types.is_map(kind):
            flat = [(each["k"], each["v"]) for each in flat]
        places = column.offsets.to_pylist()
        return _where(column, [flat[a:b] for a, b in itertools.pairwise(places)])
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = column.view(pa.int64())
    if pa.types.is_date32(kind):
        column = column.view(pa.int32())
    return list(column.to_pylist())


def batches(
    rng: random.Random, columns: Sequence[Sequence[Any]], schema: pa.Schema, count: int
) -> Iterator[pa.RecordBatch]:
    """Return plain values as `count` batches, each a slice of a longer one."""
    rows = len(columns[0])
    cuts = sorted([0, rows, *(rng.randrange(rows + 1) for _ in range(count - 1))])
    longer = [array([*each[-1:], *each, *each[:1]], field.type) for each, field in zip(columns, schema, strict=True)]
    whole = pa.RecordBatch.from_arrays(longer, schema=schema)
    for begin, end in itertools.pairwise(cuts):
        yield whole.slice(begin + 1, end - begin)


def same(sent: Any, found: Any, signed_zero: bool = True) -> bool:
    """Return whether two plain values are the same: NaN is NaN, and -0.0 is not 0.0, unless the store has one zero."""
    if isinstance(sent, float) and isinstance(found, float) and sent == found == 0 and signed_zero:
        return math.copysign(1, sent) == math.copysign(1, found)
    if isinstance(sent, dict) and isinstance(found, dict):
        return sent.keys() == found.keys() and all(same(sent[key], found[key], signed_zero) for key in sent)
    if isinstance(sent, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(sent) == len(found) and all(
            same(one, other, signed_zero) for one, other in zip(sent, found, strict=True)
        )
    return type(sent) is type(found) and bool(sent == found or (sent != sent and found != found))


def is_utf8(text: str) -> bool:
    """Return whether a text has no lone surrogates."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def _where(column: pa.Array, values: list[Any]) -> list[Any]:
    return [value if known else None for value, known in zip(values, column.is_valid().to_pylist(), strict=True)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
