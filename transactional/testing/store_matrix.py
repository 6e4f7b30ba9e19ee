"""Tests that a sink detects a wrong store: an older copy, an empty store or another store. See `StoreMatrix`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from transactional.barrier import SourceLine
from transactional.capabilities import Routes
from transactional.checkpoint import Acknowledgement, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.digest import RowDigest
from transactional.entries import Request
from transactional.errors import (
    FencedError,
    LocationError,
    OptionError,
    PutBackError,
    RetriableError,
    StoreError,
    TwoPhaseCommitError,
)
from transactional.journal import Journal, MemoryJournalStore
from transactional.recovery import QueryView
from transactional.rewind import Rewinder
from transactional.sink import ONE, Options, TransactionContext, TwoPhaseCommitSink, routes_of
from transactional.testing.bench import ClosesSinks, close, opened

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.testing.conformance import SinkConformance

DAMAGES = ("older copy", "gone", "replaced", "emptied log", "ahead", "unreachable")
"""The kinds of damage. In ``ahead``, the journal is an older copy, so it lacks a checkpoint that the store holds."""

MOMENTS = ("run begins", "driver lives", "commit", "batch write")
"""The moments at which the damage happens: before a new driver plans, between two micro-batches, before a commit, or
before a batch write."""


class StoreMatrix(ClosesSinks):
    """A test class that checks that a sink never writes into an older copy of its store, an empty one, or another one.

    Use it as a mixin of `SinkConformance`, and implement `takeCopy`, `putBack`, `remove` and `replace`. The tests cause
    each kind of damage to the store, each at several moments of a query, with the real coordinator. The query must stop
    with a documented error, and no row may become visible. When the original store is back, the query must continue,
    and in the end every row must be visible exactly once.

    Attributes
    ----------
    cannot : Collection[tuple[str, str]]
        Pairs (damage, moment) that your sink can't detect: see `DAMAGES` and `MOMENTS`. A further pair, ("older copy",
        "another prefix"), means an older copy that a query with a new prefix finds. The tests assert that the query
        continues in these cases. List the cases in your docs.
    comesBack : bool
        True if `putBack` can restore the store after `remove` and after `replace`. In that case, the
        tests require that the query continues after `putBack`.
    """

    cannot: ClassVar[Collection[tuple[str, str]]] = ()
    comesBack: ClassVar[bool] = True

    # -- implement these in your test class -------------------------------------------------------------------------

    def takeCopy(self, options: Mapping[str, str]) -> Any:
        """Copy the whole store, including the data that the sink keeps beside its target. `putBack` gets the returned value."""
        raise NotImplementedError

    def putBack(self, options: Mapping[str, str], copy: Any) -> None:
        """Replace the store with a copy that `takeCopy` made."""
        raise NotImplementedError

    def remove(self, options: Mapping[str, str]) -> None:
        """Remove the target and the data that the sink keeps beside it."""
        raise NotImplementedError

    def replace(self, options: Mapping[str, str]) -> None:
        """Replace the target with a different one that is empty and that the sink could write to."""
        raise NotImplementedError

    def emptyLog(self, options: Mapping[str, str]) -> bool:
        """Empty the log entry of the store's newest commit, as a power failure might do, and return True.

        By default, return False, which skips the tests of this damage, because most stores keep no log file per commit.
        """
        return False

    def unreachable(self, options: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return options that address a store that does not answer.

        By default, return None, which skips the tests of this damage.
        """
        return None

    # -- the test ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("moment", MOMENTS)
    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_store_that_is_not_the_journal_s_is_never_written_into(
        self, sink_options: Mapping[str, str], damage: str, moment: str
    ) -> None:
        """After three checkpoints the store is damaged. The fourth checkpoint must not be written."""
        suite: Any = self
        query = _Query(suite, sink_options, versions=moment == "batch write")
        query.run(0, [0])
        query.run(1, [1])
        older, known = self.takeCopy(query.options), query.journal.copy()
        query.run(2, [2])
        newest = self.takeCopy(query.options)
        messages = query.tasks(3, [3]) if moment == "commit" else []
        if moment == "run begins":
            query.restart()
        if not self._damage(query, damage, older, known):
            pytest.skip(f"the suite can't cause this damage, because {_NEEDS[damage]} is not overridden")
        before = sorted(suite.visible(query.options)) if damage in ("older copy", "ahead") else []
        if (damage, moment) in self.cannot:
            query.go_on(messages)
            return
        query.must_stop(messages, damage == "unreachable")
        if damage in ("older copy", "ahead"):
            assert sorted(suite.visible(query.options)) == before, (
                "the query stopped, but it had changed the visible rows"
            )
        if damage in ("gone", "replaced") and not self.comesBack:
            return
        query.options = dict(query.reachable)
        query.journal = query.newest
        self.putBack(query.options, newest)
        query.restart()
        query.run(3, [3])
        assert sorted(suite.visible(query.options)) == [0, 1, 2, 3]

    def test_a_query_that_died_in_its_commit_goes_on_under_another_prefix(
        self, sink_options: Mapping[str, str]
    ) -> None:
        """The driver dies after a commit that the journal did not record. With a new prefix, the query must still continue."""
        suite: Any = self
        query = _Query(suite, sink_options, versions=False)
        query.run(0, [0])
        query.run(1, [1])
        query.die_in_commit(2, [2])
        query.restart("-other")
        query.run(2, [2])
        query.run(3, [3])
        assert sorted(suite.visible(query.options)) == [0, 1, 2, 3]

    def test_an_older_copy_of_the_location_is_not_rewound(self, sink_options: Mapping[str, str]) -> None:
        """An older journal doesn't show how its transactions ended. So a rewind must stop and abort none of them."""
        suite: Any = self
        query = _Query(suite, sink_options, versions=False)
        query.run(0, [0])
        query.run(1, [1])
        older = query.journal.copy()
        query.preview_rewind()
        query.run(2, [2])
        query.journal = older
        query.request(3)
        if ("ahead", "run begins") in self.cannot:
            query.preview_rewind()
            return
        with pytest.raises(PutBackError):
            query.preview_rewind()

    def test_an_older_copy_is_never_written_into_under_another_prefix(self, sink_options: Mapping[str, str]) -> None:
        """A new prefix does not hide that the store is an older copy, because checkpoint ids belong to the query."""
        suite: Any = self
        query = _Query(suite, sink_options, versions=False)
        query.run(0, [0])
        query.run(1, [1])
        older = self.takeCopy(query.options)
        query.run(2, [2])
        newest = self.takeCopy(query.options)
        self.putBack(query.options, older)
        before = sorted(suite.visible(query.options))
        query.restart("-other")
        if ("older copy", "another prefix") in self.cannot:
            query.go_on([])
            return
        query.must_stop([], False)
        assert sorted(suite.visible(query.options)) == before, "the query stopped, but it had changed the visible rows"
        self.putBack(query.options, newest)
        query.restart("-third")
        query.run(3, [3])
        assert sorted(suite.visible(query.options)) == [0, 1, 2, 3]

    def test_a_sink_notices_that_its_store_is_gone_and_creates_none(self, sink_options: Mapping[str, str]) -> None:
        """`isThere` returns the correct result and changes nothing. A sink that does not override it skips this test."""
        suite: Any = self
        if suite.sink_type.isThere is TwoPhaseCommitSink.isThere:
            pytest.skip("the sink does not override isThere")
        query = _Query(suite, sink_options, versions=False)
        query.run(0, [0])
        assert query.is_there()
        copy = self.takeCopy(query.options)
        self.remove(query.options)
        assert [query.is_there(), query.is_there()] == [False, False]
        if self.comesBack:
            self.putBack(query.options, copy)
            assert query.is_there()

    def _damage(self, query: _Query, damage: str, older: Any, known: _Store) -> bool:
        """Damage the store. Return False if the suite can't cause this kind of damage."""
        if damage == "older copy":
            self.putBack(query.options, older)
        elif damage == "gone":
            self.remove(query.options)
        elif damage == "replaced":
            self.replace(query.options)
        elif damage == "emptied log":
            return self.emptyLog(query.options)
        elif damage == "ahead":
            query.journal = known
            query.request(3)
        else:
            nowhere = self.unreachable(query.options)
            query.options = dict(nowhere or query.options)
            return nowhere is not None
        return True


