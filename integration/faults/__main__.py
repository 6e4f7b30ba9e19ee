"""``make faults``: faults of brokers, networks, disks, clocks, drivers and databases, by seed, judged row by row.

``python -m integration.faults --kills --record docs/proof/soak.json`` kills only, and adds what came of it to a file.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

from integration.faults.network import may_make_networks
from integration.faults.trial import Plan, Result, Strike, run, stage
from integration.faults.workloads import WORKLOADS
from tests.results import add_result


def main() -> int:
    """Run trials until the time is over; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(prog="python -m integration.faults", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="no trial begins later (default: 60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the first trial")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="in turn (default: all)")
    parser.add_argument("--deeds", type=int, default=8, help="faults of a trial (default: 8)")
    parser.add_argument("--kills", action="store_true", help="SIGKILL only")
    parser.add_argument("--only", default="", help="these faults, separated by commas, in every trial")
    parser.add_argument("--record", type=Path, help="add the results to this JSON file")
    chosen = parser.parse_args()
    if not may_make_networks():
        print("Hosts of their own need root and /dev/net/tun.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that mounts and processes end with it
    results: list[Result] = []
    workloads = chosen.workloads.split(",")
    with stage() as ground:
        end = time.monotonic() + chosen.minutes * 60
        for number, seed in enumerate(range(chosen.seed, chosen.seed + 100_000)):
            if time.monotonic() > end:
                break
            plan = Plan.of(seed, workloads[number % len(workloads)], chosen.deeds, kills=chosen.kills)
            if chosen.only:
                plan = Plan(plan.seed, plan.workload, plan.interval, plan.stateful, chosen.only.split(","))
            print(f"seed {seed}, {plan.workload}, interval {plan.interval}, stateful {plan.stateful}", flush=True)
            result = run(ground, plan, _tell_strike)
            results.append(result)
            _tell(result)
            if chosen.record and not result.wrong:
                _record(chosen.record, result)
            if result.wrong:
                print(f"kept: {ground.folder}", flush=True)
    strikes = sum(len(result.strikes) for result in results)
    wrong = sum(bool(result.wrong) for result in results)
    print(f"{len(results)} trials, {strikes} faults, {sum(r.rows for r in results)} rows, {wrong} trials went wrong")
    return int(bool(wrong))


def _tell_strike(strike: Strike) -> None:
    print(f"    {strike.deed}, at {strike.at}, for {strike.held:.1f} s: recovery {strike.recovery:.1f} s", flush=True)


def _tell(result: Result) -> None:
    print(f"  {result.rows} rows, {result.starts} drivers, {result.seconds:.0f} s", flush=True)
    for problem in result.wrong:
        print(f"  WRONG: {problem}", flush=True)


def _record(file: Path, result: Result) -> None:
    plan = result.plan
    add_result(
        file,
        {
            "seed": plan.seed,
            "workload": plan.workload,
            "interval": plan.interval,
            "stateful": plan.stateful,
            "rows": result.rows,
            "starts": result.starts,
            "strikes": [[s.deed, s.at, round(s.recovery or 0.0, 1)] for s in result.strikes],
        },
    )


if __name__ == "__main__":
    sys.exit(main())
