"""Java's Avro, of Spark's jars: it reads what `encode_avro` makes, and `decode_avro` resolves schemas as it does."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import subprocess
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any

import fastavro
import pyarrow as pa
import pyspark
import pytest

from connector.schema_registry.avro_encoder import AvroEncoder
from connector.schema_registry.avro_values import AvroDecoder, column_type
from connector.schema_registry.registry import Definition, Registry
from integration.jars import java_executable
from integration.random_values import (
    EXACT,
    Draw,
    floats,
    octets,
    one_of,
    plain,
    rarely,
    same,
    texts,
    whole,
)
from tests.connector.schema_registry.test_avro_property import KINDS, SHAPES, column, fits

SOURCE = Path(__file__).with_name("avro_in_java.java")
BATCH = 500
QUICK, MANY = 200, 100_000


class JavaAvro:
    """A JVM that reads and writes records. A context manager."""

    def __enter__(self) -> JavaAvro:
        jars = f"{Path(pyspark.__file__).parent}/jars/*"
        command = [java_executable(), "-cp", jars, "org.codehaus.janino.SimpleCompiler", str(SOURCE), "AvroInJava"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def read(self, written: Any, column: Any, records: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
        """Return each record as text, after "!" why there is none, and as Java writes it with the column's schema."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(struct.pack(">i", len(records)))
        for data in (json.dumps(written).encode(), json.dumps(column).encode(), *records):
            stdin.write(struct.pack(">i", len(data)) + data)
        stdin.flush()

        def answer() -> bytes:
            (size,) = struct.unpack(">i", stdout.read(4))
            return stdout.read(size)

        return ((answer().decode(), answer()) for _ in records)


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAvro]:
    with JavaAvro() as running:
        yield running


def shown(value: Any) -> str:
    """A plain value as `avro_in_java.java` writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        bits = 0x7FF8 << 48 if value != value else struct.unpack(">Q", struct.pack(">d", value))[0]
        return f"f{bits:x}"
    if isinstance(value, Decimal):
        return f"d{value:f}"
    if isinstance(value, (str, bytes)):
        return ("s" if isinstance(value, str) else "b") + (value.encode() if isinstance(value, str) else value).hex()
    if isinstance(value, tuple):
        return f"{value[0]}={shown(value[1])}"
    if isinstance(value, list):
        return "[" + "".join(shown(each) + "," for each in value) + "]"
    if isinstance(value, dict):
        return "{" + "".join(f"{name}={shown(each)}," for name, each in value.items()) + "}"
    return str(value)


def as_java_has(name: str, value: Any) -> Any:
    """A value of a kind, with the digits of its decimal type."""
    if isinstance(value, Decimal):
        return value.quantize(Decimal(1).scaleb(-KINDS[name].avro["scale"]), context=EXACT)
    return value


class Pairs:
    """Random schemas: of a writer, of a column that Avro resolves it to or not, and values of the writer's."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.names = rng, 0

    def any(self, depth: int = 0) -> tuple[Any, Any, Draw]:
        rng = self.rng
        pair = rng.choice([self.number, self.number, self.text, self.enum, self.fixed])
        if depth < 2:
            pair = rng.choice([pair, lambda: self.many(depth + 1), lambda: self.record(depth + 1)])
        written, column, draw = pair()
        if rng.randrange(3):
            return written, column, draw
        orders = [["null", written], [written, "null"]]
        maybe = rng.choice([*orders, written])
        null = draw if maybe == written else rarely(draw, one_of(None), 4)
        return maybe, rng.choice([["null", column], [column, "null"], ["null", column], column]), null

    def number(self) -> tuple[Any, Any, Draw]:
        column = self.rng.choice(["int", "long", "float", "double", "boolean"])
        written = self.rng.choice(WIDENED[column] if self.rng.randrange(30) else [*DRAWS])
        return written, column, DRAWS[written]

    def text(self) -> tuple[Any, Any, Draw]:
        written = self.rng.choice(["string", "bytes"])
        return written, self.rng.choice(["string", "bytes"]), DRAWS[written]

    def enum(self) -> tuple[Any, Any, Draw]:
        name, symbols = self._name("E"), ["A", "B", "C"]
        more = {"default": "A"} if self.rng.getrandbits(1) else {}
        column = {"type": "enum", "name": name, "symbols": self.rng.choice([symbols, ["B", "A"]]), **more}
        return {"type": "enum", "name": name, "symbols": symbols}, column, one_of(*symbols)

    def fixed(self) -> tuple[Any, Any, Draw]:
        name = self._name("F")
        size = 2 if self.rng.randrange(20) else 3
        return (
            {"type": "fixed", "name": name, "size": 2},
            {"type": "fixed", "name": name, "size": size},
            lambda rng: rng.randbytes(2),
        )

    def many(self, depth: int) -> tuple[Any, Any, Draw]:
        written, column, draw = self.any(depth)
        if self.rng.getrandbits(1):
            pair = {"type": "array", "items": written}, {"type": "array", "items": column}
            return (*pair, lambda rng: [draw(rng) for _ in range(rng.randrange(4))])
        pair = {"type": "map", "values": written}, {"type": "map", "values": column}
        return (*pair, lambda rng: {key: draw(rng) for key in "abc"[: rng.randrange(4)]})

    def record(self, depth: int = 0) -> tuple[Any, Any, Draw]:
        name, written, column, draws = self._name("R"), [], [], {}
        for at in range(self.rng.randrange(1, 5)):
            wrote, reads, draws[f"f{at}"] = self.any(depth)
            written.append({"name": f"f{at}", "type": wrote})
            form = self.rng.randrange(10)
            if form < 7:
                column.append({"name": f"f{at}", "type": reads})
            elif form < 9:
                column.append({"name": f"g{at}", "type": reads, "aliases": [f"f{at}", "other"]})
        for at in range(self.rng.randrange(3)):
            kind, default = self.rng.choice(DEFAULTS)
            column.append({"name": f"h{at}", "type": kind, "default": default})
        if not column or not self.rng.randrange(30):
            column.append({"name": "none", "type": "int"})
        self.rng.shuffle(column)
        record = {"type": "record", "name": name}
        return (
            {**record, "fields": written},
            {**record, "fields": column},
            lambda rng: {name: draw(rng) for name, draw in draws.items()},
        )

    def _name(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"


DRAWS: dict[str, Draw] = {
    "int": whole(32),
    "long": whole(64),
    "float": floats(32),
    "double": floats(64),
    "boolean": one_of(True, False),
    "string": lambda rng: texts(rng).encode("utf-8", "ignore").decode(),
    "bytes": rarely(lambda rng: texts(rng).encode("utf-8", "ignore"), octets, 4),
}
WIDENED = {
    "int": ["int"],
    "long": ["int", "long"],
    "float": ["int", "long", "float"],
    "double": ["int", "long", "float", "double"],
    "boolean": ["boolean"],
}
DEFAULTS: list[tuple[Any, Any]] = [
    ("int", -7),
    ("long", 1 << 40),
    ("double", 0.5),
    ("float", 3),
    ("string", "ä\0"),
    ("bytes", "\xff\0"),
    ("boolean", True),
    (["null", "string"], None),
    (["string", "null"], "n"),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "bytes"}, {"k": "\xc3"}),
]
LOSSES = re.compile("converted exactly|UTF-8|UnicodeDecodeError")
"""What this library refuses, and Java reads: as a number with other digits, as a text with other letters."""