_NEEDS = {"emptied log": "emptyLog", "unreachable": "unreachable"}


class _Query:
    """A query with one task per micro-batch, or a series of batch writes, with the real coordinator and a journal in memory."""

    def __init__(self, suite: SinkConformance, options: Mapping[str, str], versions: bool) -> None:
        given = Options(options).get("transactionalIdPrefix", "matrix-" + uuid.uuid4().hex[:12])
        self.options = dict(Options(options).replaced(transactionalidprefix=given))
        self.reachable = dict(self.options)
        self.newest = _Store()
        self.journal = self.newest
        self._suite = suite
        self._prefix = given
        self._id = str(uuid.uuid4())
        self._versions = versions
        self._done = -1
        self.restart()

    def restart(self, more: str = "") -> None:
        """Continue with a new driver. To use a new prefix, pass `more`: it is appended to the old prefix."""
        self._driver = uuid.uuid4().hex
        self._prefix += more
        self.options = dict(Options(self.options).replaced(transactionalidprefix=self._prefix))

    def die_in_commit(self, batch: int, numbers: Sequence[int]) -> None:
        """Run a micro-batch whose driver dies after the sink has committed the rows, before the journal records the commit."""
        messages, sink = self.tasks(batch, numbers), self._sink()
        commit: Any = sink.commit

        def die(*call: Any) -> None:
            commit(*call)
            raise _Died

        sink.commit = die  # type: ignore[assignment,method-assign]
        with pytest.raises(_Died):
            self._coordinator(batch, sink).commit(messages, batch)
        close(sink)

    def run(self, batch: int, numbers: Sequence[int]) -> None:
        """Run one complete micro-batch: plan, task, commit."""
        self._commit(self.tasks(batch, numbers), batch)
        self._done = batch

    def request(self, times: int) -> None:
        """Write requests to the journal. Requests decide nothing, so they must not hide that the journal is an older copy."""
        journal = Journal(self.journal)
        journal.load()
        for _ in range(times):
            journal.append(Request(what="checkpoint"), lambda ledger: None)

    def preview_rewind(self) -> None:
        """Check that a rewind to the newest checkpoint in the journal could begin."""
        journal, sink = Journal(self.journal), self._sink()
        logs: Any = SimpleNamespace(check_can_go_back=lambda batch: None)
        try:
            newest = max(journal.load().checkpoints)
            Rewinder(journal, sink, logs, self._id, self._prefix).preview(newest)
        finally:
            close(sink)

    def is_there(self) -> bool:
        """Return whether all targets exist, according to a new sink."""
        sink = self._sink()
        found = [sink.isThere(route) for route in routes_of(sink)]
        close(sink)
        return all(found)

    def tasks(self, batch: int, numbers: Sequence[int]) -> list[Acknowledgement | None]:
        """Plan a micro-batch, run its one task, and return a list with the task's message."""
        sink = self._sink()
        plan = self._coordinator(batch, sink).plan()
        arrow = self._suite.batch(numbers)
        rows = dict(sink.route(arrow)) if isinstance(sink, Routes) else {ONE[0]: arrow}
        parts = [self._part(sink, plan, route, rows[route]) for route in routes_of(sink)]
        close(sink)
        return [Acknowledgement(plan.token, batch, 0, 0, plan.drains(0), parts, plan.sources)]

    def _part(self, sink: TwoPhaseCommitSink[Any, Any], plan: TaskPlan, route: str, rows: pa.RecordBatch) -> Part:
        digest = RowDigest()
        digest.update(rows)
        handle = None
        if not plan.drains(0):
            nonce = uuid.uuid4().hex[:16]
            context = TransactionContext(plan.identity, plan.batch, 0, 0, self._prefix, nonce, plan.token, route)
            transaction = sink.beginTransaction(context)
            sink.write(transaction, rows)
            handle = json.loads(json.dumps(sink.preCommit(transaction)))
        return Part(0, handle, digest.rows, digest.bytes, digest.hexadecimal(), route)

    def go_on(self, messages: list[Acknowledgement | None]) -> None:
        """Take the query's next step: commit these messages, write a version again, or run the next micro-batch."""
        if messages:
            self._commit(messages, 3)
        elif self._versions:
            self.run(2, [2])
        else:
            self.run(3 if self.journal is self.newest else 2, [3])

    def must_stop(self, messages: list[Acknowledgement | None], anyhow: bool) -> None:
        """Check that the query's next step fails or, after an error that allows a restart, that the restart fails.

        If `anyhow` is False, the error must be a `StoreError`, `LocationError` or `OptionError`.
        """
        error = self._error_of(messages)
        if isinstance(error, (FencedError, RetriableError)):  # nothing is decided, so start the query again
            self.restart()
            error = self._error_of([])
        assert anyhow or isinstance(error, (StoreError, LocationError, OptionError)), error

    def _error_of(self, messages: list[Acknowledgement | None]) -> TwoPhaseCommitError:
        """Return the error with which the query's next step ends."""
        try:
            self.go_on(messages)
        except TwoPhaseCommitError as error:
            return error
        except Exception as error:
            kind = type(error).__name__
            raise AssertionError(
                f"the sink raised {kind} ({error}): raise an error of barrier_kafka instead, such as StoreError"
            ) from error
        raise AssertionError("the query continued, although its store is not the one that the journal knows")

    def _sink(self) -> TwoPhaseCommitSink[Any, Any]:
        return opened(self._suite.sink_type(Options(self.options), self._suite.schema()))

    def _commit(self, messages: list[Acknowledgement | None], batch: int) -> None:
        sink = self._sink()
        self._coordinator(batch, sink).commit(messages, batch)
        close(sink)

    def _coordinator(self, batch: int, sink: TwoPhaseCommitSink[Any, Any]) -> CheckpointCoordinator:
        lines = [_line(batch)]
        previous = [_line(batch - 1)] if batch and not self._versions else None
        committed = -1 if self._versions else batch - 1
        view = QueryView(self._id, "/matrix", batch, committed, lines, previous, gaps=self._versions)
        kept = {key: value for key, value in self.options.items() if key != "transactionalidprefix"}
        name = self._suite.sink_type.name()
        settings = RunSettings(self._driver, name, "options", self._prefix, setup={"options": kept})
        return CheckpointCoordinator(Journal(self.journal), sink, settings, view)


class _Died(BaseException):
    """Raised at the point where the driver dies."""


class _Store(MemoryJournalStore):
    """A journal store that can be copied."""

    def copy(self) -> _Store:
        """Return an independent copy."""
        made = _Store()
        for name in self.names():
            made.create(name, self.read(name))
        return made


def _line(batch: int) -> SourceLine:
    return SourceLine.parse(f"line {batch}")
