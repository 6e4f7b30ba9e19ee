"""Java's Avro, of Spark's jars, reads what `encode_avro` makes; `decode_avro` reads and resolves what it writes as it does."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from connector.schema_registry.avro_encoder import AvroEncoder
from connector.schema_registry.avro_values import AvroDecoder, column_type
from connector.schema_registry.registry import Definition, Registry
from integration.jars import java_executable
from integration.random_values import EXACT, plain, same
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
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return shown(dict(value))
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
