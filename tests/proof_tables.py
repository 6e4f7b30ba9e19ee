"""Tables of what was tried: docs/proof/*.json, which `make simulate`, `make faults`, `make soak` and `make mutants` write."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import quantiles
from typing import Any

from tests.results import FOLDER, read_results

__all__ = ["TABLES"]

FAULTS, SOAK, MUTANTS = FOLDER / "faults.json", FOLDER / "soak.json", FOLDER / "mutants.json"
SEARCHES, DISCOVERED, MATRIX = FOLDER / "simulation.json", FOLDER / "planted.json", FOLDER / "matrix.json"

BINS = (1, 2, 5, 10, 20, 40, 80, 240)
"""Seconds: upper bounds of the histogram of recovery times."""

BAR = 40  # characters of the longest


def _summary() -> Iterator[str]:
    searches, faults, soak, matrix = map(read_results, (SEARCHES, FAULTS, SOAK, MATRIX))
    mutants = [row for row in read_results(MUTANTS) if row["room"] == "all"]
    runs, steps = (sum(row[what] for row in searches) for what in ("runs", "steps"))
    rows = {
        "simulated runs of the real protocol": (runs, f"`make simulate`; {steps:,} steps", searches),
        "faults of three brokers, networks, disks, clocks, databases": (_strikes(faults), "`make faults`", faults),
        "`kill -9` at random moments": (_strikes(soak), "`make soak`", soak),
        "tests: crashes at every point with every sink, and other long tests": (
            sum(row["tests"] for row in matrix),
            "`make matrix`, in addition to `make test`",
            matrix,
        ),
        "one-line bugs planted in the product": (
            sum(row["planted"] for row in mutants),
            f"`make mutants`; the quick tests find {sum(row['found'] for row in mutants)}",
            mutants,
        ),
    }
    yield "| attempt | number | command | commits |"
    yield "|---|---|---|---|"
    for what, (times, how, results) in rows.items():
        commits = ", ".join(f"`{name}`" for name in dict.fromkeys(row["commit"] for row in results))
        yield f"| {what} | {times:,} | {how} | {commits} |"


def _searches() -> Iterator[str]:
    yield "| commit | first seed | runs | steps | steps per minute of CPU time |"
    yield "|---|---|---|---|---|"
    for row in read_results(SEARCHES):
        speed = row["steps"] / row["seconds"] * 60
        yield f"| `{row['commit']}` | {row['seed']} | {row['runs']:,} | {row['steps']:,} | {speed:,.0f} |"


def _planted() -> Iterator[str]:
    yield "| planted bug | runs | steps | CPU time in seconds | how the simulation shows the bug |"
    yield "|---|---|---|---|---|"
    for row in read_results(DISCOVERED):
        shown = row["shown"] or f"not found in {row['runs']:,} runs"
        yield f"| {row['bug']} | {row['runs']:,} | {row['steps']:,} | {row['seconds']:.1f} | {shown} |"


def _mutants() -> Iterator[str]:
    yield "| part of the product | planted bugs | found bugs |"
    yield "|---|---|---|"
    for row in read_results(MUTANTS):
        yield f"| {row['room']} | {row['planted']} | {row['found']} ({row['found'] / row['planted']:.0%}) |"


def _strikes(trials: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(trial["strikes"]) for trial in trials)


def _by_moment(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Count kills by what the journal's newest entry was: where in a checkpoint they hit."""
    met = Counter((deed, at) for trial in trials for deed, at, _ in trial["strikes"])
    moments = sorted({at for _, at in met})
    yield f"| kill, by the journal's newest entry at that moment | {' | '.join(f'`{at}`' for at in moments)} |"
    yield "|" + "---|" * (len(moments) + 1)
    for deed in sorted({deed for deed, _ in met}):
        yield f"| {deed} | {' | '.join(str(met[deed, at]) for at in moments)} |"


def _by_fault(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    recoveries: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        for deed, _, seconds in trial["strikes"]:
            recoveries[deed].append(seconds)
    yield "| fault | times | median recovery | longest recovery |"
    yield "|---|---|---|---|"
    for deed, seconds in sorted(recoveries.items()):
        yield f"| {deed} | {len(seconds)} | {_quantile(seconds, 50):.1f} s | {max(seconds):.1f} s |"


def _by_workload(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| query | barrierInterval | stateful | trials | faults | rows | median recovery | 99th percentile of recovery |"
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


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "summary": _summary,
    "searches": _searches,
    "planted": _planted,
    "faults": lambda: _by_fault(read_results(FAULTS)),
    "faulty_queries": lambda: _by_workload(read_results(FAULTS)),
    "killed_queries": lambda: _by_workload(read_results(SOAK)),
    "moments": lambda: _by_moment(read_results(SOAK)),
    "recoveries": lambda: _histogram(read_results(SOAK)),
    "mutants": _mutants,
}
"""By the name that stands for each in the page: its lines."""
