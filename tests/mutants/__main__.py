"""``python -m tests.mutants``: plant every bug, and print how many the quick suite finds in each room."""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import Mutant, MutantError, read_patches
from tests.mutants.workshop import Finding, Workshop
from tests.results import FOLDER, ROOT, commit, write_results

GOAL = 0.95
"""Of all bugs that are not equivalent, found by the quick suite."""

BASELINE_SECONDS = 1800.0


def main(arguments: Sequence[str]) -> int:
    """Return 0 if more than the goal is found, and everything that was expected to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--room", action="append", default=[], help="only of this room; may be repeated")
    parser.add_argument("--only", default="", metavar="TEXT", help="only bugs whose description has this text")
    parser.add_argument("--likely", action="store_true", help="run only the tests that should find a bug")
    parser.add_argument("--list", action="store_true", help="see that every patch fits, and run nothing")
    parser.add_argument("--record", action="store_true", help="write the table into docs/proof/mutants.json")
    parser.add_argument("--workers", type=int, default=2, help="bugs at once, each in a copy of its own")
    given = parser.parse_args(arguments)
    rooms = {path.stem: read_patches(path) for path in sorted((Path(__file__).parent / "planted").glob("*.patch"))}
    chosen = [
        mutant
        for room, mutants in rooms.items()
        for mutant in mutants
        if (not given.room or room in given.room) and given.only.lower() in mutant.breaks.lower()
    ]
    if stale := _stale(chosen):
        print("\n".join(stale), file=sys.stderr)
        return 2
    if given.list:
        for mutant in chosen:
            print(f"{mutant.room:14} {mutant.breaks}")
        return 0
    try:
        findings = list(_hunt([mutant for mutant in chosen if not mutant.is_known], given.workers, given.likely))
    except MutantError as problem:
        print(problem, file=sys.stderr)
        return 2
    known = [Finding(mutant, "") for mutant in chosen if mutant.is_known]
    return _report([*findings, *known], given.record)


def _stale(mutants: Sequence[Mutant]) -> list[str]:
    found = []
    for mutant in mutants:
        try:
            mutant.planted_text((ROOT / mutant.file).read_text(encoding="utf-8"))
        except (MutantError, FileNotFoundError) as problem:
            found.append(str(problem))
        found += [f"{mutant.breaks!r}: no such test: {test}" for test in mutant.tests if not _exists(test)]
    return found


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    kit = (ROOT / "transactional" / "testing").glob("*.py")  # whose tests subclasses bring in
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / file, *kit) if path.exists()]
    wanted = f"def {name.rpartition('::')[2].partition('[')[0]}("
    return (ROOT / file).exists() and (not name or any(wanted in text for text in texts))


def _hunt(mutants: Sequence[Mutant], workers: int, only_likely: bool) -> Iterator[Finding]:
    """Look for every bug, several at once; in the order in which they stand."""
    with tempfile.TemporaryDirectory(prefix="barrier-mutants-") as folder:
        shops: queue.SimpleQueue[Workshop] = queue.SimpleQueue()
        for number in range(workers):
            shop = Workshop(ROOT, Path(folder) / str(number))
            shop.compile()
            shops.put(shop)
        with _borrowed(shops) as shop:
            likely = sorted({test for mutant in mutants for test in mutant.tests})
            print(f"without a bug: {len(likely)} tests or files", flush=True)
            if likely and (broken := shop.failing(likely, BASELINE_SECONDS)):
                raise MutantError(f"{broken} fails without a bug: mend it first")

        def look(mutant: Mutant) -> Finding:
            began = time.monotonic()
            with _borrowed(shops) as shop:
                finding = shop.look_for(mutant, only_likely)
            took = time.monotonic() - began
            print(f"{took:5.0f} s  {mutant.room}: {mutant.breaks}: {finding.test or 'NOT FOUND'}", flush=True)
            return finding

        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(look, mutants)


@contextmanager
def _borrowed(shops: queue.SimpleQueue[Workshop]) -> Iterator[Workshop]:
    shop = shops.get()
    try:
        yield shop
    finally:
        shops.put(shop)


def _report(findings: Sequence[Finding], record: bool) -> int:
    print(f"\n{'room':14} {'planted':>7} {'found':>6} {'rate':>6}")
    counted = [finding for finding in findings if not finding.mutant.is_equivalent]
    rows = []
    for room in [*dict.fromkeys(finding.mutant.room for finding in counted), ""]:
        here = [finding for finding in counted if room in ("", finding.mutant.room)]
        found = sum(bool(finding.test) for finding in here)
        rows.append({"commit": commit(), "room": room or "all", "planted": len(here), "found": found})
        print(f"{room or 'all':14} {len(here):7} {found:6} {found / max(1, len(here)):6.0%}")
    if record:
        write_results(FOLDER / "mutants.json", rows)
    missed = [finding.mutant for finding in findings if not finding.test]
    for mutant in missed:
        print(f"not found: {mutant.room}: {mutant.breaks} ({mutant.found_by if mutant.is_known else 'EXPECTED TO BE'})")
    rate = sum(bool(finding.test) for finding in counted) / max(1, len(counted))
    return int(rate <= GOAL or any(not mutant.is_known for mutant in missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
