"""A micro-batch of ten rows as a picture: ``python -m integration.benchmarks.timeline > docs/images/micro-batch.svg``.

How to read it: a bar is a call in a process, drawn from its begin to its end, the wider ones around the narrower ones they
contain; Spark's own line has the durations that it reports, in their order. It is the micro-batch of median duration of
forty, topic to topic, four partitions, two slots. ``--table`` prints the medians of all calls instead, wall and processor time
by call and by micro-batch. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from integration.benchmarks import engines
from integration.benchmarks.contests import OURS
from integration.benchmarks.engines import Engine
from integration.benchmarks.fill import fill
from integration.benchmarks.stamps import FOLDER, Stamp, read_stamps
from integration.broker import Cluster

ROWS, BATCHES, FIRST = 10, 40, 10
PARTITIONS = 4
SPARK = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""What Spark reports of a micro-batch, in its order."""

WIDTH, LABEL, BAR, GAP = 1000, 170, 16, 3
TEXT = 'font-family="sans-serif" font-size="12" fill="#1c1c1c"'
COLOURS = ("#c9d6e5", "#7ea6d0", "#2563a8", "#123a66")
"""Of a call, by how many others are around it."""

KINDS = {
    "BarrierKafkaStreamReader.latestOffset": "source's process",
    "BarrierKafkaStreamReader.partitions": "source's process",
    "HostedStreamWriter.prepare": "planning worker",
    "HostedStreamWriter.commit": "commit worker",
    "HostedSink.write": "task worker",
    "read_ranges": "task worker",
}
"""The call by which a process is known."""


