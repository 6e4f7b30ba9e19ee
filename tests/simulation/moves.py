"""What an operator does: the query goes on at another location; in the end a copy of it writes on, or it is taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from connector.location.location import CheckpointLocation
from connector.location.log_rewind import LocationLogs, check_target
from connector.operations.adoption import Adoption
from connector.savepoints.manifest import Savepoint
from connector.savepoints.restore import Restore
from connector.savepoints.take import take
from connector.spark.recorded_sink import recorded_sink
from transactional.capabilities import KeepsEvidence
from transactional.errors import TwoPhaseCommitError
from transactional.rewind import Rewinder
from transactional.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Moves", "OneByOne"]

TIMEOUT = 10.0


class OneByOne:
    """Stands for a `concurrent.futures.ThreadPoolExecutor`: a run has one thread."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, act: Callable[[Any], Any], things: Iterable[Any]) -> Iterator[Any]:
        """Do something with each."""
        return iter([act(thing) for thing in things])


class Moves:
    """The savepoints of a run's query."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._saved: dict[str, str] = {}
        self.unfinished = ""  # Where a restore was begun that its operator still means to finish.
        self.taken: list[Savepoint] = []  # Beside the query, while it ran.
        self.back_to = -2  # The micro-batch after which rows are written again; -2 if none are.
        self.backups: list[tuple[str, dict[str, bytes]]] = []  # Locations, with their files as they were at a moment.
        self._number = 0

    def _folder(self) -> str:
        self._number += 1
        return f"/simulated/saved{self._number}"

    def take(self) -> None:
        """Take a savepoint of the query, which may run."""
        self.taken.append(take(self._world.place, self._folder(), timeout=TIMEOUT))
        self._world.see("a savepoint is taken")

    def move(self, origin: str) -> None:
        """Take a savepoint of a query that has stopped, and let it go on elsewhere."""
        saved = take(origin, self._folder(), timeout=TIMEOUT, newest=True)
        target = saved.path.replace("saved", "query")
        self._saved[target], self.unfinished = saved.path, target
        self.finish(target)

    def finish(self, target: str) -> None:
        """Run the command of an unfinished restore, again."""
        world = self._world
        try:
            restore = Restore(self._saved[target], CheckpointLocation(target), claim=True)
            if not restore.is_open:
                restore.run()
        except TwoPhaseCommitError as problem:
            if problem.condition in ("ORIGIN_NOT_AT_SAVEPOINT", "LOCATION_MOVED_ON"):  # the query has gone on elsewhere
                self._is_over(target)
            raise
        world.see("the query is moved")
        world.place = max(world.place, target, key=self._order)  # who comes late does not take it back
        self._is_over(target)

    def _order(self, place: str) -> int:
        return [*self._saved].index(place) if place in self._saved else -1

    def _is_over(self, target: str) -> None:
        if self.unfinished == target:
            self.unfinished = ""

    def follow(self, error: BaseException) -> None:
        """Finish the move that an error names."""
        assert isinstance(error, TwoPhaseCommitError)
        target = error.parameters["location"]
        if self._order(target) > self._order(self._world.place):
            self.unfinished = target

    def copy(self) -> None:
        """Restore a savepoint for a copy of the query: from here on all looks at this one."""
        world = self._world
        saved = world.choices.one_of(self.taken)
        target = saved.path.replace("saved", "copy")
        restore = Restore(saved.path, CheckpointLocation(target), claim=False)
        restore.run()
        world.see("a copy is made")
        world.place, self.back_to = target, saved.batch

    def back_up(self) -> None:
        """Keep the location as it is."""
        self.backups.append((self._world.place, dict(self._world.disk[self._world.place])))

    def can_be_put_back(self) -> bool:
        """Return whether there is a backup, and a store that can tell that it is older."""
        sink = self._world.sink
        keeps_ids = sink.newestCheckpoint is not TwoPhaseCommitSink.newestCheckpoint
        return (keeps_ids or issubclass(sink, KeepsEvidence)) and bool(self.backups)

    def put_back(self) -> None:
        """Let a location be as it was; the store of the rows stays as it is."""
        self._world.place, files = self._world.choices.one_of(self.backups)
        self._world.disk[self._world.place].clear()
        self._world.disk[self._world.place].update(files)
        self._world.see("a location is put back")

    def can_be_adopted(self) -> bool:
        """Return whether nothing was open when the location was backed up: what became of that only a person can say."""
        ledger = CheckpointLocation(self._world.place).journal().load()
        open_there = ledger.unsettled() or ledger.undecided() or ledger.voided or ledger.replay is not None
        return not open_there and ledger.rewinding is None and ledger.moved is None and ledger.accounted >= 0

    def adopt(self) -> None:
        """Accept a location that was put back: what it does not know of is written again."""
        world = self._world
        self.back_to = CheckpointLocation(world.place).journal().load().accounted
        Adoption(CheckpointLocation(world.place), claim=True).run()
        world.see("a location is adopted")

    def rewind(self, command: str = "c0", newest: bool = False) -> None:
        """Take the stopped query back to a checkpoint: what it has committed since is written again."""
        world, place = self._world, CheckpointLocation(self._world.place)
        world.did["rewind"] += 1
        journal = place.journal()
        ledger = journal.load()
        run, settled = ledger.newest_run, [each.id for each in ledger.checkpoints.values() if each.settled]
        if run is None or not settled:
            return
        with closing(recorded_sink(run, place, {"checkpointHooks": world.options["checkpointHooks"]})) as sink:
            rewinder = Rewinder(journal, sink, LocationLogs(place), place.query_id(), run.prefix)
            preview = rewinder.preview(settled[-1] if newest else world.choices.one_of(settled[::-1]))
            check_target(place, ledger, preview)
            if not newest:
                self.back_to = preview.batch
            rewinder.begin(preview, {"restoreTables": False, "allowReemit": True, "process": {"driver": command}})
            rewinder.finish()
        world.see("a query is rewound")

    def is_again(self) -> bool:
        """Return whether rows are written again: a rewind that was begun is finished, whoever dies."""
        ledger = CheckpointLocation(self._world.place).journal().load()
        return self.back_to > -2 and (ledger.rewinding is not None or ledger.accounted <= self.back_to)
