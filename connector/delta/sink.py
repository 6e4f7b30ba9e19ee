"""The format ``2pc-delta``: tasks write Parquet files, and one commit per checkpoint adds them to a table.

In the first phase, tasks write files. No version of the table names these files, so they are invisible. In the second phase,
one Delta commit of the driver adds the files of a whole checkpoint. This commit contains an app transaction of Delta, with
the query and the checkpoint's id. Only the table's log decides the outcome of a task's transaction: either a commit adds the
task's files, or the ``commitInfo`` of another commit names the transaction as aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

import pyarrow as pa
import tenacity

from connector.delta.columns import (
    Columns,
    arrow_schema,
    check_columns,
    check_creatable,
    check_names,
    check_protocol,
    column_of,
    columns_digest,
    fit_columns,
    new_columns,
    nullable,
)
from connector.delta.commits import add_files, check_unchanged, exclude
from connector.delta.data_files import DataFiles
from connector.delta.delta_log import Past, read_past
from connector.delta.examination import try_out
from connector.delta.handles import FORMAT, DeltaHandle, half_added, is_added, is_of, outcome
from connector.delta.staging import Note, Notes
from connector.delta.storage import TableFolder
from connector.delta.versions import check_restorable, restore_version, version_of
from connector.delta.write_options import NAME, WriteOptions, parse_write_options
from connector.sinks import Deadline, SystemClock, faults, must_hold, must_know
from transactional import (
    AmbiguousOutcomeError,
    Cutoff,
    Examines,
    HandleState,
    NamesDatasets,
    OptionError,
    Options,
    Outcome,
    Restorable,
    RetriableError,
    StoreError,
    TransactionContext,
    TransactionLostError,
    TwoPhaseCommitSink,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from transactional import DecidedCheckpoint, Finding

__all__ = ["DeltaHandle", "DeltaSink", "DeltaTransaction"]

NO_COLUMN: Final = "barrier-doctor-column"
"""The name of a placeholder column, which `DeltaSink.ofOptions` uses if the table does not exist."""

INDEXED_COLUMNS: Final = 32
"""Delta's default for the table property delta.dataSkippingNumIndexedCols."""

RETRY_SECONDS: Final = 0.05
"""Seconds between two attempts at a commit. (If a commit collides only with appends, deltalake itself repeats it.)"""


@dataclass
class DeltaTransaction:
    """A task's open transaction."""

    note: Note
    app: str
    columns: Columns
    digest: str
    files: DataFiles


