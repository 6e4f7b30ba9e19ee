"""`MultiSink`: several sinks that share one commit decision.

Each transaction and its handle belong to one of the sinks.

The outcome of a checkpoint is atomic: all sinks commit it, or none does. The visibility is not atomic: each store shows the
rows as soon as it has committed them, so one store is a moment earlier than another.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from connector.multi.names import NAME, under_route
from connector.multi.routes import can_route, routed
from connector.multi.write_options import OF_EACH, SinkOptions, parse_write_options
from connector.sinks import (
    Handle,
    RunMark,
    SinkType,
    as_columns,
    commit_calls,
    datasets_of,
    find_sink,
    guard_run,
    history_seen,
    lifetime_of,
    publishes_marks,
    restorable,
)
from transactional import (
    Cutoff,
    Examines,
    Expires,
    GuardsRuns,
    HandleState,
    History,
    KeepsEvidence,
    NamesDatasets,
    OptionError,
    Options,
    ProtocolError,
    PutBackError,
    ReportsOutput,
    Restorable,
    Routes,
    ShowsLater,
    TransactionContext,
    TransactionLostError,
    TwoPhaseCommitError,
    TwoPhaseCommitSink,
    WarmsUp,
    WritesTopics,
)

if TYPE_CHECKING:
    from transactional import DecidedCheckpoint, Finding

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _One:
    """One of the sinks, with the columns that it gets."""

    name: str
    sink: TwoPhaseCommitSink[Any, Any]
    columns: Sequence[int]
    schema: pa.Schema

    def named(self, name: str) -> str:
        """Return the query id or the prefix that this sink uses: `name` with the sink's name at the end."""
        return under_route(name, self.name)

    def of(self, handles: Iterable[Handle]) -> list[Handle]:
        """Return the handles that belong to this sink, in the form in which the sink itself returned them."""
        return [each["handle"] for each in handles if each["sink"] == self.name]

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with only this sink's columns, under the names that the sink uses."""
        return pa.RecordBatch.from_arrays([batch.column(at) for at in self.columns], schema=self.schema)

    def decided(self, found: DecidedCheckpoint) -> DecidedCheckpoint:
        """Return the checkpoint `found` with this sink's query id, prefix and previous checkpoint."""
        query, prefix, after = self.named(found.queryId), self.named(found.prefix), found.routes.get(self.name, 0)
        return replace(found, queryId=query, prefix=prefix, after=after, routes={})


