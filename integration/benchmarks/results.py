"""What a benchmark found, as a file that says where and with what: ``build/bench/<time>-<commit>.json``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from connector.kafka.native.columns import native_columns
from connector.kafka.native.library import native_library
from integration import ROOT
from integration.jars import KAFKA_VERSION, SPARK_KAFKA_VERSION, JarResolutionError, java_executable

__all__ = ["NOISY_LOAD", "Results", "add_options", "arguments_of", "data_plane", "settle"]

NOISY_LOAD = 1.0
"""A round that begins with a higher load average (of a minute) is noisy."""

NOISY_OTHERS = 0.2
"""So is a measurement during which others keep more than this many cores busy."""


def settle(seconds: float) -> float:
    """Wait until the load average is at most `NOISY_LOAD`, no longer than this, and return it."""
    deadline = time.monotonic() + seconds
    while (load := os.getloadavg()[0]) > NOISY_LOAD and time.monotonic() < deadline:
        time.sleep(1)
    return load


@dataclass
class Results:
    """All measurements of one run."""

    benchmark: str  # Its name.
    headline: tuple[str, str]  # The figure that stands for the others, and its unit.
    settings: Mapping[str, Any]  # The arguments of the run.
    # Beside those that are there anyway: of what was run in other environments.
    versions: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    began: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def add(self, what: str, who: str, number: int, load: float, figures: Mapping[str, float]) -> None:
        """Add one measurement, and print it.

        Parameters
        ----------
        what, who : str
            What was measured, and of which contestant.
        number : int
            The round's, from 0.
        load : float
            The load average at the begin of the round.
        figures : Mapping[str, float]
            By names that end with their units. ``others_cores`` is how many cores others kept busy meanwhile.
        """
        noisy = load > NOISY_LOAD or figures.get("others_cores", 0.0) > NOISY_OTHERS
        entry = {"what": what, "who": who, "round": number, "load": round(load, 2), "noisy": noisy}
        self.rounds.append({**entry, "figures": {name: round(value, 4) for name, value in figures.items()}})
        shown = ", ".join(f"{name.replace('_', ' ')} {value:,.2f}" for name, value in figures.items())
        print(f"round {number}{' (noisy)' if noisy else ''}, {what}, {who}: {shown}", flush=True)

    def medians(self) -> list[dict[str, Any]]:
        """Return the median of each figure over the rounds, with how many rounds there were and were noisy."""
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for entry in self.rounds:
            groups.setdefault((entry["what"], entry["who"]), []).append(entry)
        return [
            {
                "what": what,
                "who": who,
                "rounds": len(entries),
                "noisy": sum(entry["noisy"] for entry in entries),
                "figures": {
                    name: round(statistics.median(entry["figures"][name] for entry in entries), 4)
                    for name in entries[0]["figures"]
                },
            }
            for (what, who), entries in groups.items()
        ]

    def write(self, file: Path | None = None) -> Path:
        """Write the file, and return its path: ``build/bench/<time>-<commit>.json`` unless one is given."""
        commit, dirty = _commit()
        chosen = file or ROOT / "build" / "bench" / f"{self.began:%Y%m%dT%H%M%SZ}-{commit[:12]}.json"
        found = {
            "benchmark": self.benchmark,
            "began": self.began.isoformat(timespec="seconds"),
            "commit": commit,
            "dirty": dirty,
            "headline": {"figure": self.headline[0], "unit": self.headline[1]},
            "settings": dict(self.settings),
            "versions": {**_versions(), **self.versions},
            "data_plane": data_plane(),
            "machine": {
                "cores": os.cpu_count(),
                "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
                "architecture": platform.machine(),
                "system": f"{platform.system()} {platform.release()}",
            },
            "medians": self.medians(),
            "rounds": self.rounds,
        }
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return chosen

    def report(self, file: Path | None = None) -> None:
        """Print the medians, a table for each thing that was measured, and write the file."""
        medians = self.medians()
        for what in dict.fromkeys(entry["what"] for entry in medians):
            entries = [entry for entry in medians if entry["what"] == what]
            table = Table("", *(entry["who"] for entry in entries), title=what)
            for name in entries[0]["figures"]:
                table.add_row(name.replace("_", " "), *(f"{entry['figures'][name]:,.2f}" for entry in entries))
            table.add_row("noisy rounds", *(f"{entry['noisy']} of {entry['rounds']}" for entry in entries))
            Console(width=130).print(table)
        print(f"Written: {self.write(file)}")


def data_plane() -> dict[str, str]:
    """Return how our source and sink move rows in this environment: as Arrow columns, or as confluent-kafka's objects."""
    library, columns = native_library(), native_columns()
    return {
        "source": "columns" if library is not None and columns is not None else "objects",
        "sink": "columns" if library is not None else "objects",
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that benchmarks beside peers share."""
    parser.add_argument("--settle", type=float, default=180, help="seconds to wait for a quiet machine before a round")
    parser.add_argument("--flink", type=Path, metavar="PYTHON", help="of an environment with apache-flink")
    parser.add_argument("--with-flink", action="store_true", help="make that environment in the cache folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="instead of build/bench/<time>-<commit>.json")


def _commit() -> tuple[str, bool | None]:
    try:
        commit = _output(["git", "rev-parse", "HEAD"])
        return commit, bool(_output(["git", "status", "--porcelain"]))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", None


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    import confluent_kafka

    return {
        "Python": platform.python_version(),
        "pyspark": version("pyspark"),
        "spark-sql-kafka": SPARK_KAFKA_VERSION,
        "pyarrow": version("pyarrow"),
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "Kafka": KAFKA_VERSION,
        "Java": _java_version(),
    }


def _java_version() -> str:
    try:
        java = subprocess.run([java_executable(), "-version"], check=True, capture_output=True, text=True).stderr
    except (JarResolutionError, OSError, subprocess.CalledProcessError):
        return "unknown"
    return next(iter(re.findall(r'version "([^"]+)"', java)), "unknown")


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def arguments_of(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's arguments as they stand in the file: no paths, which are of one machine."""
    return {name: value for name, value in namespace.items() if not isinstance(value, Path)}
