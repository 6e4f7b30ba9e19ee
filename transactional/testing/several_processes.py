"""Tests in which several processes use the store, and some are killed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from transactional.capabilities import GuardsRuns
from transactional.errors import FencedError
from transactional.testing.bench import Bench


class SeveralProcesses:
    """The part of `SinkConformance` that runs several processes, and kills some of them."""

    def test_commit_and_abort_raced_by_two_processes_end_in_one(self, sink_options: Mapping[str, str]) -> None:
        """One process commits a handle while another aborts it. Their answers agree; each wins at least one of the races."""
        suite: Any = self
        bench = Bench(suite, sink_options)
        expected: list[int] = []
        ends: set[str] = set()
        chance = random.Random(1)
        with bench.process() as one, bench.process() as two:
            bench.order(one, "identify")
            bench.order(two, "identify")
            for number in range(suite.rounds + 2):
                handle = bench.prepare([number], attempt=number, number=number)
                orders = [(one, "commit"), (two, "abort")]
                chance.shuffle(orders)
                answers = {}
                alone = [order for order in orders if number >= suite.rounds and order[1] not in ends]
                for process, what in alone[:1]:  # it has not won a race yet, so now it runs first
                    answers[what] = process.ask(**bench.words(what, handle))
                for process, what in orders:
                    if what not in answers:
                        process.send(**bench.words(what, handle))
                committed = answers["commit"] if "commit" in answers else one.answer()
                aborted = answers["abort"] if "abort" in answers else two.answer()
                lost = bench.lost_of(handle) == [handle]
                ends.add("abort" if lost else "commit")
                if not lost:
                    expected.append(number)
                assert bool(list(bench.sink().abort([handle]))) is not lost, (committed, aborted)
                assert not (lost and committed == {}), "commit returned, but the transaction is lost"
                assert not (not lost and "lost" in committed), (
                    "commit reported the transaction as lost, but it is committed"
                )
                assert not (lost and aborted.get("committed")), (
                    "abort reported the transaction as committed, but it is lost"
                )
                assert not (not lost and aborted == {"committed": []}), (
                    "abort reported the transaction as aborted, but it is committed"
                )
                bench.must_see(expected)
        assert ends == {"commit", "abort"}

    def test_a_new_run_fences_the_run_before_it(self, sink_options: Mapping[str, str]) -> None:
        """A sink that claims its prefix rejects the mark of an older run, but not the mark of the newest one."""
        suite: Any = self
        if not issubclass(suite.sink_type, GuardsRuns):
            pytest.skip("the sink is not a GuardsRuns")
        bench = Bench(suite, sink_options)
        other = Bench(suite, sink_options, prefix=bench.prefix + "-other")
        old, beside = bench.claim(), other.claim()
        if not old:
            pytest.skip("with the options of this test, guardRun returns an empty mark")
        for _ in range(2):
            old = bench.claim(old)
        new = bench.claim()
        with pytest.raises(FencedError):
            bench.claim(old)
        assert bench.claim(new), "the newest run must continue after an older run was refused"
        assert other.claim(beside), "a run of another prefix must continue"

    def test_a_process_killed_after_begin_leaves_nothing_visible(self, sink_options: Mapping[str, str]) -> None:
        """A process killed after `beginTransaction` leaves no visible row, and does not block the next transaction."""
        self._kill("begin", sink_options)

    def test_a_process_killed_after_write_leaves_nothing_visible(self, sink_options: Mapping[str, str]) -> None:
        """A process that is killed after `write` leaves no visible row, and does not block the next transaction."""
        self._kill("write", sink_options)

    def _kill(self, step: str, sink_options: Mapping[str, str]) -> None:
        suite: Any = self
        bench = Bench(suite, sink_options)
        with bench.process() as victim:
            assert victim.ask(**bench.words_to_prepare([1], until=step)) == {}
            victim.kill()
        bench.must_see([])
        bench.sweep()
        bench.must_be_finished()
        bench.commit(bench.prepare([2], attempt=1))
        bench.must_see([2])

    def test_a_prepared_transaction_survives_the_death_of_its_process(self, sink_options: Mapping[str, str]) -> None:
        """After a process has prepared transactions and is killed, another process can commit or abort them."""
        suite: Any = self
        bench = Bench(suite, sink_options)
        with bench.process() as victim:
            first = victim.ask(**bench.words_to_prepare([1], until="preCommit"))["handle"]
            second = victim.ask(**bench.words_to_prepare([2], until="preCommit", partition=1))["handle"]
            victim.kill()
        bench.must_see([])
        bench.commit(first)
        assert list(bench.sink().abort([second])) == []
        bench.must_see([1])
        bench.must_be_finished()
