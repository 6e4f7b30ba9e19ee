"""``make simulate``: runs with new seeds for `MINUTES`. What is found is made small, and written down to be run again.

``python -m tests.simulation 10`` (minutes), ``... 10 --seed 7`` (from this seed on), ``... --again build/simulation/7.json``.
``... --planted`` plants every bug of `tests.simulation.planted`, and says how long each takes to be found.
``--record`` adds a search that found nothing to ``docs/proof/simulation.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.results import FOLDER as RESULTS
from tests.results import add_result, commit, write_results
from tests.simulation.choices import shrink
from tests.simulation.planted import PLANTED, UNSEEN, planted
from tests.simulation.product import play, violation
from tests.simulation.world import World

__all__ = ["first_seed", "main", "search"]

FOLDER = Path("build/simulation")

SEARCHES, DISCOVERED = RESULTS / "simulation.json", RESULTS / "planted.json"

MOST_RUNS = 1000
"""In which a planted bug is looked for."""


def first_seed() -> int:
    """Return where `make test` begins: each commit has seeds of its own, so that a run that is red stays red."""
    return int(commit() or "0", 16) % 10**9


def search(first: int, seconds: float, met: Counter[str], most: int | None = None) -> tuple[int, int, World | None]:
    """Play one seed after the other; return how many, their steps, and the first world in which the promise broke.

    Parameters
    ----------
    first : int
        The first seed.
    seconds : float
    met : Counter[str]
        What the runs have met is added to it.
    most : int, optional
        Runs at most.
    """
    end, runs, steps = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end and runs != most:
        world = play(first + runs)
        runs, steps = runs + 1, steps + world.scheduler.steps
        met.update(world.seen)
        if world.broken:
            return runs, steps, world
    return runs, steps, None


def discover(bug: str, most: int = MOST_RUNS) -> dict[str, Any]:
    """Plant a bug and play seeds from 0 on; return how many runs, steps and seconds of CPU it took until one showed it."""
    began, runs, steps = time.process_time(), 0, 0
    shown = ""
    with planted(bug) as setups:
        while runs < most and not shown:
            world = play(runs, setups)
            runs, steps = runs + 1, steps + world.scheduler.steps
            shown = violation(world.broken) if world.broken else ""
    seconds = round(time.process_time() - began, 1)
    return {"bug": bug, "runs": runs, "steps": steps, "seconds": seconds, "shown": shown}


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, or show a run that was found."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("minutes", type=float, nargs="?", default=10.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--again", type=Path)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if given.again:
        again = play(json.loads(given.again.read_text()), trace=True)
        print("\n".join([*(again.scheduler.trace or ()), again.broken or "nothing is broken"]))
        return 1 if again.broken else 0
    if given.planted:
        found = []
        for bug in sorted(PLANTED, key=lambda bug: bug in UNSEEN):
            found.append({"commit": commit(), **discover(bug)})
            print(found[-1], flush=True)
        write_results(DISCOVERED, found)
        return 0
    first, met, began = (
        random.randrange(10**9) if given.seed is None else given.seed,
        Counter[str](),
        time.process_time(),
    )
    print(f"seeds from {first} on, for {given.minutes:g} minutes", flush=True)
    runs, steps, world = search(first, given.minutes * 60, met)
    seconds = time.process_time() - began
    print(f"{runs} runs, {steps} steps, {steps / seconds * 60:,.0f} in a minute of CPU")
    print("\n".join(f"{count:8d} {what}" for what, count in met.most_common()))
    if world is None:
        if given.record:
            add_result(SEARCHES, {"seed": first, "runs": runs, "steps": steps, "seconds": round(seconds)})
        return 0
    print(f"seed {first + runs - 1}: {world.broken}\nmaking it small ...", flush=True)
    kind = violation(world.broken)
    small = shrink(world.choices.taken, lambda choices: violation(play(choices).broken) == kind)
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{first + runs - 1}.json"
    file.write_text(json.dumps(small))
    print(f"{len(world.choices.taken)} choices, now {len(small)}: python -m tests.simulation --again {file}")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
