"""A query's columns and a table's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from connector.delta.columns import check_creatable, fit_columns, new_columns, nullable
from connector.delta.sink import DeltaSink
from transactional.errors import OptionError, StoreError
from transactional.sink import Options

INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()


def test_columns_are_found_by_name_in_any_case_and_put_in_the_tables_order() -> None:
    columns = fit_columns(pa.schema([("b", TEXT), ("A", INT)]), pa.schema([("a", LONG), ("more", TEXT), ("B", TEXT)]))
    batch = pa.RecordBatch.from_pydict({"b": ["x", None], "A": pa.array([1, None], INT)})
    assert columns.arrange(batch).to_pydict() == {"a": [1, None], "more": [None, None], "B": ["x", None]}


@pytest.mark.parametrize(
    ("found", "wanted", "fits"),
    [
        (INT, LONG, True),
        (LONG, INT, False),
        (pa.float32(), pa.float64(), True),
        (LONG, pa.float64(), False),
        (TEXT, LONG, False),
        (pa.large_string(), TEXT, True),
        (pa.decimal128(9, 2), pa.decimal128(12, 4), True),
        (pa.decimal128(9, 2), pa.decimal128(10, 4), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
        (pa.list_(INT), pa.list_(LONG), True),
        (pa.list_(INT), LONG, False),
        (pa.map_(TEXT, INT), pa.map_(TEXT, LONG), True),
        (pa.struct([("x", INT)]), pa.struct([("x", LONG)]), True),
        (pa.struct([("y", INT)]), pa.struct([("x", INT)]), False),
    ],
)
def test_only_what_fits_without_loss_is_taken(found: pa.DataType, wanted: pa.DataType, fits: bool) -> None:
    rows, table = pa.schema([("c", found)]), pa.schema([("c", wanted)])
    if fits:
        assert fit_columns(rows, table).source == [0]
    else:
        with pytest.raises(OptionError, match="column c is"):
            fit_columns(rows, table)


def test_what_the_table_lacks_or_needs_is_named() -> None:
    with pytest.raises(OptionError, match=r"COLUMNS_MISMATCH.*no column b.*mergeSchema=true"):
        fit_columns(pa.schema([("a", INT), ("b", INT)]), pa.schema([("a", INT)]))
    with pytest.raises(OptionError, match=r"COLUMNS_MISMATCH.*column b is NOT NULL"):
        fit_columns(pa.schema([("a", INT)]), pa.schema([("a", INT), pa.field("b", INT, nullable=False)]))
    assert new_columns(pa.schema([("A", INT), ("b", INT)]), pa.schema([("a", INT)])) == [pa.field("b", INT)]


STRICT: dict[str, tuple[pa.Field, list[Any]]] = {
    "c": (pa.field("c", INT, nullable=False), [1, None]),
    "c.x": (pa.field("c", pa.struct([pa.field("x", INT, nullable=False)])), [{"x": 1}, {"x": None}]),
    "c.element": (pa.field("c", pa.list_(pa.field("element", INT, nullable=False))), [[1], [None]]),
    "c.value": (pa.field("c", pa.map_(TEXT, pa.field("value", INT, nullable=False))), [[("k", 1)], [("k", None)]]),
}


@pytest.mark.parametrize("place", STRICT)
def test_not_null_is_honoured_at_every_depth(place: str) -> None:
    field, values = STRICT[place]
    rows = pa.schema([nullable(field)])
    columns = fit_columns(rows, pa.schema([field]))
    nothing = [values[0]] if not field.nullable else [values[0], None]  # a null parent has no field to be null
    columns.arrange(pa.RecordBatch.from_arrays([pa.array(nothing, rows.field(0).type)], schema=rows))
    with pytest.raises(StoreError, match=f"1 rows have null in {place}, which is NOT NULL"):
        columns.arrange(pa.RecordBatch.from_arrays([pa.array(values, rows.field(0).type)], schema=rows))


@pytest.mark.parametrize(
    ("type_", "column"),
    [
        (pa.null(), "c"),
        (pa.duration("us"), "c"),
        (pa.timestamp("ns"), "c"),
        (pa.uint8(), "c"),
        (pa.list_(pa.time64("us")), r"c\.element"),
        (pa.struct([("x", pa.map_(TEXT, pa.duration("us")))]), r"c\.x\.value"),
    ],
)
def test_types_that_delta_has_not_are_refused_by_column(type_: pa.DataType, column: str) -> None:
    with pytest.raises(OptionError, match=f"COLUMNS_MISMATCH.*column {column} has the type"):
        check_creatable(pa.schema([("c", type_)]), ())


@pytest.mark.parametrize(
    ("by", "told"),
    [("x", "names x, but the query's columns are a, l"), ("l", "can't be partitioned by l"), ("a, L", "l")],
)
def test_partition_columns_are_checked(by: str, told: str) -> None:
    schema = pa.schema([("a", INT), ("l", pa.list_(INT))])
    with pytest.raises(OptionError, match=told):
        check_creatable(schema, by.split(", "))


def sink(folder: Path, *fields: tuple[str, pa.DataType], **options: str) -> DeltaSink:
    more = {"path": str(folder / "table"), "transactionalIdPrefix": "p", **options}
    return DeltaSink(Options(more), pa.schema(list(fields)))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([("m", LONG), ("M", TEXT)], "m and M"),
        ([("m", LONG), ("m", TEXT)], "m and m"),
        ([("s", pa.list_(pa.struct([("x", INT), ("X", INT)])))], r"s\.element\.x and s\.element\.X"),
    ],
)
@pytest.mark.parametrize("merge", ["false", "true"])
def test_columns_that_differ_only_in_case_are_named_at_the_start(
    tmp_path: Path, fields: list[tuple[str, pa.DataType]], named: str, merge: str
) -> None:
    """They were a bare exception of deltalake's, in the first micro-batch."""
    sink(tmp_path, ("other", LONG)).identify()
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(OptionError, match=rf"COLUMNS_MISMATCH.*{named} are the same name") as refused:
            sink(folder, *fields, mergeSchema=merge).checkStart("p")
        assert "mergeSchema" not in str(refused.value)


