"""`SinkConformance`: a test class that checks the contract of `TwoPhaseCommitSink`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from transactional.capabilities import KeepsEvidence
from transactional.sink import Options, TwoPhaseCommitSink, history_seen
from transactional.testing.bench import Bench, ClosesSinks, close
from transactional.testing.deaths import spread
from transactional.testing.golden import GoldenHandles
from transactional.testing.lost_answers import LostAnswers
from transactional.testing.several_processes import SeveralProcesses

if TYPE_CHECKING:
    import pyarrow as pa


class SinkConformance(ClosesSinks, GoldenHandles, LostAnswers, SeveralProcesses):
    """A test class that checks whether a sink fulfills the contract of `TwoPhaseCommitSink`.

    Subclass it in a pytest module: its methods are the tests. Set `sink_type`, define a fixture ``sink_options``, and
    override `visible`. If your rows need other columns than one text column ``value``, override `schema` and `batch` as
    well. A child process must be able to import the sink.

    Attributes
    ----------
    sink_type : type[TwoPhaseCommitSink]
        Your sink.
    seconds : float
        How long a test waits until committed rows are visible and the state of a handle is known.
    quiet_seconds : float
        If `quiet` returns None: how long the visible rows must stay unchanged.
    rounds : int
        The number of races between commit and abort.
    deaths : int
        The maximum number of processes that are killed within a `commit`, each at a different line of the sink's code. Also
        the maximum number of answers that are lost in `throughProxy`.
    ordered : bool
        True if `visible` returns the rows of one transaction in the order in which they were written. Set it to False if
        your store does not keep the order: most database tables do not.
    golden_handles : Path or None
        A folder with handles from released versions of the sink, one JSON file each, sorted by name from old to new. The
        tests check that the current version understands them.
    keyed_by_data : Collection[str]
        Names of a handle's items that are dicts whose keys are data, such as topic names. In these dicts, only the values are
        compared with `golden_handles`, not the keys.

    Examples
    --------
    >>> class TestMySink(SinkConformance):
    ...     sink_type = MySink
    ...
    ...     @pytest.fixture
    ...     def sink_options(self, tmp_path):
    ...         return {"path": str(tmp_path)}
    ...
    ...     def visible(self, options):
    ...         return [int(row["value"]) for row in read(options["path"])]
    """

    sink_type: ClassVar[type[TwoPhaseCommitSink[Any, Any]]]
    seconds: ClassVar[float] = 30.0
    quiet_seconds: ClassVar[float] = 0.1
    rounds: ClassVar[int] = 6
    deaths: ClassVar[int] = 100
    ordered: ClassVar[bool] = True

    # -- implement these in your test class -------------------------------------------------------------------------

    def visible(self, options: Mapping[str, str]) -> Sequence[int]:
        """Return the number in each row that a reader of committed data sees now; for a duplicate, return it twice.

        Keep the order in which a reader gets the rows of one transaction, if your store has an order (see `ordered`).
        """
        raise NotImplementedError

    def unfinished(self, options: Mapping[str, str]) -> int | None:
        """Return how many transactions are open or prepared in the store; None (the default) if unknown."""
        return None

    def quiet(self, options: Mapping[str, str]) -> bool | None:
        """Return whether readers already see the outcome of every commit and abort; None (the default) if unknown.

        Override it if the store answers before readers see the outcome, and you can find out when readers see it. Otherwise
        the tests pause, to find rows that become visible too late, or that should never become visible.
        """
        return None

    def schema(self) -> pa.Schema:
        """Return the schema of the test's rows. The default is one text column ``value``."""
        import pyarrow as pa

        return pa.schema([pa.field("value", pa.string())])

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return one row for each number; `visible` must be able to read the number from the row."""
        import pyarrow as pa

        return pa.RecordBatch.from_pydict({"value": [str(number) for number in numbers]}, schema=self.schema())

    # -- tests ------------------------------------------------------------------------------------------------------

    def test_prepared_rows_are_invisible_until_they_are_committed(self, sink_options: Mapping[str, str]) -> None:
        """`preCommit` makes rows durable, but readers can't see the rows before `commit`."""
        bench = Bench(self, sink_options)
        handle = bench.prepare([1, 2])
        bench.must_see([])
        assert bench.sink().inspect([handle])[0].ready
        bench.commit(handle)
        bench.must_see([1, 2])

    def test_several_handles_are_committed_by_one_call(self, sink_options: Mapping[str, str]) -> None:
        """One call of `commit` commits the handles of several tasks."""
        bench = Bench(self, sink_options)
        handles = [bench.prepare([number], partition=number) for number in range(3)]
        bench.must_see([])
        bench.commit(*handles)
        bench.must_see([0, 1, 2])

    def test_a_commit_can_be_repeated(self, sink_options: Mapping[str, str]) -> None:
        """Until a checkpoint is settled, the same process or a new one may repeat its commit, even after sweeps."""
        bench = Bench(self, sink_options)
        handle = bench.prepare([1])
        sink = bench.sink()
        for _ in range(2):
            sink.commit([handle], bench.checkpoint)
        bench.sweep([handle])
        bench.sweep(run=0)  # the late sweep of a driver that was replaced: it must not abort anything
        bench.commit(handle)
        bench.must_see([1])

    def test_every_row_of_a_task_becomes_visible_in_order(self, sink_options: Mapping[str, str]) -> None:
        """Readers see all rows, in order, after a task writes short and long batches, and slices of batches."""
        bench = Bench(self, sink_options)
        long = [7 * number % 1009 for number in range(1, 1009)]  # each once, shuffled
        batches = [
            self.batch([5000]),
            self.batch(long),
            self.batch([1, 4000, 3000, 2]).slice(1, 2),
            self.batch([2000, 2001]),
        ]
        wanted = [5000, *long, 4000, 3000, 2000, 2001]
        bench.commit(bench.prepare_batches(batches, bench.context()))
        bench.must_see(wanted)
        if self.ordered:
            assert list(self.visible(bench.options)) == wanted, (
                "the rows are not in the order in which they were written"
            )

    def test_a_commit_that_dies_anywhere_is_whole_or_nothing_and_can_be_repeated(
        self, sink_options: Mapping[str, str]
    ) -> None:
        """Processes are killed at different lines of the sink's code during a commit. Another process commits again."""
        bench = Bench(self, sink_options)
        seen: list[int] = []
        with bench.process() as process:
            tries: list[int | None] = [None]  # the first one counts the lines
            for turn, line in enumerate(tries):
                rows = [(first, first + 1) for first in (4 * turn, 4 * turn + 2)]
                handles = {each: bench.prepare(each, partition, turn, turn) for partition, each in enumerate(rows)}
                lines = bench.die_in_commit(process, line, *handles.values())
                if line is None:
                    assert lines, "no line of the sink's code ran: is the class defined in its `__module__`?"
                    tries += spread(lines, self.deaths)
                bench.eventually(lambda: bench.torn(handles, seen), "", f"killed at line {line}")  # noqa: B023
                bench.commit(*handles.values())
                seen += [number for each in rows for number in each]
                bench.eventually(bench.seen, seen, f"visible rows, after a death at line {line} and another commit")
                bench.next_checkpoint()
        bench.must_see(seen)
        bench.must_be_finished()

    def test_another_process_commits(self, sink_options: Mapping[str, str]) -> None:
        """A process that has only the options and the handle's JSON can commit, more than once."""
        bench = Bench(self, sink_options)
        handle = bench.prepare([1, 2, 3])
        with bench.process() as other:
            assert bench.order(other, "commit", handle) == {}
            assert bench.order(other, "commit", handle) == {}
        bench.must_see([1, 2, 3])

    def test_an_abort_can_be_repeated_and_holds(self, sink_options: Mapping[str, str]) -> None:
        """An abort can be repeated, and an aborted transaction is never committed."""
        bench = Bench(self, sink_options)
        handle = bench.prepare([1])
        assert list(bench.sink().abort([handle])) == []
        assert list(bench.sink().abort([handle])) == []
        bench.must_be_lost(handle)
        bench.must_see([])

    def test_an_abort_after_the_commit_says_so_and_changes_nothing(self, sink_options: Mapping[str, str]) -> None:
        """An abort after a commit changes nothing, and returns the committed handles, on which recovery relies."""
        bench = Bench(self, sink_options)
        handle, other = bench.prepare([1]), bench.prepare([2], partition=1)
        bench.commit(handle)
        assert [dict(found) for found in bench.sink().abort([handle, other])] == [handle]
        bench.commit(handle)
        bench.must_see([1])

    def test_nothing_to_commit_or_abort_is_no_error(self, sink_options: Mapping[str, str]) -> None:
        """Calls without handles, and a sweep of an untouched store, do nothing and raise no error."""
        bench = Bench(self, sink_options)
        sink = bench.sink()
        sink.commit([], bench.checkpoint)
        assert list(sink.abort([])) == []
        assert list(sink.inspect([])) == []
        assert bench.sweep(sink=sink) == 0
        bench.must_see([])

    def test_a_commit_names_what_is_lost_and_commits_the_rest(self, sink_options: Mapping[str, str]) -> None:
        """The error names the lost handles. The same call commits the others; with `commitsTogether`, a second call does."""
        bench = Bench(self, sink_options)
        handles = [bench.prepare([number], partition=number) for number in range(3)]
        bench.sink().abort([handles[1]])
        assert bench.lost_of(*handles) == [handles[1]]
        if self.sink_type.commitsTogether:
            bench.must_see([])
            bench.commit(handles[0], handles[2])
        else:
            together = (
                "visible rows (if one call commits either all of its handles or none, set commitsTogether = True)"
            )
            bench.eventually(lambda: bool(bench.seen()), True, together)
        bench.must_see([0, 2])

    def test_the_store_holds_a_checkpoint_after_the_last_of_its_commits(self, sink_options: Mapping[str, str]) -> None:
        """If a call of `commit` is not the last of its checkpoint, `newestCheckpoint` does not return that checkpoint yet."""
        if self.sink_type.commitsTogether:
            pytest.skip("one call commits all handles of a checkpoint")
        bench = Bench(self, sink_options)
        first, second = bench.prepare([1]), bench.prepare([2], number=1)
        sink = bench.sink()
        sink.commit([first], replace(bench.checkpoint, last=False))
        held = sink.newestCheckpoint(bench.query)
        assert held is None or held < bench.checkpoint.id, "commit must store checkpoint.completed, not checkpoint.id"
        bench.commit(second)
        bench.must_see([1, 2])

    def test_a_late_commit_of_an_earlier_checkpoint_leaves_the_newest(self, sink_options: Mapping[str, str]) -> None:
        """If a replaced driver repeats an earlier checkpoint's commit, `newestCheckpoint` still returns the newest."""
        bench = Bench(self, sink_options)
        first, second, earlier = bench.prepare([1]), bench.prepare([2], number=1), bench.checkpoint
        bench.commit(first)
        bench.next_checkpoint()
        bench.commit(second)
        sink = bench.sink()
        sink.commit([first], earlier)
        held = sink.newestCheckpoint(bench.query)
        assert held is None or held >= bench.checkpoint.id, (
            "newestCheckpoint must return the highest id, not the last one"
        )
        bench.must_see([1, 2])

    def test_a_late_commit_of_an_aborted_handle_changes_nothing(self, sink_options: Mapping[str, str]) -> None:
        """A late commit of an aborted handle does not change the transaction that replaced the aborted one."""
        bench = Bench(self, sink_options)
        old = bench.prepare([1])
        bench.sink().abort([old])
        new = bench.prepare([2], attempt=1)
        bench.must_be_lost(old)
        bench.must_see([])
        bench.sink().abort([old])
        bench.commit(new)
        bench.must_be_lost(old)
        bench.must_see([2])

    def test_a_late_commit_or_abort_of_a_committed_handle_changes_nothing(
        self, sink_options: Mapping[str, str]
    ) -> None:
        """A late commit or abort does not change the transaction that the next micro-batch has prepared."""
        bench = Bench(self, sink_options)
        old = bench.prepare([1])
        bench.commit(old)
        new = bench.prepare([2], attempt=1, number=1)
        bench.commit(old)
        bench.sink().abort([old])
        bench.must_see([1])
        bench.commit(new)
        bench.must_see([1, 2])

    def test_lingering_transactions_are_swept_and_known_ones_kept(self, sink_options: Mapping[str, str]) -> None:
        """A sweep aborts leftover transactions, but keeps those that an unsettled journal entry names."""
        bench = Bench(self, sink_options)
        known, lingering = bench.prepare([1]), bench.prepare([2], partition=1)
        assert bench.sweep([known]) >= 1
        bench.must_be_lost(lingering)
        bench.commit(known)
        bench.must_see([1])
        assert bench.sweep() == 0
        bench.must_see([1])
        bench.must_be_finished()

    def test_the_transactions_of_another_prefix_are_not_swept(self, sink_options: Mapping[str, str]) -> None:
        """A sweep does not abort the transactions of another query that writes to the same store."""
        bench = Bench(self, sink_options)
        other = Bench(self, sink_options, prefix=bench.prefix + "-other")
        handle = other.prepare([1])
        bench.sweep()
        other.commit(handle)
        bench.must_see([1])

    def test_a_store_keeps_its_identity(self, sink_options: Mapping[str, str]) -> None:
        """`identify` returns the same value in every process, before and after a commit. Otherwise runs would fail."""
        bench = Bench(self, sink_options)
        identity = dict(bench.sink().identify())
        bench.commit(bench.prepare([1]))
        assert dict(bench.sink().identify()) == identity
        with bench.process() as other:
            assert bench.order(other, "identify") == {"ready": identity}

    def test_a_transaction_that_is_rolled_back_leaves_nothing_visible(self, sink_options: Mapping[str, str]) -> None:
        """A rolled-back transaction leaves no visible row, and does not block the next transaction."""
        bench = Bench(self, sink_options)
        sink = bench.sink()
        transaction = sink.beginTransaction(bench.context())
        sink.write(transaction, self.batch([1]))
        sink.rollback(transaction)
        bench.sweep(sink=sink)
        bench.must_be_finished()
        bench.commit(bench.prepare([2], attempt=1))
        bench.must_see([2])

    def test_a_warm_up_in_a_thread_leaves_nothing_if_no_row_comes(self, sink_options: Mapping[str, str]) -> None:
        """A warm-up without rows leaves nothing open. If a row comes, the task's own thread begins the transaction."""
        bench = Bench(self, sink_options)
        idle, sink = bench.warm(partition=1), bench.warm()
        close(idle)
        bench.must_be_finished()
        assert bench.sweep() == 0
        handle = bench.prepare([1], sink=sink)
        bench.must_see([])
        bench.commit(handle)
        bench.must_see([1])

    # -- an older copy of the location ------------------------------------------------------------------------------

    def test_a_commit_that_the_journal_does_not_know_is_found(self, sink_options: Mapping[str, str]) -> None:
        """A store that keeps checkpoint ids or other evidence of commits shows that the location is an older copy.

        A query that continued from such a copy would duplicate rows.
        """
        name = Options(sink_options).get("transactionalIdPrefix", str(uuid.uuid4()))
        bench = Bench(self, sink_options, name, name)  # if the user sets no prefix, the query id is the prefix
        sink = bench.sink()
        keeps_ids = type(sink).newestCheckpoint is not TwoPhaseCommitSink.newestCheckpoint
        if not (keeps_ids or isinstance(sink, KeepsEvidence)):
            pytest.skip("the sink keeps neither ids nor evidence")
        sink.identify()
        first, mark = bench.claimed(bench.history(binding=False))
        seen, mark = bench.claimed(bench.history(seen=first, mark=mark))
        handle = bench.prepare([1])
        bench.commit(handle)
        bench.must_be_finished()
        known = bench.history(seen=seen, mark=mark, position=bench.checkpoint.id)
        assert not bench.refuses(replace(known, handles=[handle]))
        if isinstance(sink, KeepsEvidence):
            assert not bench.refuses(replace(known, stamp=sink.stamp([handle])))
        close(bench.warm())  # a warm-up must not remove the evidence
        assert bench.refuses(bench.history(seen=seen, mark=mark)), (
            "PutBackError expected: the journal lacks this commit"
        )
        assert bench.refuses(bench.history(seen={})), "PutBackError expected: the journal has no run yet"
        accepted = history_seen(bench.sink(), bench.history(seen=seen, mark=mark, binding=False))
        assert not bench.refuses(bench.history(seen=accepted, mark=mark))
        bench.must_see([1])
