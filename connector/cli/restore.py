"""``barrier restore``: a query goes on from a savepoint at a new checkpoint location, or a copy of it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from connector.cli.given import GivenFile, GivenOptions, options_given
from connector.cli.old_place import OldPlace
from connector.cli.place import load_journal
from connector.cli.report import Output, OutputOption, Report, Yes, reporting
from connector.cli.savepoint import Saved
from connector.cli.words import batches_text, output_text
from connector.spark.alone import alone, query_at_work, rewind_at_work
from connector.spark.disposal import held
from connector.spark.free_place import moving, refuse_unless_free
from connector.spark.location import CheckpointLocation
from connector.spark.process import this_process
from connector.spark.recorded import recorded_run, recorded_sink
from connector.spark.repartition import repartition
from connector.spark.restore import NewLocation
from connector.spark.savepoint import Savepoint, read
from connector.spark.taking_back import logs_of
from transactional import faults
from transactional.clock import SystemClock
from transactional.errors import JournalError, LocationError, StoreError
from transactional.journal import Journal
from transactional.ledger import MOVING, CheckpointRecord, Ledger
from transactional.ownership import moved_on
from transactional.restore import begin_claimed, begin_copy, begins_at, begins_far_above, holds
from transactional.rewind import Preview, Rewinder
from transactional.secrets import hiding, secrets_of

__all__ = ["restore"]

MOST_NAMED = 20
"""Checkpoints, the newest, that an error names."""


@dataclass(frozen=True)
class Request:
    """What the user has asked for."""

    claim: bool
    force: bool
    allow_reemit: bool
    allow_non_restored: bool
    partitions: int | None
    query_stopped: bool
    given: Mapping[str, str]
    yes: bool


def restore(
    saved: Saved,
    location: Annotated[
        str,
        typer.Argument(metavar="NEW_LOCATION", help="The checkpointLocation of the query: new.", show_default=False),
    ],
    claim: Annotated[
        bool,
        typer.Option("--claim", help="The query goes on there; the place that it was taken of is closed for ever."),
    ] = False,
    no_claim: Annotated[
        bool, typer.Option("--no-claim", help="A copy, with an identity of its own: the query itself may run on.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With --claim, where the old location is lost: what it committed since is DOUBLED."
        ),
    ] = False,
    allow_reemit: Annotated[
        bool,
        typer.Option(
            "--allow-reemit", help="With --claim: what was committed after the savepoint stays, and is written again."
        ),
    ] = False,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state",
            help="Hooks' states and source positions that the query does not take any more are left behind.",
        ),
    ] = False,
    shuffle_partitions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Give the state so many partitions, with Spark's own repartition.", show_default=False
        ),
    ] = None,
    query_stopped: Annotated[
        bool,
        typer.Option(
            "--query-stopped",
            help="The query was stopped, and no other restore is at work, though their processes run or can't be seen.",
        ),
    ] = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a new checkpoint location from a savepoint.

    With --claim stop the query first. It can be killed at any moment, and is finished by the same command.
    """
    if claim is no_claim:
        raise typer.BadParameter(f"say which{' one' if claim else ''}: --claim or --no-claim")
    if no_claim and (force or allow_reemit):
        raise typer.BadParameter("--force and --allow-reemit are of --claim: a copy leaves the query alone")
    given = options_given(option, options_file)
    request = Request(
        claim, force, allow_reemit, allow_non_restored_state, shuffle_partitions, query_stopped, given, yes
    )
    with reporting(output) as report, hiding(secrets_of(given)):
        place = CheckpointLocation(location)
        place.must_be_local("barrier restore")
        savepoint = read(saved)
        with held(savepoint):
            savepoint.verify()
            _Restore(savepoint, place, request, report).run()