@pytest.mark.parametrize("count", [400, pytest.param(MANY, marks=pytest.mark.matrix)])
def test_schemas_are_resolved_as_java_resolves_them(
    java: JavaAvro, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    rng, done, lost, bad = random.Random(f"schemas {count}"), 0, 0, 0
    while done < count:
        written, column, draw = Pairs(rng).record()
        found = Definition(json.dumps(column), "AVRO", id=8)
        writers = Definition(json.dumps(written), "AVRO", id=7)
        monkeypatch.setattr(Registry, "schema", lambda self, number, writers=writers: writers)
        registry = Registry({"url": f"http://none/{writers.text}{found.text}"})
        decode = AvroDecoder(registry, found, column_type(found), "ERRORS")
        records = []
        for _ in range(20):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(written), draw(rng))
            records.append(out.getvalue())
        payloads = pa.array([struct.pack(">bI", 0, 7) + each for each in records], pa.binary())
        decoded = plain(
            decode(payloads, *(pa.nulls(len(records), kind) for kind in (pa.string(), pa.int32(), pa.int64())))
        )
        texts_of = [text for text, _ in java.read(written, column, records)]
        for row, text in zip(decoded, texts_of, strict=True):
            case = f"{json.dumps(written)}\n{json.dumps(column)}\n{text[:500]}\n{row}"[:3000]
            if row["error"] is None:
                assert text == shown(row["value"]), case
            elif text.startswith("!"):
                bad += 1
            elif LOSSES.search(row["error"]):
                lost += 1
            else:  # Java compares two types at the first value, and an array may have none
                assert "chema mismatch" in row["error"], case
                assert any(each.startswith("!") for each in texts_of), case
                bad += 1
            done += 1
    print(f"| Java's Avro, resolution | {done} | {lost} | {bad} |")
    assert done - lost - bad > done // 2


@pytest.mark.parametrize("count", [QUICK, pytest.param(MANY, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("name", KINDS)
def test_java_reads_what_is_encoded_and_its_bytes_are_decoded(
    java: JavaAvro, monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    kind, rng, done = KINDS[name], random.Random(f"{name} {count}"), 0
    while done < count:
        for shape in SHAPES:
            schema = shape.avro(kind.avro)
            found = Definition(json.dumps(schema), "AVRO", id=7)
            monkeypatch.setattr(Registry, "schema", lambda self, number, found=found: found)
            decode = AvroDecoder(Registry({"url": f"http://none/{found.text}"}), found, column_type(found), "FAILFAST")
            drawn = [kind.draw(rng) for _ in range(min(BATCH, count))]
            values = [value for value in drawn if fits(kind, value, shape.nulls)]
            arrow = shape.arrow(kind.arrow)
            payloads = AvroEncoder(found)(column(rng, [shape.wrap(value) for value in values], arrow)).to_pylist()
            again = []
            for value, (text, data) in zip(values, java.read(schema, schema, [p[5:] for p in payloads]), strict=True):
                assert text == shown(shape.wrap(as_java_has(name, value))), str(value)[:300]
                again.append(payloads[0][:5] + data)
            for value, got in zip(values, plain(decode(pa.array(again, pa.binary()))), strict=True):
                assert same(shape.unwrap(got), value), (str(value)[:300], str(got)[:300])
            done += len(values)
    print(f"| Java's Avro, {name} | {done} |")