class DeltaSink(Examines, Restorable, NamesDatasets, TwoPhaseCommitSink[DeltaTransaction, DeltaHandle]):
    """Appends rows to a Delta table. Each checkpoint becomes one version of the table.

    Parameters
    ----------
    options : Options
        See `connector.delta.write_options`.
    schema : pyarrow.Schema
        The rows' schema. Columns are matched by name, ignoring case.

    Raises
    ------
    OptionError
        An option is unknown, missing or wrong, Delta does not have a column's type, or deltalake is not installed.
    """

    commitsTogether: ClassVar[bool] = True
    addressOptions = frozenset({"path"})

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        _check_package()
        self._settings = parse_write_options(options)
        for name in self._settings.partition_by:
            column_of(schema, name)
        check_columns(schema)
        self._folder = TableFolder(self._settings)
        self._notes = Notes(self._folder, options.get("transactionalIdPrefix", ""))
        self._clock = SystemClock()

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    @property
    def settings(self) -> WriteOptions:
        """The sink's checked options."""
        return self._settings

    # -- executor ---------------------------------------------------------------------------------------------------

    def beginTransaction(self, context: TransactionContext) -> DeltaTransaction:
        """Open the table, and match the rows' columns with the table's. No file is created before the first batch."""
        table = self._folder.open()
        metadata = table.metadata()
        columns = replace(fit_columns(self.schema, arrow_schema(table)), partition_by=tuple(metadata.partition_columns))
        note = Note.of(context, str(metadata.id), table.version())
        app = f"{context.queryId}/{self.name()}"
        indexed = int(metadata.configuration.get("delta.dataSkippingNumIndexedCols", INDEXED_COLUMNS))
        files = DataFiles(
            folder=self._folder,
            schema=columns.written,
            partition_by=metadata.partition_columns,
            name=f"part-{context.partitionId:05d}-{context.queryId}-{context.batchId}-{context.nonce}",
            file_bytes=self._settings.file_bytes,
            compression=self._settings.compression,
            indexed=indexed,
            announce=lambda paths: self._notes.put(Note(**{**vars(note), "files": tuple(paths)})),
        )
        return DeltaTransaction(note, app, columns, columns_digest(table), files)

    def write(self, transaction: DeltaTransaction, batch: pa.RecordBatch) -> None:
        """Write a batch into the transaction's files."""
        transaction.files.write(transaction.columns.arrange(batch))

    def preCommit(self, transaction: DeltaTransaction) -> DeltaHandle:
        """Close the files, make them durable, and return the handle."""
        note = transaction.note
        return DeltaHandle(
            format=FORMAT,
            app=transaction.app,
            nonce=note.nonce,
            table=note.table,
            version=note.version,
            columns=transaction.digest,
            files=transaction.files.finish(),
        )

    def rollback(self, transaction: DeltaTransaction) -> None:
        """Delete the transaction's files, and the note that lists them (see `Notes`)."""
        transaction.files.drop()
        self._notes.delete([transaction.note.nonce])

    # -- driver -----------------------------------------------------------------------------------------------------

    @classmethod
    def ofOptions(cls, options: Options) -> DeltaSink:
        """Return a sink for the table's columns. If the table does not exist, use the columns that the options name."""
        _check_package()
        settings = parse_write_options(options)
        folder = TableFolder(settings)
        with folder.reaching():
            if folder.exists():
                return cls(options, arrow_schema(folder.open()))
        return cls(options, pa.schema([(name, pa.string()) for name in (*settings.partition_by, NO_COLUMN)]))

    def checkStart(self, prefix: str | None) -> None:
        """Check that the table can store the rows. If the table does not exist, check that it could be created."""
        with self._folder.reaching():
            table = self._folder.open() if self._folder.exists() else None
        if table is None:
            check_creatable(self.schema, self._settings.partition_by)
            return
        check_protocol(table)
        columns = arrow_schema(table)
        if self._settings.merge_schema:
            fresh = new_columns(self.schema, columns)
            check_names(fresh)
            columns = pa.schema([*columns, *map(nullable, fresh)])
        fit_columns(self.schema, columns)

    def tryOut(self) -> Iterator[Finding]:
        """Check that the table opens, and that a file in the table's folder can be written, read and deleted."""
        yield from try_out(self._settings)

    @classmethod
    def datasets(cls, options: Options, output: Mapping[str, Any]) -> Collection[tuple[str, str]]:
        """Return the OpenLineage namespace and name of the table's folder."""
        where = urlsplit(options.get("path", ""))
        if where.scheme in ("", "file"):
            return [("file", where.path)]
        return [(f"{where.scheme}://{where.netloc}", where.path.lstrip("/"))]

    def identify(self) -> dict[str, str]:
        """Create the table if it does not exist; with ``mergeSchema``, add new columns.

        Return the table's URI and id.
        """
        with self._folder.reaching():
            if not self._folder.exists():
                self._create()
            table = self._folder.open()
        check_protocol(table)
        if self._settings.merge_schema:
            table = self._merge(table)
        fit_columns(self.schema, arrow_schema(table))
        self._folder.sync_log()
        return {"cluster": self._folder.uri, "table": str(table.metadata().id)}

    def isThere(self, route: str = "") -> bool:
        """Return whether the folder contains a table."""
        with self._folder.reaching():
            return self._folder.exists()

    def newestCheckpoint(self, queryId: str, route: str = "") -> int:
        """Return the id of the query's newest committed checkpoint, from the table's app transactions; 0 if there is none."""
        return self._folder.open().transaction_version(f"{queryId}/{self.name()}") or 0

    def output(self, handles: Sequence[DeltaHandle], checkpoint: DecidedCheckpoint) -> dict[str, Any]:
        """Return the version of the table that a checkpoint created, as a mapping; empty if the version is unknown."""
        if not handles:
            return {}
        app, since = handles[0]["app"], min(handle["version"] for handle in handles)
        version = version_of(self._folder, self._folder.open(), since, app, checkpoint.id)
        return {} if version is None else {"table": self._folder.uri, "version": version, "app": app}

    def checkRestore(self, output: Mapping[str, Any]) -> None:
        """Check that the table can be rolled back to the version in `output`, which a checkpoint created."""
        self._must_name_version(output)
        check_restorable(self._folder, output["version"], output["app"])

    def restoreOutput(self, output: Mapping[str, Any], rewind: int) -> None:
        """Roll the table back to the version in `output`, which a checkpoint created."""
        self._must_name_version(output)
        restore_version(self._folder, output["version"], output["app"], rewind)
        self._folder.sync_log()

    def _must_name_version(self, output: Mapping[str, Any]) -> None:
        if "version" not in output:
            reason = (
                f"the journal does not contain the version of {self._folder.uri} that the checkpoint created (the checkpoint "
                "had no rows, or the commit has expired from the table's log)"
            )
            raise StoreError("NOT_RESTORABLE", sink=self.name(), reason=reason)

    def commit(self, handles: Sequence[DeltaHandle], checkpoint: DecidedCheckpoint) -> None:
        """Add the files of all handles to the table, in one commit."""

        def attempt() -> list[DeltaHandle]:
            table = self._folder.open()
            outcomes = self._outcomes(table, handles)
            self._must_be_known(outcomes, handles, checkpoint)
            living = [
                handle for handle, found in zip(handles, outcomes, strict=True) if found.outcome is Outcome.PREPARED
            ]
            lost = [handle for handle, found in zip(handles, outcomes, strict=True) if found.outcome is Outcome.LOST]
            if living and not lost:  # all handles become one version, or none does
                held = table.transaction_version(living[0]["app"]) or 0
                must_hold(self._folder.uri, held, checkpoint.after)
                must_know(self._folder.uri, held, checkpoint.id)
                check_protocol(table)
                check_unchanged(self._folder, table, living)
                add_files(table, living, checkpoint)
                # After a very long pause, deltalake may write a version that has expired meanwhile. Check that it counts.
                self._must_be_known(self._outcomes(self._folder.open(), living), living, checkpoint)
            return lost

        if not handles:
            return
        lost = self._try(attempt, f"the commit of checkpoint {checkpoint.id}")
        faults.reach("commit.one")
        gone = {handle["nonce"] for handle in lost}
        self._notes.delete([handle["nonce"] for handle in handles if handle["nonce"] not in gone])
        if lost:
            reason = (
                f"files of {len(lost)} transactions of checkpoint {checkpoint.id} are missing in {self._folder.uri}, or these "
                "transactions were already aborted"
            )
            raise TransactionLostError("TRANSACTION_LOST", handles=lost, reason=reason)

    def _must_be_known(
        self, outcomes: Sequence[HandleState], handles: Sequence[DeltaHandle], checkpoint: DecidedCheckpoint
    ) -> None:
        for handle, found in zip(handles, outcomes, strict=True):
            if found.outcome is Outcome.UNKNOWN:
                transaction = (
                    f"the commit of {len(handle['files'])} files of checkpoint {checkpoint.id} to {self._folder.uri}"
                )
                raise AmbiguousOutcomeError(
                    "OUTCOME_UNKNOWN", transaction=transaction, handle=dict(handle), evidence=found.evidence
                )

    def abort(self, handles: Sequence[DeltaHandle]) -> Sequence[DeltaHandle]:
        """Write a commit that aborts the handles, then delete their files. Return the handles that were already committed."""

        def attempt() -> list[DeltaHandle]:
            table = self._folder.open()
            past = self._past(table, handles)
            committed = [handle for handle in handles if is_added(past, handle)]
            evidence = next(filter(None, (half_added(past, handle) for handle in handles)), "")
            if not evidence and not past.complete and len(committed) < len(handles):
                evidence = "the table's log no longer has all commits that may have added the files"
            if evidence:
                transaction = f"the commit of files to {self._folder.uri}"
                raise AmbiguousOutcomeError("OUTCOME_UNKNOWN", transaction=transaction, evidence=evidence)
            rest = [h for h in handles if h not in committed and h["nonce"] not in past.aborted and is_of(table, h)]
            if rest:
                exclude(table, rest)
            return committed

        if not handles:
            return []
        committed = self._try(attempt, "an abort")
        self._delete([handle for handle in handles if handle not in committed])
        self._notes.delete([handle["nonce"] for handle in committed])
        return committed

    def inspect(self, handles: Sequence[DeltaHandle]) -> Sequence[HandleState]:
        """Return the state of each handle, from the table's log and from the sizes of the files."""
        return self._outcomes(self._folder.open(), handles) if handles else []

    def sweep(self, known: Sequence[DeltaHandle], before: Cutoff) -> int:
        """Delete the files of uncommitted transactions that are over (see `Cutoff`) and not in `known`.

        Return the number of these transactions. If the table's log no longer shows whether they are committed, keep
        their files.
        """
        kept = {handle["nonce"] for handle in known}
        notes = [note for note in self._notes.all() if note.nonce not in kept]
        notes = [note for note in notes if before.ends(note.queryId, note.run, note.batch)]
        if not notes:
            return 0
        table = self._folder.open()
        past = read_past(self._folder, table, min(note.version for note in notes))
        lost = [note for note in notes if not past.added & set(note.files)]
        if not past.complete:  # they may be committed, so their files stay
            lost = []
        self._folder.delete([path for note in lost for path in note.files])
        self._notes.delete([note.nonce for note in notes])
        return len(lost)

    # -- the table --------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        from deltalake import DeltaTable, Schema

        check_creatable(self.schema, self._settings.partition_by)
        partition_by = [self.schema.names[column_of(self.schema, name)] for name in self._settings.partition_by]
        schema = pa.schema([nullable(field) for field in self.schema])
        DeltaTable.create(
            self._folder.uri,
            Schema.from_arrow(schema),
            mode="ignore",
            partition_by=partition_by,
            storage_options=self._folder.storage_options(),
        )

    def _merge(self, table: DeltaTable) -> DeltaTable:
        from deltalake import Schema

        fresh = new_columns(self.schema, arrow_schema(table))
        if not fresh:
            return table
        check_names(fresh)
        fields = Schema.from_arrow(pa.schema([nullable(field) for field in fresh])).fields
        table.alter.add_columns(fields)
        return self._folder.open()

    # -- transactions -----------------------------------------------------------------------------------------------

    def _past(self, table: DeltaTable, handles: Sequence[DeltaHandle]) -> Past:
        return read_past(self._folder, table, min(handle["version"] for handle in handles))

    def _outcomes(self, table: DeltaTable, handles: Sequence[DeltaHandle]) -> list[HandleState]:
        past = self._past(table, handles)
        sizes = iter(self._folder.sizes([file["path"] for handle in handles for file in handle["files"]]))
        return [outcome(table, past, handle, [next(sizes) for _ in handle["files"]]) for handle in handles]

    def _try(self, attempt: Callable[[], list[DeltaHandle]], what: str) -> list[DeltaHandle]:
        """Call `attempt` until it succeeds, or until ``commitTimeoutMs`` has passed.

        `what` names the attempt in the error.
        """
        from deltalake.exceptions import DeltaError, DeltaProtocolError

        deadline = Deadline(self._settings.commit_seconds, self._clock)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda problem: (
                    isinstance(problem, (DeltaError, OSError)) and not isinstance(problem, DeltaProtocolError)
                )
            ),
            stop=lambda state: deadline.passed(),
            wait=tenacity.wait_fixed(RETRY_SECONDS),
            sleep=self._clock.sleep,
            reraise=True,
        )
        try:
            done = attempts(attempt)
            self._folder.sync_log()  # even if the commit was already done: its process may have died
            return done
        except (DeltaError, OSError) as problem:
            limit = round(self._settings.commit_seconds * 1000)
            raise RetriableError(
                "DELTA_COMMIT_FAILED", what=what, table=self._folder.uri, limit=limit, reason=str(problem)
            ) from problem

    def _delete(self, handles: Sequence[DeltaHandle]) -> None:
        self._folder.delete([file["path"] for handle in handles for file in handle["files"]])
        self._notes.delete([handle["nonce"] for handle in handles])


def _check_package() -> None:
    if find_spec("deltalake") is None:
        raise OptionError("MISSING_PACKAGE", owner=NAME, package="barrier-kafka[delta]", option="format")
