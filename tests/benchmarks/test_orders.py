"""A process that takes orders ends with whoever gives them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from tests.results import ROOT

PROGRAM = """
import time
from integration.benchmarks.orders import answer, orders

for order in orders():
    answer({"got": order})
    if order == {"run": "for ever"}:
        time.sleep(60)
"""


def test_orders_are_answered_and_the_end_of_input_kills_what_runs() -> None:
    command = [sys.executable, "-Sc", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env={}, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for order in ({"run": "now"}, {"run": "for ever"}):
            print(json.dumps(order), file=process.stdin, flush=True)
            assert json.loads(process.stdout.readline()) == {"got": order}
        process.stdin.close()
        assert process.wait(10) == -signal.SIGKILL
