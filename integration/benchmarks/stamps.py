"""Stamps: when functions of ours, and of PySpark's workers, began and ended, in all of a query's processes.

`integration.benchmarks.timeline` makes every Python process of Spark import this at its start. What is stamped is replaced
when its module is imported; each call then writes a line into a file of its process.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

__all__ = ["FOLDER", "Stamp", "install", "read_stamps"]

FOLDER: Final = "BARRIER_STAMPS"
"""The environment variable that names the folder of the files."""

STAMPED: Final[Mapping[str, Sequence[str]]] = {
    "connector.kafka.source.stream_reader": [
        f"BarrierKafkaStreamReader.{name}" for name in ("latestOffset", "partitions", "commit")
    ],
    "connector.spark.host": ["HostedStreamWriter.prepare", "HostedStreamWriter.commit"],
    "connector.spark.hosted_sink": ["HostedSink.write"],
    "connector.kafka.source.reading.fetch": ["read_ranges"],
    "connector.kafka.sink.kafka_sink": [
        f"KafkaSink.{name}" for name in ("beginTransaction", "preCommit", "inspect", "commit", "ensureVisible", "sweep")
    ],
    "transactional.journal.journal": ["Journal.append", "Journal.load"],
}
"""Module → functions, by their qualified names."""


class Stamp(dict[str, Any]):
    """One call: ``name``, ``pid``, ``begin`` and ``end`` (seconds since 1970), ``cpu`` (seconds of its process)."""


def install(folder: str) -> None:
    """Stamp what this process imports from now on."""
    import sys

    sys.meta_path.insert(0, _Finder(folder))


def read_stamps(folder: Path) -> list[Stamp]:
    """Return the stamps of all processes, by their begin."""
    found = [Stamp(json.loads(line)) for path in folder.iterdir() for line in path.read_text().splitlines()]
    return sorted(found, key=lambda stamp: float(stamp["begin"]))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, whose loader stamps it; None for what is not stamped."""
        if fullname not in STAMPED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        for name in STAMPED[module.__name__]:
            *owners, last = name.split(".")
            owner: Any = module
            for each in owners:
                owner = getattr(owner, each)
            setattr(owner, last, self._stamped(name, getattr(owner, last)))

    def _stamped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            begin, cpu = time.time(), time.process_time()
            result = None
            try:
                result = function(*arguments, **named)
            finally:
                if not hasattr(result, "__next__"):
                    self._write(name, begin, cpu)
            return self._drained(name, begin, cpu, result) if hasattr(result, "__next__") else result

        return call

    def _drained(self, name: str, begin: float, cpu: float, rows: Any) -> Any:
        try:
            yield from rows
        finally:
            self._write(name, begin, cpu)

    def _write(self, name: str, begin: float, cpu: float) -> None:
        stamp = {
            "name": name,
            "pid": os.getpid(),
            "begin": begin,
            "end": time.time(),
            "cpu": time.process_time() - cpu,
        }
        with open(os.path.join(self._folder, f"{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(stamp) + "\n")


if os.environ.get(FOLDER):
    install(os.environ[FOLDER])
