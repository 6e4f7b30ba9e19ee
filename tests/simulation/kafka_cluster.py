"""Three simulated brokers: they lead partitions, are paused, die, are replaced, and answer from what they knew before.

Replication, elections and what brokers know of them take time. Nothing runs by itself: whatever is due happens when somebody
asks a broker. Elections are clean, at least two replicas have every row, and no marker comes from outside: so nothing that was
acknowledged is lost, and every stop that says so is wrong.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.simulation.auditor import KEYS
from tests.simulation.kafka_log import Log, Record, RowLog

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["BROKERS", "TOPIC", "TRANSACTION_LOG", "Broker", "Cluster", "Place", "Transaction"]

BROKERS = 3
TOPIC, TRANSACTION_LOG = "out", "__transaction_state"
COORDINATORS = 2  # partitions of the transaction log
SESSION_SECONDS = 9.0  # after which a broker that is silent is replaced
LAG_SECONDS = 10.0  # after which a follower that is silent does not count
KILLED_SECONDS = 1.0  # after which a broker that is gone is replaced
NEWS_SECONDS = (0.0, 0.01, 0.5, 1.0)  # until a broker hears of an election
FETCH_SECONDS = (*[0.0] * 6, 0.02, 0.3)  # until followers have what a leader appends
LOADING_SECONDS = (0.0, 0.0, 0.5, 3.0)
APPEND_SECONDS = 5.0  # that a leader waits for its followers
REQUEST_SECONDS = 30.0  # that one broker waits for another
LEAST_IN_SYNC = 2

NONE, NOT_LEADER, TIMED_OUT, NOT_COORDINATOR, TOO_FEW = 0, 6, 7, 16, 19
LOADING, FENCED_EPOCH, INVALID_STATE, COORDINATOR_FENCED = 14, 47, 48, 52

Then = Callable[[int], None]
"""Called with the code of an append once it is replicated, or will not be."""


@dataclass(frozen=True)
class Transaction:
    """What a coordinator knows of a transactional id."""

    producer: int
    epoch: int
    state: str
    timeout_ms: int
    started: float = 0.0
    places: frozenset[int] = frozenset()

    def ending(self, commits: bool, above: int, now: float) -> Transaction:
        """Return it decided, `above` epochs higher: its markers come next. What is not open begins and ends at once."""
        becomes = replace(self, state="PrepareCommit" if commits else "PrepareAbort", epoch=self.epoch + above)
        return becomes if self.state == "Ongoing" else replace(becomes, started=now, places=frozenset())


class Place:
    """A partition with its replicas, as the controller knows it."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.epoch, self.leader = 0, number % BROKERS
        self.in_sync = set(range(BROKERS))
        self.logs: list[Any] = [RowLog() if name == TOPIC else Log() for _ in range(BROKERS)]
        self.waiting: list[tuple[Broker, int, int, float, Then]] = []
        self.has: dict[int, int] = {}
        """How far each follower has fetched from this leader."""
        self.fetched = 0.0
        """When the followers have what was appended last."""
        self.settled = False
        """Whether all replicas have all, and know it."""


View = dict[tuple[str, int], tuple[int, int]]
"""Leaders and their epochs, by topic and partition, as a broker has heard of them."""


class Broker:
    """One broker: whether it runs, and what it has heard."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.until = 0.0
        self.slow_until = 0.0
        self.down = False
        self.view: View = {}
        self.news: list[tuple[float, View]] = []
        self.known: dict[int, dict[str, Transaction]] = {}
        """By partition of the transaction log that it coordinates, and has loaded: the transactions."""
        self.pending: set[str] = set()

    def leads(self, place: Place) -> bool:
        """Whether it believes so."""
        return self.view[place.name, place.number][0] == self.number

    def epoch(self, place: Place) -> int:
        """The leader's epoch that it knows of."""
        return self.view[place.name, place.number][1]