class _Restore:
    """One restore."""

    def __init__(self, savepoint: Savepoint, location: CheckpointLocation, request: Request, report: Report) -> None:
        self._savepoint = savepoint
        self._location = location
        self._request = request
        self._report = report
        self._saved = savepoint.ledger()
        self._new = NewLocation(location, savepoint, request.claim)
        self._old = OldPlace(savepoint, location)

    def run(self) -> None:
        saved, request, report = self._savepoint, self._request, self._report
        if request.claim:
            self._old.note_what_is_there()
        else:
            self._refuse_where_the_query_goes_on()
        anew = refuse_unless_free(self._location, saved, request.claim, self._old.closed())
        if request.partitions is not None and not saved.stateful:
            raise LocationError(
                "NO_STATE",
                f"the query of {saved.path} keeps no state: there is nothing that --shuffle-partitions could cut anew",
                savepoint=saved.path,
            )
        report.say(f"Checkpoint {saved.checkpoint} of query {saved.query}, up to micro-batch {saved.batch}.")
        if anew:
            report.say(
                f"{self._location.path} was restored of this savepoint, and no query has begun there: made anew."
            )
        if request.partitions is not None:
            report.say(f"The state gets {request.partitions} partitions: it had {saved.partitions or 'unknown'}.")
        report.facts.update(
            savepoint=saved.path,
            id=saved.id,
            location=self._location.path,
            origin=saved.location,
            checkpoint=saved.checkpoint,
            batch=saved.batch,
            claim=request.claim,
            partitions=request.partitions,
            emitted=[],
        )
        try:
            if request.claim:
                self._claim()
            else:
                self._copy()
        except BaseException:
            self._tell_what_is_left()
            raise
        finally:
            self._new.drop()
        report.say(f"restored: start the query with {self._location.path} as its checkpointLocation")

    # -- a copy -------------------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        report, saved = self._report, self._savepoint
        report.say(
            "A copy, with transactional ids of its own (a transactionalIdPrefix that the query sets must be a new one). What "
            f"comes after micro-batch {saved.batch} it writes, too: give it an output of its own, unless that is meant."
        )
        report.confirm(self._request.yes)
        self._refuse_where_the_query_goes_on()
        self._new.copy()
        report.facts["query"] = self._new.give_new_identity()
        self._repartition()
        self._refuse_where_the_query_goes_on()  # it may have been claimed since
        allowed = self._request.allow_non_restored
        ledger = begin_copy(self._saved, self._location.path, saved.id, saved.checkpoint, allowed)
        self._new.finish(ledger, stopped=self._request.query_stopped)

    def _refuse_where_the_query_goes_on(self) -> None:
        if self._old.goes_on_here():
            raise LocationError(
                "LOCATION_CLAIMED",
                f"{self._location.path} is where the query itself goes on (`barrier restore --claim`): with a copy here it "
                "would be nowhere. Name another place for the copy; --claim again makes this one anew",
                path=self._location.path,
            )

    # -- the query itself ---------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        request, report, saved = self._request, self._report, self._savepoint
        report.facts["query"] = saved.query
        origin = self._old.location
        lost = self._old.lost()
        if lost is not None:
            if not request.force:
                raise lost
            report.say(
                str(lost),
                f"--force: what the query has committed since checkpoint {saved.checkpoint} is written AGAIN: DOUBLED, and "
                "nobody can say how much. If it still runs somewhere, two queries have one identity: stop it first.",
            )
            report.confirm(request.yes)
            self._prepare()
            position = begins_far_above(saved.position, int(SystemClock().now() * 1000))
            self._begin_here(position, closed=lost.condition == "CLAIMED_PLACE_GONE")
            return
        journal = load_journal(origin)
        moved = journal.ledger.moved
        if moved is not None:
            if (moved.location, moved.savepoint) != (self._location.path, saved.id):
                raise moved_on(journal.ledger)
            report.say(f"{origin.path} was closed already (journal entry {moved.entry}): what is left to do is done.")
            with alone(origin):
                self._prepare()
                self._begin_here(begins_at(moved.entry, journal.ledger, self._saved, saved.checkpoint))
            return
        self._close(origin, journal)

    def _close(self, origin: CheckpointLocation, journal: Journal) -> None:
        """R2 to R4, and `moved`, in the old journal; then the new one."""
        request, report, ledger = self._request, self._report, journal.ledger
        run = recorded_run(ledger)
        begun = ledger.rewinding
        if begun is not None and begun.moving is None:
            raise LocationError(
                "REWIND_BEGUN",
                f"a rewind was begun at {origin.path} (journal entry {begun.token}) and is not done: finish it first (`barrier "
                "rewind LOCATION --resume`), and take a new savepoint",
                rewind=begun.token,
            )
        for stands in (
            rewind_at_work(begun, request.query_stopped) if begun is not None else None,
            # Its state stores may live on in its driver: what they write late is at the old place, and read by nobody.
            None if request.query_stopped else query_at_work(origin, run, False),
        ):
            if stands is not None:
                raise stands
        emitted = self._emitted(ledger)
        self._tell(origin, ledger, emitted)
        if (emitted or self._forgotten(ledger)) and not request.allow_reemit:
            raise _reemission(self._savepoint, emitted, self._older(ledger))
        report.confirm(request.yes)
        self._prepare()
        sink = recorded_sink(run, origin, request.given)
        try:
            rewinder = Rewinder(journal, sink, logs_of(origin), origin.query_id(), run.prefix)
            body: dict[str, Any] = {
                MOVING: moving(self._location, self._savepoint),
                "process": this_process(),
            }
            with alone(origin):
                if begun is None:
                    rewinder.begin(Preview(None, -1, [], [], None), body)
                else:
                    now = journal.load().rewinding
                    if now is None or now.token != begun.token:
                        raise LocationError(
                            "LOCATION_BUSY",
                            f"the restore that was begun at {origin.path} (journal entry {begun.token}) was given up "
                            "meanwhile, and the query may have gone on: say the same command again",
                            position=journal.ledger.position,
                        )
                    rewinder.again(body)
                refuse_unless_free(self._location, self._savepoint, True)  # a job may have been started there too early
                self._savepoint.must_be_whole()
                entry = rewinder.move(self._location.path, self._savepoint.id, self._savepoint.checkpoint)
                faults.reach("restore.moved")
                self._begin_here(begins_at(entry, journal.ledger, self._saved, self._savepoint.checkpoint))
        finally:
            sink.close()

    def _tell_what_is_left(self) -> None:
        """A claim ended before its end: how the old place stands by its journal, and what to say next."""
        origin = self._old.location
        if origin.path == self._location.path:
            return
        try:
            ledger = load_journal(origin).ledger
            made = load_journal(self._location).ledger.restored
        except (JournalError, LocationError, OSError):
            return
        again = f"`barrier restore {self._savepoint.path} {self._location.path} --claim`, with the same options"
        if made is None and self._old.closed() and not self._old.arrived():
            self._report.complain(
                f"{origin.path} is closed for ever, and {self._location.path} is not made yet: say the same command again "
                f"({again}). Start no query before: it would begin as a new one"
            )
        elif ledger.rewinding is not None and ledger.rewinding.moving is not None:
            self._report.complain(
                f"{origin.path} is closed for now, and nothing is restored: say the same command again ({again}), or give it "
                f"up with `barrier rewind {origin.path} --resume`"
            )

    def _emitted(self, ledger: Ledger) -> Sequence[CheckpointRecord]:
        """What is committed, or may be, and not in the savepoint."""
        later = [c for _, c in sorted(ledger.checkpoints.items()) if c.id > self._savepoint.checkpoint]
        return [c for c in later if c.rows or not c.settled]

    def _forgotten(self, ledger: Ledger) -> bool:
        """The old journal does not hold the savepoint's checkpoint any more: it is too old, was rewound behind or put back."""
        return self._older(ledger) or not holds(ledger, self._saved, self._savepoint.checkpoint)

    def _older(self, ledger: Ledger) -> bool:
        """The old journal is not as long as it was for the savepoint: it was put back from a backup of before."""
        return ledger.position < self._savepoint.position

    def _tell(self, origin: CheckpointLocation, ledger: Ledger, emitted: Sequence[CheckpointRecord]) -> None:
        report = self._report
        report.say(
            f"{origin.path} is closed for ever: a query that runs or starts there stops, and says where it went."
        )
        undecided = ledger.undecided()
        if undecided:
            numbers = batches_text([record.batch for record in undecided])
            report.say(f"Micro-batches {numbers} are prepared there, not decided: aborted, and written anew.")
        for found in emitted:
            state = "committed" if found.settled else "decided, perhaps committed"
            report.say(
                f"Checkpoint {found.id} (micro-batches {batches_text(found.batches)}, {found.rows} rows) is {state}, and "
                f"written AGAIN. Output: {output_text(found.output)}"
            )
        if self._older(ledger):
            report.say(
                f"The journal there ends at entry {ledger.position}, and had {self._savepoint.position} when the savepoint was "
                "taken: it was put back from an older backup. What it has forgotten and is not in the savepoint is written "
                "AGAIN, and can't be named."
            )
        elif self._forgotten(ledger):
            report.say(
                f"The journal there does not hold checkpoint {self._savepoint.checkpoint} any more (retainedCheckpoints, a "
                "rewind behind it, or a backup that was put back): what it has forgotten is written AGAIN, too, and can't be "
                "named."
            )
        report.facts["emitted"] = [
            {"checkpoint": c.id, "batches": list(c.batches), "rows": c.rows, "settled": c.settled, "output": c.output}
            for c in emitted
        ]

    # -- the new place ------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._new.copy()
        self._repartition()

    def _repartition(self) -> None:
        if self._request.partitions is not None:
            self._report.facts["repartitioned"] = repartition(self._new.draft, self._request.partitions)

    def _begin_here(self, position: int, closed: bool = True) -> None:
        saved, request = self._savepoint, self._request
        allowed = request.allow_non_restored
        ledger = begin_claimed(self._saved, self._location.path, saved.id, saved.checkpoint, allowed, position)
        self._new.finish(ledger, closed, request.query_stopped)


def _reemission(saved: Savepoint, emitted: Sequence[CheckpointRecord], older: bool) -> StoreError:
    rows = sum(each.rows for each in emitted)
    where = "; ".join(f"checkpoint {each.id}: {output_text(each.output)}" for each in emitted[-MOST_NAMED:])
    instead = f", or take a new savepoint of {saved.location}, and restore that"
    if older:
        instead = (
            f". {saved.location} was put back from a backup that is older than the savepoint: a query that goes on there, or "
            "from a new savepoint of it, writes AGAIN even what the savepoint holds as committed"
        )
    return StoreError(
        "OUTPUT_COMMITTED",
        f"{rows} rows of {len(emitted)} checkpoints after {saved.checkpoint} are committed, or may be, and would be written "
        f"AGAIN ({where or 'the journal has forgotten which'}): say --allow-reemit{instead}",
        rows=rows,
        checkpoints=[each.id for each in emitted],
    )