class MultiSink(
    Examines,
    WarmsUp,
    Routes,
    GuardsRuns,
    KeepsEvidence,
    Expires,
    ShowsLater,
    Restorable,
    WritesTopics,
    NamesDatasets,
    TwoPhaseCommitSink[tuple[_One, int, Any], Handle],
):
    """The sink of the format ``2pc-multi``. It writes each row to the sinks that the row's route names.

    Each handle contains one sink's handle, the sink's name, and the micro-batch.
    """

    commitsTogether = True  # for some sinks this is true; for the others, `commit` makes one call per micro-batch

    own: ClassVar[Mapping[str, SinkType]] = {}
    """The user's own sinks, by format name. `connector.registration.data_sources` sets them in a subclass."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        settings = parse_write_options(options)
        self._route = None if settings.route_column is None else self._column("routeColumn", settings.route_column)
        if self._route is not None and not can_route(schema.field(self._route).type):
            expected = f"a column of strings, or of arrays of strings; its type is {schema.field(self._route).type}"
            raise _invalid("routeColumn", settings.route_column or "", expected)
        self._sinks = {each.name: self._one(each, settings.prefix) for each in settings.sinks}
        self.routes = tuple(self._sinks)
        self._strangers: set[str] = set()  # sinks that the earlier run did not have: they own nothing under its prefix
        self.replacesRows = any(sink.replacesRows for _, sink in self.sinks())
        self.maxPrepared = min((s.maxPrepared for _, s in self.sinks() if s.maxPrepared is not None), default=None)

    def _column(self, option: str, name: str) -> int:
        found = [at for at, field in enumerate(self.schema.names) if field.lower() == name.lower()]
        exact = [at for at in found if self.schema.names[at] == name]
        if len(exact or found) != 1:
            raise _invalid(option, name, f"one of the columns {', '.join(self.schema.names)}")
        return (exact or found)[0]

    @classmethod
    def _sink_of(cls, format_: str) -> SinkType:
        return cls.own.get(format_.lower()) or find_sink(format_.lower())

    def _one(self, settings: SinkOptions, prefix: str) -> _One:
        name = settings.name
        if settings.columns is None:
            columns = [at for at in range(len(self.schema)) if at != self._route]
        else:
            columns = [self._column(f"{name}.columns", column) for _, column in settings.columns]
        fields = [self.schema.field(at) for at in columns]
        for at, (renamed, _) in enumerate(settings.columns or ()):
            fields[at] = fields[at].with_name(renamed or fields[at].name)
        with _naming(name):
            kind = self._sink_of(settings.format)
            options = Options(settings.options).replaced(transactionalidprefix=under_route(prefix, name))
            schema = pa.schema(fields)
            sink = kind(options, schema)
        if publishes_marks(sink):
            expectation = "no value here: 2pc-multi publishes no marks"
            raise OF_EACH.invalid(f"{name}.barrierTopic", settings.options["barriertopic"], expectation)
        return _One(name, sink, columns, schema)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def close(self) -> None:
        """Close all sinks, even if one of them raises."""
        with ExitStack() as closing:
            for one in self._sinks.values():
                closing.callback(one.sink.close)

    # -- executor ---------------------------------------------------------------------------------------------------

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the name of each sink that gets rows, and the rows with only this sink's columns."""
        if self._route is None:
            found: Iterable[tuple[str, pa.RecordBatch]] = ((name, batch) for name in self.routes)
        else:
            found = routed(batch, batch.column(self._route), self.routes)
        for name, rows in found:
            yield name, self._sinks[name].rows(rows)

    def warmUp(self, context: TransactionContext) -> None:
        """Warm up the sink that the context's route names, if the sink supports this."""
        one, own = self._of(context)
        if isinstance(one.sink, WarmsUp):
            one.sink.warmUp(own)

    def beginTransaction(self, context: TransactionContext) -> tuple[_One, int, Any]:
        """Begin a transaction in the sink that the context's route names.

        Return the sink, the micro-batch's number and the sink's own transaction.
        """
        one, own = self._of(context)
        with _naming(one.name):
            return one, context.batchId, one.sink.beginTransaction(own)

    def write(self, transaction: tuple[_One, int, Any], batch: pa.RecordBatch) -> None:
        """Write rows into a transaction of one sink, for which `route` has chosen the rows."""
        one, _, own = transaction
        with _naming(one.name):
            one.sink.write(own, batch)

    def preCommit(self, transaction: tuple[_One, int, Any]) -> Handle | None:
        """Prepare a transaction of one sink. Return the sink's handle, with the sink's name and the micro-batch."""
        one, batch, own = transaction
        with _naming(one.name):
            handle = one.sink.preCommit(own)
        return None if handle is None else {"sink": one.name, "batch": batch, "handle": dict(handle)}

    def rollback(self, transaction: tuple[_One, int, Any]) -> None:
        """Roll back a transaction of one sink."""
        one, _, own = transaction
        one.sink.rollback(own)

    def _of(self, context: TransactionContext) -> tuple[_One, TransactionContext]:
        one = self._sinks[context.route]
        query, prefix = one.named(context.queryId), one.named(context.prefix)
        return one, replace(context, queryId=query, prefix=prefix, route="")

    # -- driver: the run --------------------------------------------------------------------------------------------

    def checkStart(self, prefix: str | None) -> None:
        """Call `checkStart` of each sink that has this method."""
        for one in self._sinks.values():
            with _naming(one.name):
                if isinstance(one.sink, Examines):
                    one.sink.checkStart(None if prefix is None else one.named(prefix))

    def examine(self, prefix: str | None, *, own: Collection[str] = (), intervalMs: int = 0) -> Iterator[Finding]:
        """Yield the findings of each sink. The sentence of a finding begins with the sink's name."""
        for one in self._sinks.values():
            if not isinstance(one.sink, Examines):
                continue
            known = [one.named(each) for each in own]
            under = None if prefix is None else one.named(prefix)
            for found in one.sink.examine(under, own=known, intervalMs=intervalMs):
                yield replace(found, sentence=f"{one.name}: {found.sentence}")

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the OpenLineage datasets of all sinks. A sink whose class this process can't find is left out."""
        found: set[tuple[str, str]] = set()
        for name in as_columns(options.get("sinks", "")):
            own = {key.removeprefix(f"{name}."): value for key, value in options.items() if key.startswith(f"{name}.")}
            found.update(datasets_of(own.pop("format", ""), Options(own), output.get(name, {}), cls._sink_of))
        return found

    def identify(self) -> Mapping[str, str]:
        """Return the identities of all sinks' stores.

        Each key begins with a sink's name; ``cluster`` lists all stores.
        """
        found: dict[str, str] = {}
        stores = []
        for one in self._sinks.values():
            with _naming(one.name):
                identity = one.sink.identify()
            found |= {f"{one.name}.{key}": value for key, value in identity.items()}
            stores.append(f"{one.name}={one.sink.name()}:{identity.get('cluster', '')}")
        return {**found, "cluster": ", ".join(sorted(stores))}

    @property
    def addressOptions(self) -> Collection[str]:  # type: ignore[override]
        """The address options of all sinks. The name of each option begins with its sink's name."""
        return frozenset(
            f"{one.name}.{key}" for one in self._sinks.values() for key in one.sink.addressOptions or one.sink.options
        )

    def isThere(self, route: str = "") -> bool:
        """Return whether the target of the sink `route` exists. If `route` is empty, return True."""
        if not route:
            return True
        with _naming(route):
            return self._sinks[route].sink.isThere()

    def newestCheckpoint(self, queryId: str, route: str = "") -> int | None:
        """Return the query's newest checkpoint in the store of the sink `route`. If `route` is empty, return None."""
        if not route:
            return None
        one = self._sinks[route]
        with _naming(route):
            return one.sink.newestCheckpoint(one.named(queryId))

    def checkHistory(self, history: History) -> Mapping[str, Any]:
        """Compare each sink's store with that sink's part of the history. Return the stores' states by sink name.

        After an error, the other stores are still compared, because any of them may show that the location is an older
        copy.
        """
        seen, problems = dict[str, Any](), list[TwoPhaseCommitError]()
        for one in self._sinks.values():
            own = history.routes[one.name]
            own = replace(own, queryId=one.named(own.queryId), handles=one.of(own.handles))
            try:
                with _naming(one.name):
                    seen[one.name] = dict(history_seen(one.sink, own))
            except TwoPhaseCommitError as problem:
                problems.append(problem)
        if problems:
            raise next((each for each in problems if isinstance(each, PutBackError)), problems[0])
        return seen

    def guardRun(self, mark: RunMark | None) -> RunMark:
        """Claim each sink's prefix for a new run.

        In a continuing run, check that the run still owns the prefixes in `mark`.
        """
        marks = {}
        self._strangers = {name for name in self._sinks if mark is not None and name not in mark}
        for one in self._sinks.values():
            if one.name not in self._strangers:
                with _naming(one.name):
                    marks[one.name] = dict(guard_run(one.sink, None if mark is None else mark[one.name]))
        return marks

    def lifetime(self) -> float | None:
        """Return the shortest time, in seconds, that a sink keeps a prepared transaction; None if all sinks keep it forever."""
        return min((own for _, sink in self.sinks() if (own := lifetime_of(sink)) is not None), default=None)

    # -- driver: transactions ---------------------------------------------------------------------------------------

    def targets(self, handles: Sequence[Handle]) -> Collection[str]:
        """Return the ids of the topics to which the transactions of these handles have written, in all sinks."""
        found = ((one.sink, own) for one, own in self._by_sink(handles))
        return {topic for sink, own in found if isinstance(sink, WritesTopics) for topic in sink.targets(own)}

    def stamp(self, handles: Sequence[Handle]) -> int:
        """Return the highest value that `stamp` returns in the sinks of these handles; 0 if no sink has this method."""
        found = ((one.sink, own) for one, own in self._by_sink(handles))
        return max((sink.stamp(own) for sink, own in found if isinstance(sink, KeepsEvidence)), default=0)

    def output(self, handles: Sequence[Handle], checkpoint: DecidedCheckpoint) -> Mapping[str, Any]:
        """Return the position of the checkpoint's rows in the store of each sink that reports it, by sink name."""
        found = {}
        for one, own in self._by_sink(handles):
            if isinstance(one.sink, ReportsOutput) and (output := one.sink.output(own, one.decided(checkpoint))):
                found[one.name] = dict(output)
        return found

    def checkRestore(self, output: Mapping[str, Any]) -> None:
        """Check that each sink can roll its store back. Raise StoreError if one can't."""
        for one in self._sinks.values():
            with _naming(one.name):
                restorable(one.sink).checkRestore(output.get(one.name, {}))

    def restoreOutput(self, output: Mapping[str, Any], rewind: int) -> None:
        """Roll the store of each sink back to an earlier checkpoint."""
        for one in self._sinks.values():
            with _naming(one.name):
                restorable(one.sink).restoreOutput(output.get(one.name, {}), rewind)

    def commit(self, handles: Sequence[Handle], checkpoint: DecidedCheckpoint) -> None:
        """Commit the handles of every sink. If a sink raises, commit the other sinks' handles first, then raise the error.

        Sinks that commit one micro-batch at a time come first, because their stores usually abort transactions that are
        old.
        """
        lost: list[Handle] = []
        problem: Exception | None = None
        ordered = sorted(self._by_sink(handles), key=lambda found: found[0].sink.commitsTogether)
        for one, _ in ordered:
            mine = [each for each in handles if each["sink"] == one.name]
            try:
                own = [(each["batch"], each["handle"]) for each in mine]
                for call in commit_calls(one.sink, own, one.decided(checkpoint)):
                    with _naming(one.name):
                        one.sink.commit(*call)
            except TransactionLostError as error:
                named = [each for each in mine if dict(each["handle"]) in error.handles]
                lost += named or mine  # if the sink did not name the lost handles, all are inspected again
            except Exception as error:  # noqa: BLE001 - the other sinks commit first, because their transactions may expire
                problem = problem or error
        if problem is not None:
            raise problem
        if lost:
            raise TransactionLostError("TRANSACTION_LOST", handles=lost, reason="the sinks have logged why")

    def ensureVisible(self, handles: Sequence[Handle], checkpoint: DecidedCheckpoint) -> Sequence[Mapping[str, Any]]:
        """Wait until every store shows the checkpoint's rows.

        Return the necessary repairs, each with its sink's name.
        """
        repaired: list[Mapping[str, Any]] = []
        for one, own in self._by_sink(handles):
            if isinstance(one.sink, ShowsLater):
                with _naming(one.name):
                    seen = one.sink.ensureVisible(own, one.decided(checkpoint))
                repaired += [{"sink": one.name, **each} for each in seen]
        return repaired

    def inspect(self, handles: Sequence[Handle]) -> Sequence[HandleState]:
        """Return the state of each handle, in the order of `handles`. Each sink inspects its own handles."""
        answers = {}
        for one, own in self._by_sink(handles):
            with _naming(one.name):
                states = one.sink.inspect(own)
            if len(states) != len(own):
                reason = (
                    f"the sink {one.name} was asked about {len(own)} transactions, but returned {len(states)} states"
                )
                raise ProtocolError("PROTOCOL_VIOLATED", reason=reason)
            answers[one.name] = iter(states)
        return [next(answers[each["sink"]]) for each in handles]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Abort the handles in the sinks to which they belong; return those that were already committed."""
        committed: list[Handle] = []
        for one, own in self._by_sink(handles):
            with _naming(one.name):
                found = [dict(each) for each in one.sink.abort(own)]
            mine = [each for each in handles if each["sink"] == one.name]
            named = [each for each in mine if dict(each["handle"]) in found]
            committed += (
                named if len(named) == len(found) else mine
            )  # if it is unknown which handles those are, all of them are inspected again
        return committed

    def sweep(self, known: Sequence[Handle], before: Cutoff) -> int:
        """Call `sweep` of each sink. Return how many transactions were aborted in total."""
        ended = 0
        for one in self._sinks.values():
            if one.name not in self._strangers:
                with _naming(one.name):
                    ended += one.sink.sweep(one.of(known), replace(before, queryId=one.named(before.queryId)))
        return ended

    def sinks(self) -> Iterator[tuple[str, TwoPhaseCommitSink[Any, Any]]]:
        """Yield (name, sink) for each sink, for commands that examine the stores."""
        for one in self._sinks.values():
            yield one.name, one.sink

    # -- shared -----------------------------------------------------------------------------------------------------

    def _by_sink(self, handles: Sequence[Handle]) -> list[tuple[_One, list[Handle]]]:
        """Return the sinks to which the handles belong, each with its own handles.

        Raise if a handle's sink is unknown.
        """
        names = {each["sink"] for each in handles}
        if names - set(self._sinks):
            reason = (
                f"a handle belongs to the sink {min(names - set(self._sinks))}, which the option sinks does not list"
            )
            raise ProtocolError("PROTOCOL_VIOLATED", reason=reason)
        return [(one, one.of(handles)) for one in self._sinks.values() if one.name in names]


def _invalid(option: str, text: str, expectation: str) -> OptionError:
    return OptionError("INVALID_OPTION", owner=NAME, option=option, value=text, expectation=expectation)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Add a sink's name to errors that the ``with`` block raises."""
    try:
        yield
    except TwoPhaseCommitError as problem:
        raise problem.with_note(f"(Sink {name} of {NAME}.)") from problem