@pytest.mark.parametrize("character", [*" ,;{}()\n\t="])
def test_a_new_column_has_no_name_that_other_writers_of_delta_refuse(tmp_path: Path, character: str) -> None:
    """Only this sink could write to the table then: Spark refuses to."""
    name = f"a{character}b"
    inside = pa.map_(TEXT, pa.struct([(name, LONG)]))
    made = [sink(tmp_path, (name, LONG)), sink(tmp_path, ("s", inside))]
    for each in made:
        refuses_the_name(lambda each=each: each.checkStart("p"))  # type: ignore[misc]
        refuses_the_name(each.identify)
    sink(tmp_path, ("id", LONG)).identify()
    wider = sink(tmp_path, ("id", LONG), (name, LONG), mergeSchema="true")
    refuses_the_name(lambda: wider.checkStart("p"))
    refuses_the_name(wider.identify)


def refuses_the_name(start: Callable[[], Any]) -> None:
    with pytest.raises(OptionError, match=r"COLUMNS_MISMATCH.*Delta's writers reject the column"):
        start()


def test_a_table_that_has_such_a_name_is_written_to(tmp_path: Path) -> None:
    made = Schema.from_arrow(pa.schema([("a b", LONG)]))
    DeltaTable.create(str(tmp_path / "table"), made)
    sink(tmp_path, ("a b", LONG)).identify()


def test_merge_schema_is_no_remedy_where_it_is_set(tmp_path: Path) -> None:
    sink(tmp_path, ("id", LONG)).identify()
    with pytest.raises(OptionError, match="COLUMNS_MISMATCH") as refused:
        sink(tmp_path, ("id", TEXT), ("more", LONG), mergeSchema="true").checkStart("p")
    assert "mergeSchema" not in str(refused.value)
