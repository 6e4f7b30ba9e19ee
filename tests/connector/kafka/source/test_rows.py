from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from typing import Any

import pytest
from confluent_kafka import Message

from connector.kafka.client.topics import Partition
from connector.kafka.source.rows import COLUMNS, LATEST_MS, all_columns, arrow_schema, spark_schema, to_record_batch
from transactional.errors import StoreError


@pytest.mark.parametrize("headers", [False, True])
def test_the_arrow_schema_is_what_spark_makes_of_its_own(headers: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    names = all_columns(headers)
    assert arrow_schema(names).equals(to_arrow_schema(spark_schema(names), timezone="UTC"))


def test_the_source_is_imported_without_clients_or_arrow() -> None:
    program = (
        "import sys, connector.kafka.source.data_source, connector.kafka.source.stream_reader\n"
        "print([m for m in ('confluent_kafka', 'kafka', 'pyarrow', 'pandas', 'numpy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def message(offset: int, timestamp: tuple[int, int] = (1, 1000), **more: Any) -> Message:
    return Message(topic="t", partition=3, offset=offset, timestamp=timestamp, **{"value": b"v", **more})


def columns(*messages: Message, headers: bool = False) -> dict[str, list[Any]]:
    return columns_of(all_columns(headers), *messages)


def columns_of(names: tuple[str, ...], *messages: Message) -> dict[str, list[Any]]:
    batch = to_record_batch(messages, ((Partition("t", 3), len(messages)),), names)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(names))
    return dict(zip(batch.schema.names, (column.to_pylist() for column in batch.columns), strict=True))


@pytest.mark.parametrize("count", range(9))
def test_only_the_columns_that_were_asked_for_are_made_in_their_order(count: int) -> None:
    rows = [message(4, key=b"k", headers=[("a", b"1")]), message(6, (0, -1))]
    everything = columns(*rows, headers=True)
    for names in (all_columns(True)[:count], all_columns(True)[::-1][:count]):
        assert list(columns_of(names, *rows).items()) == [(name, everything[name]) for name in names]


def test_a_timestamp_that_nobody_reads_is_not_refused() -> None:
    assert columns_of(("value",), message(8, (1, LATEST_MS + 1))) == {"value": [b"v"]}


def test_rows_of_several_partitions_make_one_batch_and_a_bad_one_is_named() -> None:
    runs = ((Partition("t", 3), 2), (Partition("longer", 0), 1), (Partition("t", 1), 1))
    batch = to_record_batch([message(7), message(9), message(1), message(2)], runs, COLUMNS)
    batch.validate(full=True)
    assert batch.column("topic").to_pylist() == ["t", "t", "longer", "t"]
    assert batch.column("partition").to_pylist() == [3, 3, 0, 1]
    assert batch.column("offset").to_pylist() == [7, 9, 1, 2]
    bad = [message(7), message(9), message(1, (1, LATEST_MS + 1)), message(2)]
    with pytest.raises(StoreError, match=r"BAD_RECORD.*longer-0 at offset 1 "):
        to_record_batch(bad, runs, COLUMNS)


def test_keys_and_values_keep_null_apart_from_empty() -> None:
    found = columns(
        message(0, key=None, value=None), message(1, key=b"", value=b""), message(2, key=b"k", value=b"\x00")
    )
    assert found["key"] == [None, b"", b"k"]
    assert found["value"] == [None, b"", b"\x00"]
    assert (found["topic"], found["partition"]) == (["t"] * 3, [3] * 3)
    assert "headers" not in found


@pytest.mark.parametrize("offsets", [[5], [5, 6, 7], [5, 7, 8], [5, 6, 9], [2**40, 2**40 + 2]])
def test_offsets_are_those_of_the_messages_with_gaps_and_without(offsets: list[int]) -> None:
    assert columns(*map(message, offsets))["offset"] == offsets


def test_timestamps_have_spark_s_types_and_none_is_null() -> None:
    found = columns(message(0, (1, 1_700_000_000_123)), message(1, (2, 5)), message(2, (0, -1)), message(3, (1, -1000)))
    at = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=timezone.utc)
    assert found["timestamp"][0] == at
    assert [value and value.timestamp() for value in found["timestamp"][1:]] == [0.005, None, -1.0]
    assert found["timestampType"] == [0, 1, -1, 0], "create, append, none: as Java counts"


def test_a_timestamp_that_microseconds_can_not_hold_is_named_and_the_latest_is_taken() -> None:
    batch = to_record_batch([message(0, (1, LATEST_MS))], ((Partition("t", 3), 1),), COLUMNS)
    assert batch.column("timestamp").cast("int64").to_pylist() == [LATEST_MS * 1000]
    for wrong in (LATEST_MS + 1, -LATEST_MS - 1):
        with pytest.raises(StoreError, match=rf"BAD_RECORD.*t-3 at offset 8 has the timestamp {wrong}"):
            columns(message(7), message(8, (1, wrong)))


def test_headers_keep_order_doubles_and_null_values_and_none_is_null() -> None:
    found = columns(
        message(0, headers=[("b", b"1"), ("a", None), ("b", b"")]),
        message(1),
        message(2, headers=[("", b"2")]),
        message(3),
        headers=True,
    )
    assert found["headers"] == [
        [{"key": "b", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}],
        None,
        [{"key": "", "value": b"2"}],
        None,
    ]
    assert columns(message(0), headers=True)["headers"] == [None]


def test_a_header_with_a_null_key_is_an_error_that_names_the_row() -> None:
    rows = [message(4, headers=[("a", b"1")]), message(6, headers=[("a", b"1"), (None, b"2")])]
    with pytest.raises(StoreError, match=r"BAD_RECORD.*t-3 at offset 6 has a header whose key is null") as caught:
        columns(*rows, headers=True)
    parameters = caught.value.parameters
    assert (parameters["partition"], parameters["offset"]) == ("t-3", 6)
    assert columns(*rows)["offset"] == [4, 6], "without includeHeaders it is a row like others"


def test_a_header_whose_key_the_client_can_not_read_is_named() -> None:
    class Unreadable:
        def headers(self) -> Any:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

        def offset(self) -> int:
            return 9

    from connector.kafka.source.rows import _headers

    with pytest.raises(StoreError, match=r"BAD_RECORD.*offset 9.*not UTF-8"):
        _headers([message(8), Unreadable()], ((Partition("t", 3), 2),))  # type: ignore[list-item]
