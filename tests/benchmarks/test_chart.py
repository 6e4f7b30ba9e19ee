"""The chart and the table of a benchmark's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from integration.benchmarks.chart import chart, table
from integration.benchmarks.results import NOISY_LOAD, NOISY_OTHERS, Results

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    results = Results("peers", ("rows_per_second_wall", "rows/s"), {"rows": 10})
    for number, (ours, theirs) in enumerate([(300.0, 100.0), (200.0, 120.0), (250.0, 110.0)]):
        results.add("copy <1>", "ours", number, 0.2, {"rows_per_second_wall": ours, "others_cores": 0.0})
        load, others = (NOISY_LOAD + 1, 0.0) if number else (0.2, NOISY_OTHERS + 0.1)
        results.add("copy <1>", "Spark's own", number, load, {"rows_per_second_wall": theirs, "others_cores": others})
    results.add("small", "ours", 0, 0.2, {"addBatch_ms": 12.5})
    file = results.write(tmp_path_factory.mktemp("bench") / "found.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_a_file_says_with_what_and_where(result: dict[str, Any]) -> None:
    assert {"pyspark", "confluent-kafka", "librdkafka", "pyarrow", "Python", "Java", "Kafka"} <= set(result["versions"])
    assert {"cores", "memory_gib"} <= set(result["machine"])
    assert {"commit", "dirty", "began", "settings", "rounds"} <= set(result)


def test_medians_are_of_each_contestant_and_count_noisy_rounds(result: dict[str, Any]) -> None:
    medians = {(entry["what"], entry["who"]): entry for entry in result["medians"]}
    assert medians["copy <1>", "ours"]["figures"]["rows_per_second_wall"] == 250
    assert medians["copy <1>", "ours"]["noisy"] == 0
    assert medians["copy <1>", "Spark's own"]["noisy"] == 3


def test_bars_are_as_long_as_their_values(result: dict[str, Any]) -> None:
    drawing = ET.fromstring(chart(result))
    _, *bars = drawing.iter(f"{SVG}rect")
    ours, theirs = (float(bar.attrib["width"]) for bar in bars)
    assert ours / theirs == pytest.approx(250 / 110, rel=0.01)
    texts = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"copy <1>, rows/s", "ours", "250", "Spark's own", "110"} <= set(texts)
    assert not any("small" in (text or "") for text in texts)  # it has no such figure


def test_a_source_without_its_compiled_helper_is_named(result: dict[str, Any]) -> None:
    assert "source without the data plane" in chart({**result, "data_plane": {"source": "objects", "sink": "columns"}})
    assert "data plane" not in table({**result, "data_plane": {"source": "columns", "sink": "columns"}})


def test_another_figure_can_be_drawn(result: dict[str, Any]) -> None:
    texts = [text.text for text in ET.fromstring(chart(result, "addBatch_ms")).iter(f"{SVG}text")]
    assert {"small, addBatch ms", "12.5"} <= set(texts)
    with pytest.raises(ValueError, match="nothing"):
        chart(result, "nothing")


def test_the_table_has_a_row_for_each_contestant(result: dict[str, Any]) -> None:
    lines = table(result).splitlines()
    assert "| ours | 250 | 0.00 | 0 of 3 |" in lines
    assert "| Spark's own | 110 | 0.00 | 3 of 3 |" in lines


def test_a_run_without_a_path_names_its_file_by_time_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("integration.benchmarks.results.ROOT", tmp_path)  # no repository: no commit
    results = Results("peers", ("rows_per_second_wall", "rows/s"), {})
    assert results.write() == tmp_path / "build" / "bench" / f"{results.began:%Y%m%dT%H%M%SZ}-unknown.json"