class Cluster:
    """The brokers, and a controller that replaces them."""

    def __init__(self, world: World) -> None:
        self._world = world
        # The finalized ``transaction.version``: from 2 on, the end of a transaction raises its epoch.
        self.level = world.choices.one_of((2, 2, 1))
        # Whether a marker can be left out for good (KAFKA-20734).
        self.skips = world.choices.one_of((False, False, True))
        # By partition and producer id: whether the marker that was left out commits.
        self.skipped: dict[tuple[int, int], bool] = {}
        self.rows = [Place(TOPIC, number) for number in range(KEYS)]
        self.coordination = [Place(TRANSACTION_LOG, number) for number in range(COORDINATORS)]
        self.places = {(place.name, place.number): place for place in (*self.coordination, *self.rows)}
        self.brokers = [Broker(number) for number in range(BROKERS)]
        self.last_producer = 0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._events = 0
        self._read = [0] * KEYS
        self._scan = 0.0
        for broker in self.brokers:
            self._hear(broker, self._image())

    # -- time -------------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The brokers' clock."""
        return self._world.time

    def at(self, moment: float, act: Callable[[], object]) -> None:
        """Let something happen at a moment."""
        self._events += 1
        heapq.heappush(self._due, (moment, self._events, act))

    def advance(self) -> None:
        """Do what is due: news, elections, markers, replication; then let readers read."""
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
        for broker in self.brokers:
            while broker.news and broker.news[0][0] <= self.now and self.is_awake(broker):
                self._hear(broker, broker.news.pop(0)[1])
        for place in self.places.values():
            if not place.settled:
                self._replicate(place)
        if self.now >= self._scan:
            self._scan = self.now + 1.0
            self._expire_old()

    def is_awake(self, broker: Broker) -> bool:
        """Whether a broker runs, and does not stand still."""
        return not broker.down and broker.until <= self.now

    def _let_read(self, place: Place) -> None:
        if place.leader >= 0:
            log = place.logs[place.leader]
            stable = log.stable() if log.high > self._read[place.number] else 0
            if stable > self._read[place.number]:
                rows = [row for _, row in log.visible(self._read[place.number])]
                begin, self._read[place.number] = self._read[place.number], stable
                if rows:
                    self._world.auditor.appear(rows, "", begin)

    # -- who leads --------------------------------------------------------------------------------------------------------

    def _image(self) -> View:
        return {key: (place.leader, place.epoch) for key, place in self.places.items()}

    def _tell_all(self) -> None:
        image = self._image()
        for broker in self.brokers:
            delay = self._world.choices.one_of(NEWS_SECONDS)
            after = broker.news[-1][0] if broker.news else 0.0
            broker.news.append((max(self.now, broker.until, after) + delay, image))

    def _hear(self, broker: Broker, view: View) -> None:
        before, broker.view = broker.view, view
        for key, place in self.places.items():
            if view[key] == before.get(key):
                continue
            place.settled = False
            if broker.leads(place):
                place.logs[broker.number].lead(broker.epoch(place))
                if place.name == TRANSACTION_LOG:
                    self._load(broker, place, bool(before))
            elif place.name == TRANSACTION_LOG:
                broker.known.pop(place.number, None)

    def elect(self, place: Place) -> None:
        """Let another replica in sync lead, if there is one; else the one that led, if it lives, or none."""
        able = [n for n in sorted(place.in_sync) if self.is_awake(self.brokers[n])]
        others = [n for n in able if n != place.leader] or able
        chosen = others[self._world.choices.below(len(others))] if others else -1
        if chosen < 0:
            self.at(self.now + 1.0, lambda: self.elect(place) if place.leader < 0 else None)
        if chosen != place.leader:
            place.leader, place.epoch, place.has = chosen, place.epoch + 1, {}
            self._world.note(f"{place.name}-{place.number} is led by {chosen} at epoch {place.epoch}")
            self._tell_all()

    def freeze(self, broker: Broker, seconds: float) -> None:
        """Let a broker stand still."""
        broker.until = max(broker.until, self.now + seconds)
        broker.news = [(max(moment, broker.until + 0.01), view) for moment, view in broker.news]
        self.at(self.now + SESSION_SECONDS, lambda: self._replace(broker))
        self.at(self.now + LAG_SECONDS, lambda: self._leave(broker))

    def kill(self, broker: Broker, seconds: float) -> None:
        """End a broker, and start it again after this time."""
        broker.down = True
        broker.known, broker.pending = {}, set()
        self.at(self.now + KILLED_SECONDS, lambda: self._replace(broker))
        self.at(self.now + KILLED_SECONDS, lambda: self._leave(broker))
        self.at(self.now + seconds, lambda: self._start(broker))

    def slow(self, broker: Broker, seconds: float) -> None:
        """Let a broker fetch nothing from leaders."""
        broker.slow_until = self.now + seconds
        self.at(self.now + LAG_SECONDS, lambda: self._leave(broker))

    def _start(self, broker: Broker) -> None:
        broker.down = False
        broker.until = 0.0
        broker.news = []
        self._hear(broker, {key: (-1, epoch) for key, (_, epoch) in self._image().items()})
        for place in self.places.values():
            if place.leader < 0:
                self.elect(place)
        self._hear(broker, self._image())

    def _replace(self, broker: Broker) -> None:
        if not self.is_awake(broker):
            for place in self.places.values():
                if place.leader == broker.number:
                    self.elect(place)

    def _leave(self, broker: Broker) -> None:
        """Take a silent follower out of sync, where its leader can tell."""
        if not self.is_awake(broker) or broker.slow_until > self.now:
            for place in self.places.values():
                if place.leader not in (-1, broker.number) and self.is_awake(self.brokers[place.leader]):
                    place.in_sync.discard(broker.number)
                    place.settled = False

    def _replicate(self, place: Place) -> None:
        leader = self.leader_of(place)
        if leader is not None and self.now >= place.fetched:
            log = place.logs[leader.number]
            for other in self.brokers:
                if other is leader or not self.is_awake(other) or other.slow_until > self.now:
                    continue
                if other.epoch(place) == place.epoch:
                    place.logs[other.number].follow(log)
                    place.has[other.number] = log.end
                    place.in_sync.add(other.number)
            place.has[leader.number] = log.end
            if len(place.in_sync) >= LEAST_IN_SYNC:
                log.high = max(log.high, min(place.has.get(n, 0) for n in place.in_sync))
            all_there = all(each.high == each.end == log.end for each in place.logs)
            place.settled = all_there and len(place.in_sync) == BROKERS
        if place.waiting:
            self._answer_waiting(place)
        if place.name == TOPIC:
            self._let_read(place)

    def _answer_waiting(self, place: Place) -> None:
        waiting, place.waiting = place.waiting, []
        for each in waiting:
            broker, epoch, offset, limit, then = each
            frozen = not broker.down and not self.is_awake(broker)
            if frozen and self.now <= limit + REQUEST_SECONDS:
                place.waiting.append(each)
            elif broker.down or (not frozen and broker.epoch(place) != epoch):
                then(NOT_LEADER)
            elif not frozen and place.logs[broker.number].high > offset:
                then(NONE)
            elif self.now > limit:
                then(TIMED_OUT)
            else:
                place.waiting.append(each)

    def append(self, broker: Broker, place: Place, entry: Any, then: Then) -> None:
        """Append an entry as a leader, and go on when enough followers have it."""
        self.append_all(broker, place, [entry], then)

    def append_all(self, broker: Broker, place: Place, entries: Sequence[Any], then: Then) -> None:
        """Append entries; go on when enough followers have the whole log."""
        if len(place.in_sync) < LEAST_IN_SYNC:
            return then(TOO_FEW)
        place.settled = False
        epoch, log = broker.epoch(place), place.logs[broker.number]
        for entry in entries:
            log.append(epoch, entry)
        place.fetched = self.now + self._world.choices.one_of(FETCH_SECONDS)
        place.waiting.append((broker, epoch, log.end - 1, self.now + APPEND_SECONDS, then))
        return None

    # -- coordinators -----------------------------------------------------------------------------------------------------

    def coordination_of(self, name: str) -> Place:
        """The partition of the transaction log that a transactional id belongs to."""
        return self.coordination[zlib.crc32(name.encode()) % COORDINATORS]

    def _load(self, broker: Broker, place: Place, slowly: bool) -> None:
        broker.known.pop(place.number, None)
        delay = self._world.choices.one_of(LOADING_SECONDS) if slowly else 0.0
        epoch = broker.epoch(place)
        self.at(self.now + delay, lambda: self._loaded(broker, place, epoch))

    def _loaded(self, broker: Broker, place: Place, epoch: int) -> None:
        if broker.down or broker.epoch(place) != epoch or not broker.leads(place):
            return
        if not self.is_awake(broker):
            self.at(broker.until, lambda: self._loaded(broker, place, epoch))
            return
        broker.known[place.number] = dict(entry for _, entry in place.logs[broker.number].entries)
        broker.pending = {name for name in broker.pending if self.coordination_of(name) is not place}
        self._end_loaded(broker, place, epoch, place.logs[broker.number].end)

    def _end_loaded(self, broker: Broker, place: Place, epoch: int, end: int) -> None:
        """Send the markers of what was ending, once enough followers know of it: Kafka's coordinator does not wait for that."""
        if broker.epoch(place) != epoch or not broker.leads(place) or place.number not in broker.known:
            return  # it was replaced, or killed
        if place.logs[broker.number].high < end:
            self.at(self.now + 0.1, lambda: self._end_loaded(broker, place, epoch, end))
            return
        for name, found in broker.known[place.number].items():
            if found.state.startswith("Prepare"):
                self.send_markers(broker, place, name, found)

    def skip(self, what: str, number: int, producer: int, commits: bool = False) -> None:
        """Note that a partition may never get a transaction's marker."""
        self._world.did["marker skipped"] += 1
        self._world.note(what)
        self.skipped[number, producer] = commits

    def coordinated(self, broker: Broker, place: Place) -> int:
        """Return NONE if a broker believes that it coordinates these transactions, else the code that it answers."""
        if not broker.leads(place):
            return NOT_COORDINATOR
        return NONE if place.number in broker.known else LOADING

    def change(self, broker: Broker, name: str, becomes: Transaction, then: Then) -> None:
        """Write a transaction's new state; it counts when it is replicated."""
        place = self.coordination_of(name)
        epoch = broker.epoch(place)
        broker.pending.add(name)

        def written(code: int) -> None:
            broker.pending.discard(name)
            if code == NONE and broker.epoch(place) == epoch and place.number in broker.known:
                broker.known[place.number][name] = becomes
                if becomes.state.startswith("Prepare"):
                    self.send_markers(broker, place, name, becomes)
            then(NOT_COORDINATOR if code == NOT_LEADER else code)

        self.append(broker, place, (name, becomes), written)

    def send_markers(self, broker: Broker, place: Place, name: str, ending: Transaction) -> None:
        """Send the markers of a transaction that ends, until all are written; then note that it has ended."""
        epoch, left = broker.epoch(place), set(ending.places)
        commits = ending.state == "PrepareCommit"

        def resigned() -> bool:
            return broker.down or not broker.leads(place) or broker.epoch(place) != epoch

        def ended() -> None:
            if resigned():
                return
            state = "CompleteCommit" if commits else "CompleteAbort"
            complete = replace(ending, state=state, places=frozenset())
            self.change(broker, name, complete, lambda code: self._again(broker, code, ended))

        def send(number: int) -> None:
            if resigned():
                return
            rows = self.rows[number]
            leader = self.brokers[broker.view[TOPIC, number][0]]

            def done(code: int) -> None:
                if code in (NONE, FENCED_EPOCH, COORDINATOR_FENCED):
                    left.discard(number)
                    if not left and code != COORDINATOR_FENCED:
                        ended()
                else:
                    self._again(broker, TIMED_OUT, lambda: send(number))

            if not self.is_awake(broker):
                self.at(broker.until, lambda: send(number))
            elif broker.view[TOPIC, number][0] < 0 or not self.is_awake(leader) or not leader.leads(rows):
                if self.skips and self._world.choices.below(4) == 3:
                    self.skip(f"the marker of {name} for {number} is skipped", number, ending.producer, commits)
                    done(NONE)
                else:
                    self._again(broker, TIMED_OUT, lambda: send(number))
            else:
                marker = Record(
                    leader.epoch(rows), ending.producer, ending.epoch, commits=commits, coordinator_epoch=epoch
                )
                self.mark(leader, rows, marker, done)

        if not left:
            ended()
        for number in sorted(left):
            send(number)

    def _again(self, broker: Broker, code: int, act: Callable[[], object]) -> None:
        if code not in (NONE, NOT_COORDINATOR) and not broker.down:
            self.at(self.now + 0.1, act)

    def write_skipped(self) -> None:
        """Write the markers that were left out, as an administrator does who knows how the transactions have ended."""
        for (number, producer), commits in list(self.skipped.items()):
            place = self.rows[number]
            leader = self.brokers[place.leader]
            if place.leader < 0 or not self.is_awake(leader):
                continue
            known = place.logs[leader.number].producers.get(producer)
            if known is not None and known.start >= 0:
                by = known.coordinator_epoch
                marker = Record(leader.epoch(place), producer, known.epoch, commits=commits, coordinator_epoch=by)
                self.mark(leader, place, marker, lambda _: None)
            del self.skipped[number, producer]

    def mark(self, leader: Broker, place: Place, marker: Record, then: Then) -> None:
        """Append a marker as a leader does, who refuses one of a producer or coordinator that was replaced."""
        known = place.logs[leader.number].producers.get(marker.producer)
        if known is not None and known.coordinator_epoch > marker.coordinator_epoch:
            return then(COORDINATOR_FENCED)
        if known is not None and known.epoch > marker.epoch:
            return then(FENCED_EPOCH)
        return self.append(leader, place, marker, then)

    def leader_of(self, place: Place) -> Broker | None:
        """The broker that leads, knows it, and runs."""
        broker = self.brokers[place.leader] if place.leader >= 0 else None
        ready = broker is not None and self.is_awake(broker) and broker.epoch(place) == place.epoch
        return broker if ready else None

    def newest(self) -> dict[str, Transaction]:
        """What the coordinators know of transactional ids; where none is ready, what the newest log says."""
        found: dict[str, Transaction] = {}
        for place in self.coordination:
            leader = self.leader_of(place)
            if leader is not None and self.coordinated(leader, place) == NONE:
                found.update(leader.known[place.number])
            else:
                log = max(place.logs, key=lambda each: (each.epochs[-1:] or [(-1, 0)], each.end))
                found.update(entry for _, entry in log.entries)
        return found

    def open_ids(self) -> dict[str, Transaction]:
        """Those of open transactions."""
        return {name: each for name, each in self.newest().items() if each.state == "Ongoing"}

    def verified(self, rows: Any) -> int:
        """Whether a partition belongs to the producer's open transaction: its leader asks before it appends the first row."""
        for each in self.newest().values():
            if each.producer == rows.producer:
                if each.epoch != rows.epoch:
                    return FENCED_EPOCH
                return NONE if each.state == "Ongoing" and rows.place in each.places else INVALID_STATE
        return INVALID_STATE

    def _expire_old(self) -> None:
        for name, found in self.open_ids().items():
            if found.started + found.timeout_ms / 1000 <= self.now:
                self.expire(name)

    def note_if_late(self) -> None:
        """Note a loss if the request that ends a transaction comes late: it is of an earlier attempt."""
        current = self._world.scheduler.current
        self._world.did["loss"] += current is not None and current.name == "network"

    def forget(self) -> None:
        """Note a loss if a coordinator may forget a transaction that it has confirmed."""
        self._world.did["loss"] += 1

    def expire(self, name: str) -> None:
        """Let a transaction's coordinator abort it, as it does after its timeout."""
        place = self.coordination_of(name)
        broker = self.leader_of(place)
        if broker is None or self.coordinated(broker, place) != NONE or name in broker.pending:
            return
        found = broker.known[place.number].get(name)
        if found is not None and found.state == "Ongoing":
            self._world.did["loss"] += 1
            self.change(broker, name, found.ending(False, 1, self.now), lambda _: None)
