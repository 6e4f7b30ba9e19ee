"""Tables of the faults that trials have put queries through: docs/proof/*.json, which `make faults` and `make soak` extend."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

__all__ = ["FAULTS", "SOAK", "fault_tables"]

FOLDER = Path(__file__).parent.parent / "docs" / "proof"
FAULTS, SOAK = FOLDER / "faults.json", FOLDER / "soak.json"

BINS = (1, 2, 5, 10, 20, 40, 80, 240)
"""Seconds: upper bounds of the histogram of recovery times."""

BAR = 40  # characters of the longest


def fault_tables() -> str:
    """Return the section of the page."""
    faults, soak = _trials(FAULTS), _trials(SOAK)
    return "\n".join(
        [HEAD, *_by_fault(faults), "", *_by_workload(faults), KILLS, *_by_workload(soak), "", *_histogram(soak), ""]
    )


def _trials(file: Path) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _by_fault(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    recoveries: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        for deed, _, seconds in trial["strikes"]:
            recoveries[deed].append(seconds)
    yield "| fault | times | recovery in the median | the longest |"
    yield "|---|---|---|---|"
    for deed, seconds in sorted(recoveries.items()):
        yield f"| {deed} | {len(seconds)} | {_quantile(seconds, 50):.1f} s | {max(seconds):.1f} s |"


def _by_workload(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| query | barrierInterval | state | trials | faults | rows | recovery: median | 99 % |"
    yield "|---|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, bool, bool], list[Mapping[str, Any]]] = defaultdict(list)
    for trial in trials:
        groups[trial["workload"], trial["interval"], trial["stateful"]].append(trial)
    for (workload, interval, stateful), some in [*sorted(groups.items()), (("all", False, False), list(trials))]:
        seconds = [strike[2] for trial in some for strike in trial["strikes"]]
        which = f"{'3 s' if interval else '0'} | {'yes' if stateful else 'no'}" if workload != "all" else " | "
        yield (
            f"| {workload} | {which} | {len(some)} | {len(seconds):,} | {sum(trial['rows'] for trial in some):,} | "
            f"{_quantile(seconds, 50):.1f} s | {_quantile(seconds, 99):.1f} s |"
        )


def _histogram(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    seconds = [strike[2] for trial in trials for strike in trial["strikes"]]
    bounds = list(zip((0, *BINS), BINS, strict=False))
    counts = [sum(low <= each < high for each in seconds) for low, high in bounds]
    yield "```text"
    for (low, high), count in zip(bounds, counts, strict=True):
        yield f"{low:3d} to {high:3d} s  {count:5d}  {'#' * round(BAR * count / max(counts))}".rstrip()
    yield "```"


def _quantile(seconds: Sequence[float], percent: int) -> float:
    return quantiles(seconds, n=100, method="inclusive")[percent - 1] if len(seconds) > 1 else seconds[0]


HEAD = """\
## Faults of clusters, networks, disks and clocks

Three brokers with three replicas, each at a host of its own (a network namespace), the driver at another. A real Spark query
copies rows that are written all the time, and a seed draws what happens to it: the words of the first table. Each fault lasts
up to 12 s; the query has to settle another checkpoint afterwards. At the end every row of the input is in the output once, and
in its order where the query has no state; Java's consumer sees the same as librdkafka's; nothing is open; and the driver has
never ended with an error that calls for a person. Recovery is the time from the end of the fault, or from a kill, to the next
settled checkpoint, on a machine of two cores that runs all of it; a driver that starts takes most of it. Only trials that went
well are in the tables: what did not is a bug, and is in the change log when it is fixed. `make faults` runs more, and
`docs/proof/faults.json` has every trial with its commit and seed.
"""

KILLS = """
## Kills

SIGKILL at random moments, likewise: to the driver, its JVM, one of its Python workers, a broker, the database. `chain` is three
queries, each aligned on the barriers of the one before. `make soak` runs more; `docs/proof/soak.json` has every kill with the
newest entry of the journal at that moment.
"""
