"""Random JSON through `decode_json` and `encode_json`, beside Python's json: each value is the same, or its record is bad."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from connector.schema_registry.columns import decode_json
from connector.schema_registry.encode import encode_json
from connector.schema_registry.registry import Definition, Registry
from integration.random_values import batches, drawn, floats, is_utf8, one_of, plain, rarely, same, texts, whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK, MANY = 800, 100_000

TEXT, NUMBER, INTEGER, FLAG = ({"type": name} for name in ("string", "number", "integer", "boolean"))
FIELDS: Mapping[str, Any] = {
    "s": TEXT,
    "n": NUMBER,
    "i": INTEGER,
    "b": FLAG,
    "l": {"type": "array", "items": NUMBER},
    "m": {"type": "object", "additionalProperties": TEXT},
    "o": {"type": "object", "properties": {"s": TEXT, "i": INTEGER}},
}
SCHEMA = {"type": "object", "properties": FIELDS}
ARROW = pa.schema(
    [
        ("s", pa.string()),
        ("n", pa.float64()),
        ("i", pa.int64()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.float64())),
        ("m", pa.map_(pa.string(), pa.string())),
        ("o", pa.struct([("s", pa.string()), ("i", pa.int64())])),
    ]
)


class Writer:
    """Writes JSON in all of its spellings, and now and then what is none, or of another type."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        print(f"the seed is {seed!r}")

    def record(self) -> str:
        rng = self.rng
        names = [name for name in FIELDS if rng.randrange(4)] + ["unknown"] * (not rng.randrange(4))
        rng.shuffle(names)
        text = self.mapping({name: FIELDS.get(name, TEXT) for name in names})
        if rng.randrange(100):
            return text
        return rng.choice([text[:-1], text + "}", text + text, text + ",", f"[{text}]", "", "null", text[1:]])

    def value(self, schema: Any) -> str:
        rng = self.rng
        if not rng.randrange(20):
            return "null"
        if not rng.randrange(500):
            schema = rng.choice([NUMBER, INTEGER, FLAG, FIELDS["l"]]) if schema != TEXT else schema
        kind = schema["type"]
        if kind == "string":
            return self.text(texts(rng))
        if kind == "boolean":
            return rng.choice(["true", "false"])
        if kind == "integer":
            return (
                str(whole(64)(rng))
                if rng.randrange(300)
                else rng.choice([str(1 << 63), "1.0", "1e3", "-0", "01", "0x1", ""])
            )
        if kind == "number":
            return self.number()
        if kind == "array":
            return "[" + ",".join(self.space() + self.value(schema["items"]) for _ in range(rng.randrange(4))) + "]"
        names = schema.get("properties") or {
            f"{texts(rng)[:6]}{at}": schema["additionalProperties"] for at in range(rng.randrange(4))
        }
        return self.mapping(names)

    def mapping(self, fields: Mapping[str, Any]) -> str:
        space = self.space
        pairs = (f"{space()}{self.text(n)}{space()}:{space()}{self.value(s)}{space()}" for n, s in fields.items())
        return space() + "{" + ",".join(pairs) + "}" + space()

    def number(self) -> str:
        rng, value = self.rng, floats(64)(self.rng)
        if not rng.randrange(300):
            return rng.choice(["1e400", "-1.5E+999", "9" * 400, "1e-400", "-0", "-0.0", "+1", ".5", "5."])
        if value != value or abs(value) == float("inf"):
            return "0.10"
        digits = rng.choice(
            [repr(value), f"{value:.20e}", str(whole(64)(rng)), str(rng.getrandbits(200)), f"{value:.17E}"]
        )
        return digits.replace("e+", rng.choice(["e+", "E", "e"]))

    def text(self, value: str) -> str:
        rng, out = self.rng, []
        if not rng.randrange(50):
            value += rng.choice(["\\ud800", "\\\\", "/", "\\u", '"\\'])
        for each in value if len(value) < 1_000 else json.dumps(value)[1:-1]:
            form = rng.randrange(6) if len(value) < 1_000 else 9
            if form == 0 or (form < 9 and "\ud800" <= each <= "\udfff"):
                units = each.encode("utf-16-be", "surrogatepass")
                pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
                out.append("".join("\\u" + rng.choice([pair, pair.upper()]) for pair in pairs))
            else:
                out.append(
                    "\\/"
                    if each == "/" and form == 1
                    else json.dumps(each, ensure_ascii=False)[1:-1]
                    if form < 9
                    else each
                )
        return '"' + "".join(out) + '"'

    def space(self) -> str:
        return self.rng.choice(["", "", "", " ", "\t", "\r\n"])


class Bad(Exception):
    """A record that its columns can't hold."""