def main() -> int:
    """Run the query, and print the picture or the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.timeline", description=__doc__)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, Cluster(jvm_options=["-Xmx768m"]) as cluster:
        folder = Path(place)
        triggers, stamps = _run(cluster, folder)
    kept = [each for each in triggers if each["numInputRows"]][FIRST:]
    if given.table:
        print("\n".join(_table(kept, stamps)))
        return 0
    middle = sorted(kept, key=lambda each: float(each["durationMs"]["triggerExecution"]))[len(kept) // 2]
    number = triggers.index(middle)
    commits = [stamp for stamp in stamps if stamp["name"] == "HostedStreamWriter.commit"]
    print(picture(middle["durationMs"], stamps, commits[number]), end="")
    return 0


def _run(cluster: Cluster, folder: Path) -> tuple[list[Mapping[str, Any]], list[Stamp]]:
    stamps, site = folder / "stamps", folder / "site"
    stamps.mkdir()
    site.mkdir()
    # Python imports it at the start of each process.
    (site / "sitecustomize.py").write_text("import integration.benchmarks.stamps\n")
    cluster.create_topic("input", partitions=PARTITIONS)
    cluster.create_topic("output", partitions=PARTITIONS)
    fill(cluster, "input", ROWS * (BATCHES + FIRST), 100)
    launch = engines.spark()
    roots = os.pathsep.join([str(site), launch.environment["PYTHONPATH"]])
    stamped = engines.Launch(launch.command, {**launch.environment, FOLDER: str(stamps), "PYTHONPATH": roots})
    with Engine(stamped, folder / "engine") as engine:
        query = OURS.query(
            cluster.bootstrap_servers, "input", "output", str(folder / "checkpoint"), ROWS * (BATCHES + FIRST), ROWS
        )
        triggers = engine.ask("run", query)["triggers"]
    return triggers, read_stamps(stamps)


def _table(triggers: Sequence[Mapping[str, Any]], stamps: Sequence[Stamp]) -> Iterator[str]:
    yield "| of Spark | median ms |"
    yield "|---|---|"
    for part in ("triggerExecution", *SPARK):
        yield f"| {part} | {statistics.median(each['durationMs'].get(part, 0) for each in triggers):.0f} |"
    since = [stamp for stamp in stamps if stamp["name"] == "HostedStreamWriter.commit"][FIRST]["end"]
    by_name: dict[str, list[Stamp]] = {}
    for stamp in stamps:
        if stamp["begin"] > since:
            by_name.setdefault(stamp["name"], []).append(stamp)
    batches = max(len(by_name.get("HostedStreamWriter.commit", ())), 1)
    yield ""
    yield "| call | per micro-batch | median ms | median processor ms | processor ms per micro-batch |"
    yield "|---|---|---|---|---|"
    for name, calls in sorted(by_name.items()):
        wall = 1000 * statistics.median(each["end"] - each["begin"] for each in calls)
        cpu = [1000 * each["cpu"] for each in calls]
        yield f"| {name} | {len(calls) / batches:.1f} | {wall:.1f} | {statistics.median(cpu):.1f} | {sum(cpu) / batches:.1f} |"


def picture(durations: Mapping[str, float], stamps: Sequence[Stamp], commit: Stamp) -> str:
    """Return one micro-batch as SVG.

    Parameters
    ----------
    durations : Mapping[str, float]
        What Spark reports of it, in milliseconds.
    stamps : Sequence[Stamp]
    commit : Stamp
        Of its commit, from which the begin is counted back: Spark reports no moment of the parts.
    """
    before = sum(float(durations.get(part, 0)) for part in SPARK[: SPARK.index("addBatch") + 1])
    begin = float(commit["end"]) - before / 1000
    length = float(durations["triggerExecution"]) / 1000
    scale = (WIDTH - LABEL - 20) / length
    lanes: dict[str, list[tuple[float, float, str]]] = {"Spark": []}
    at = 0.0
    for part in SPARK:
        taken = float(durations.get(part, 0)) / 1000
        lanes["Spark"].append((at, at + taken, part))
        at += taken
    kinds = {stamp["pid"]: KINDS[stamp["name"]] for stamp in stamps if stamp["name"] in KINDS}
    for stamp in stamps:
        first, last = float(stamp["begin"]) - begin, float(stamp["end"]) - begin
        if first >= 0 and last <= length and stamp["pid"] in kinds:
            lane = f"{kinds[stamp['pid']]} {stamp['pid']}"
            lanes.setdefault(lane, []).append((first, last, str(stamp["name"]).rpartition(".")[2]))
    lines, y = [], 28
    for lane, calls in lanes.items():
        depths = _depths(calls)
        lines.append(f'<text x="{LABEL - 8}" y="{y + 12}" {TEXT} text-anchor="end">{escape(lane)}</text>')
        for (first, last, name), depth in zip(calls, depths, strict=True):
            top, left, width = y + depth * (BAR + 1), LABEL + first * scale, max((last - first) * scale, 1)
            said = f"{name}, {1000 * (last - first):.0f} ms"
            lines.append(
                f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" stroke="#fff" '
                f'fill="{COLOURS[min(depth, 3)]}">'
                f"<title>{escape(said)}</title></rect>"
            )
            if width > 7 * len(said):
                fill_colour = "#fff" if depth > 1 else "#1c1c1c"
                lines.append(
                    f'<text x="{left + 3:.1f}" y="{top + 12}" {TEXT.replace("#1c1c1c", fill_colour)}>{escape(said)}</text>'
                )
        y += (max(depths, default=0) + 1) * (BAR + 1) + GAP
    for tick in range(0, int(length * 1000) + 1, 50):
        x = LABEL + tick / 1000 * scale
        lines.append(f'<path d="M{x:.1f} 20V{y}" stroke="#1c1c1c" stroke-opacity="0.15"/>')
        lines.append(f'<text x="{x:.1f}" y="14" {TEXT} text-anchor="middle">{tick}</text>')
    size = f'width="{WIDTH}" height="{y + 10}" viewBox="0 0 {WIDTH} {y + 10}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, *lines, "</svg>\n"])


def _depths(calls: Sequence[tuple[float, float, str]]) -> list[int]:
    """Return how many calls are around each."""
    return [sum(first <= begin and end <= last and (first, last) != (begin, end) for first, last, _ in calls)
            for begin, end, _ in calls]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
