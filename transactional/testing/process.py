"""A child process that has a sink, runs commands, and can be killed."""

from __future__ import annotations

import base64
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import TransactionLostError
from transactional.sink import Cutoff, Options, TransactionContext, TwoPhaseCommitSink
from transactional.testing.deaths import lines_until_death

if TYPE_CHECKING:
    import pyarrow as pa

ALL_RUNS = 2**31
"""A run number higher than any real one. A sweep with this number as its cut-off covers every run."""

ANSWER_SECONDS = 120.0  # a sink's process imports its clients first; on a loaded machine that takes tens of seconds


class SinkProcess:
    """A child process that builds a sink from its import path and options, runs your commands, and can be killed.

    Parameters
    ----------
    sink : type[TwoPhaseCommitSink]
        The sink's class, which the child process must be able to import.
    options : Mapping[str, str]
    schema : pyarrow.Schema
    """

    def __init__(self, sink: type[TwoPhaseCommitSink[Any, Any]], options: Mapping[str, str], schema: pa.Schema) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from transactional.testing.process import _obey; _obey()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.send(
            module=sink.__module__,
            qualname=sink.__qualname__,
            options=dict(options),
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        )

    def send(self, **order: Any) -> None:
        """Send a command without waiting for the answer, which `answer` returns later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the command that was sent, and return the answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the sink's process ended with exit code {self._process.wait(ANSWER_SECONDS)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send a command, wait for its answer, and return the answer."""
        self.send(**order)
        return self.answer()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait(ANSWER_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


_begun: list[Any] = []
"""The transactions of a child process, kept until it is killed: if one were dropped earlier, its client might end it."""


def _obey() -> None:
    """Run the child of a `SinkProcess`: read commands from stdin, and write answers to stdout."""
    import pyarrow as pa

    answers = os.fdopen(os.dup(1), "w")  # a client's output must not mix with the answers
    os.dup2(2, 1)
    about = json.loads(sys.stdin.readline())
    kind: Any = importlib.import_module(about["module"])
    for name in about["qualname"].split("."):
        kind = getattr(kind, name)
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"])))
    sink = kind(Options(about["options"]), schema)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = _carry_out(sink, order)
        except TransactionLostError as lost:
            answer = {"lost": lost.handles}
        except Exception as error:  # noqa: BLE001 - the parent gets every error
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _carry_out(sink: TwoPhaseCommitSink[Any, Any], order: Mapping[str, Any]) -> dict[str, Any]:
    """Run one command: prepare (up to the step `until`), commit, die in a commit, abort, sweep, or connect."""
    import pyarrow as pa

    if order["do"] == "prepare":
        batch = pa.ipc.read_record_batch(pa.py_buffer(base64.b64decode(order["rows"])), sink.schema)
        transaction = sink.beginTransaction(TransactionContext(**order["context"]))
        _begun.append(transaction)
        if order["until"] == "begin":
            return {}
        sink.write(transaction, batch)
        return {"handle": sink.preCommit(transaction)} if order["until"] == "preCommit" else {}
    if order["do"] in ("commit", "die"):
        checkpoint = checkpoint_of(order["queryId"], order["prefix"], order["checkpoint"])
        if order["do"] == "die":
            return {"lines": lines_until_death(sink, lambda: sink.commit(order["handles"], checkpoint), order["line"])}
        sink.commit(order["handles"], checkpoint)
        return {}
    if order["do"] == "abort":
        return {"committed": list(sink.abort(order["handles"]))}
    if order["do"] == "sweep":
        return {"swept": sink.sweep(order["handles"], Cutoff(order["queryId"], ALL_RUNS, 0))}
    return {"ready": dict(sink.identify())}  # connects now, so that the start does not decide a race


def checkpoint_of(query: str, prefix: str, number: int = 1) -> DecidedCheckpoint:
    """Return a decided checkpoint with this id, to pass to `commit`."""
    return DecidedCheckpoint(id=number, batches=(0,), timestamp=0, queryId=query, prefix=prefix)