def wanted(value: Any, schema: Any) -> Any:
    """What a column has of a value of Python's json."""
    kind = schema["type"]
    if value is None:
        return None
    if kind == "string":
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "integer" and type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if kind == "number" and type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else -float("inf")
    if kind == "array" and isinstance(value, list):
        return [wanted(each, schema["items"]) for each in value]
    if kind == "object" and isinstance(value, dict):
        if "properties" in schema:
            return {name: wanted(value.get(name), each) for name, each in schema["properties"].items()}
        return [(name, wanted(each, schema["additionalProperties"])) for name, each in value.items()]
    raise Bad


def expected(text: str) -> Any:
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or not is_utf8(json.dumps(value, ensure_ascii=False)):
            return None
        return wanted(value, SCHEMA)
    except (ValueError, Bad):
        return None


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    monkeypatch.setattr(Registry, "subject", lambda *_: Definition(json.dumps(SCHEMA), "JSON", id=7))
    return {"url": "http://nowhere"}


@pytest.mark.parametrize("count", [QUICK, pytest.param(MANY, marks=pytest.mark.matrix)])
def test_json_is_decoded_as_python_reads_it_or_is_bad(
    spark: SparkSession, registry: Mapping[str, Any], count: int
) -> None:
    writer = Writer(f"decoded {count}")
    sent = [writer.record() for _ in range(count)]
    payloads = [struct.pack(">bI", 0, 7) + text.encode("utf-8", "surrogatepass") for text in sent]
    frame = spark.createDataFrame(pa.table({"id": range(count), "value": payloads}))
    found = frame.select("id", decode_json("value", registry, topic="t", mode="ERRORS").alias("r")).toArrow()
    bad = 0
    for number, row in zip(plain(found["id"]), plain(found["r"]), strict=True):
        want = expected(sent[number]) if is_utf8(sent[number]) else None
        assert same(want, row["value"]), f"{sent[number][:500]} -> {str(want)[:300]}, and was {str(row)[:300]}"
        assert (row["error"] is None) == (want is not None)
        bad += want is None
    assert 0 < bad < count // 2
    print(f"| decode_json | {count} | {bad} |")


def is_encodable(row: Sequence[Any]) -> bool:
    """Whether a row is UTF-8, and its keys are no longer than Spark reads them: 50,000 characters."""
    return is_utf8(json.dumps(row, ensure_ascii=False)) and all(len(key) < 50_000 for key, _ in row[5] or [])


@pytest.mark.parametrize("place", ["s", "l", "m", "o"])
def test_a_text_that_is_no_utf8_is_not_encoded(spark: SparkSession, registry: Mapping[str, Any], place: str) -> None:
    text = "CAST(X'61EDA080' AS STRING)"
    made = {"s": text, "l": f"array({text})", "m": f"map({text}, 'v')", "o": f"named_struct('s', {text}, 'i', 1)"}[
        place
    ]
    row = spark.range(1).selectExpr(f"named_struct('{place}', {made}) AS v")
    with pytest.raises(
        Exception, match=r"\[ROW_NOT_ENCODED\] A row can't be encoded with schema id 7: a string in the row"
    ):
        row.select(encode_json("v", registry, topic="t")).collect()


@pytest.mark.parametrize("count", [QUICK, pytest.param(MANY, marks=pytest.mark.matrix)])
def test_what_is_encoded_is_read_by_python_and_decoded_again(
    spark: SparkSession, registry: Mapping[str, Any], count: int
) -> None:
    rng = random.Random(f"encoded {count}")
    draws = [rarely(drawn(field.type), one_of(None), 9) for field in ARROW]
    columns = [[draw(rng) for _ in range(count)] for draw in draws]
    good = [at for at, row in enumerate(zip(*columns, strict=True)) if is_encodable(row)]
    columns = [[column[at] for at in good] for column in columns]
    count = len(good)
    sent = pa.Table.from_batches(batches(rng, columns, ARROW, 3))
    frame = spark.createDataFrame(sent.add_column(0, "id", pa.array(range(count))))
    value = encode_json(f.struct(*ARROW.names), registry, topic="t")
    again = decode_json("value", registry, topic="t", mode="ERRORS")
    found = frame.select("id", value.alias("value")).select("id", "value", again.alias("r")).toArrow()
    for number, data, row in zip(plain(found["id"]), plain(found["value"]), plain(found["r"]), strict=True):
        want = {name: column[number] for name, column in zip(ARROW.names, columns, strict=True)}
        case = f"{str(want)[:700]} -> {data[5:700]!r} -> {str(row)[:700]}"
        assert row["error"] is None, case
        assert same(want, row["value"]), case
        assert data[:5] == struct.pack(">bI", 0, 7)
    print(f"| encode_json | {count} |")
