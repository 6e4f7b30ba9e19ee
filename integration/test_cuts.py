"""Graphs of queries on a real broker: every checkpoint behind a join holds exactly what the origin had at one barrier."""

from __future__ import annotations

import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connector.kafka.client.config import ClientConfig
from connector.kafka.client.topics import Partition
from connector.kafka.marks import barrier_topic
from connector.kafka.sink.injector import Injector
from connector.kafka.source.alignment import aim
from connector.kafka.source.alignment.outlook import Outlook
from integration.broker import Cluster
from integration.cycles import Anomaly, Transaction, check_serializable
from integration.dag import Stage, write_rows
from integration.driver_process import Faults
from transactional import faults
from transactional.coordinator import decision, planning
from transactional.errors import StoreError
from transactional.faults import InjectedFault

ACCOUNTS = 6

POINTS = [point for point in faults.POINTS if point not in ("journal.created", "abort.journalled")]


class Origin:
    """A topic that a plain producer writes, with injected barriers. Its rows are transfers: number, from, to."""

    def __init__(self, kafka: Cluster, name: str) -> None:
        self.topic = f"{name}-{uuid.uuid4().hex[:8]}"
        self.barriers, self.servers = f"{self.topic}-marks", kafka.bootstrap_servers
        kafka.create_topic(self.topic, partitions=2)
        kafka.create_topic(self.barriers, partitions=1)
        self.rows: list[str] = []
        self.upto: dict[int, int] = {}
        self._chance = random.Random(name)
        self._injector = Injector(ClientConfig("test", {"bootstrap.servers": self.servers}), self.topic, self.barriers)

    def __enter__(self) -> Origin:
        self._injector.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._injector.__exit__()

    def feed(self, rows: int) -> None:
        """Write transfers, and a barrier behind them."""
        new = [
            f"{len(self.rows) + number} {' '.join(map(str, self._chance.sample(range(ACCOUNTS), 2)))}"
            for number in range(rows)
        ]
        write_rows(self.servers, self.topic, [(row.split()[0], row) for row in new])
        self.rows += new
        mark = self._injector.inject()
        if mark is not None:
            self.upto[mark.checkpoint.checkpoint] = len(self.rows)

    def before(self, mark: Mapping[str, Any]) -> list[str]:
        """The transfers that a checkpoint contains by its lineage."""
        [number] = [barrier for name, barrier in mark["lineage"].items() if name.startswith(self.topic)]
        return self.rows[: self.upto[number]]


def debit(topic: str, value: str) -> list[tuple[str, str]]:
    number, source, _ = value.split()
    return [(source, f"debit {source} {number}")]


def credit(topic: str, value: str) -> list[tuple[str, str]]:
    number, _, target = value.split()
    return [(target, f"credit {target} {number}")]


def as_it_is(topic: str, value: str) -> list[tuple[str, str]]:
    return [(value.split()[1], value)]


def bookings(transfers: list[str]) -> Counter[str]:
    """What A and B make of them."""
    return Counter(value for transfer in transfers for book in (debit, credit) for _, value in book("", transfer))


@dataclass
class Diamond:
    """A and B read S; C joins what they write; D joins that with S again."""

    s: Origin
    a: Stage
    b: Stage
    c: Stage
    d: Stage
    faults: Faults

    @property
    def stages(self) -> tuple[Stage, Stage, Stage, Stage]:
        return self.a, self.b, self.c, self.d

    def divide(self, *, agrees: bool = True) -> None:
        """Give C and D a source for each input."""
        for stage in (self.c, self.d):
            stage.divided, stage.agrees = True, agrees
            stage.__post_init__()
        self.d.inputs = [self.c, self.s]
        self.d.__post_init__()

    def check(self, least: int) -> None:
        """Every checkpoint of C and of D holds what S had at its barrier, each row once; and all of S is there in the end."""
        for stage, also in ((self.c, False), (self.d, True)):
            contents = list(stage.contents(exact=False))
            assert all(mark["exact"] for mark, _ in contents)
            for mark, rows in contents:
                transfers = self.s.before(mark)
                assert Counter(rows) == bookings(transfers) + Counter(transfers if also else []), mark
            assert len(contents) >= least
            assert self.s.before(contents[-1][0]) == self.s.rows

    def check_order(self) -> None:
        """Reads of C's checkpoints fit a serial order of the transfers.

        Kafka orders the rows of a partition only, so A and B may book transfers of different partitions in different orders: a
        list is read in the order of the transfers' numbers.
        """
        written = [
            (row, {(book, key): value for book in (debit, credit) for key, value in book("", row)})
            for row in self.s.rows
        ]
        transactions = [Transaction(f"transfer {row}", appends=appends) for row, appends in written]
        lists = {key for _, appends in written for key in appends}
        for mark, rows in self.c.contents():
            found: dict[Any, list[str]] = defaultdict(list)
            for row in rows:
                side, account, _ = row.split()
                found[debit if side == "debit" else credit, account].append(row)
            reads = {key: tuple(sorted(found[key], key=lambda row: int(row.split()[2]))) for key in lists}
            transactions.append(Transaction(f"checkpoint {mark['checkpoint']}", reads=reads))
        check_serializable(transactions)


@pytest.fixture
def origin(kafka: Cluster) -> Iterator[Origin]:
    with Origin(kafka, "s") as found:
        yield found


@pytest.fixture
def diamond(kafka: Cluster, tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch) -> Iterator[Diamond]:
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))
    few = {"maxOffsetsPerTrigger": "5"}
    a, b = Stage(kafka, tmp_path, "a", [origin], debit, options=few), Stage(kafka, tmp_path, "b", [origin], credit)
    c = Stage(kafka, tmp_path, "c", [a, b], as_it_is, options=few)
    d = Stage(kafka, tmp_path, "d", [c, origin], as_it_is)
    yield Diamond(origin, a, b, c, d, Faults(tmp_path / "faults"))
    Stage.bury()


def test_a_join_holds_exactly_what_the_origin_had_at_a_barrier(diamond: Diamond) -> None:
    for rows in (5, 3, 8):
        diamond.s.feed(rows)
    diamond.a.run()
    diamond.b.run(1)
    diamond.c.run()
    diamond.d.run()
    assert len(diamond.c.marks()) == 1, "it was read in several steps"
    [(mark, found)] = diamond.c.contents()
    assert Counter(found) == bookings(diamond.s.rows[:5])
    assert diamond.s.before(mark) == diamond.s.rows[:5]
    for stage in diamond.stages:
        stage.run()
    diamond.check(3)
    diamond.check_order()


@pytest.mark.parametrize(
    ("seed", "divided"),
    [
        (1, True),
        *(
            pytest.param(seed, way, marks=pytest.mark.matrix)
            for seed in range(1, 12)
            for way in (False, True)
            if (seed, way) != (1, True)
        ),
    ],
)
def test_a_join_is_right_whoever_dies_at_any_moment(diamond: Diamond, seed: int, divided: bool) -> None:
    """With one source for both inputs, or with a source for each (``divided``), as a stream-stream join has."""
    if divided:
        diamond.divide()
    chance = random.Random(seed)
    deaths = 0
    for _ in range(12):
        diamond.s.feed(chance.randint(1, 9))
        for stage in diamond.stages:
            if chance.random() < 0.4:
                continue
            if chance.random() < 0.5:
                diamond.faults.arm(chance.choice(POINTS), "raise")
            try:
                stage.run(chance.randint(1, 3), error=chance.random() < 0.5)
            except (InjectedFault, StoreError):
                deaths += 1
            diamond.faults.reset()
    for stage in diamond.stages:
        stage.run()
    diamond.check(3)
    diamond.check_order()
    assert deaths


def feed_and_run(diamond: Diamond, rounds: int = 4) -> None:
    """A is ahead of B now and then, and the other way round."""
    for number in range(rounds):
        diamond.s.feed(7)
        diamond.a.run(2 * (number % 3))
        diamond.b.run((number + 1) % 3)
        diamond.c.run(4)


@pytest.mark.matrix
def test_checkpoints_without_alignment_are_torn(diamond: Diamond) -> None:
    """What the alignment prevents, with the same queries: the check finds it."""
    diamond.c.follows = False
    diamond.c.__post_init__()
    feed_and_run(diamond)
    with pytest.raises(Anomaly, match=r"a cycle|another read has"):
        diamond.check_order()


@pytest.mark.matrix
def test_checkpoints_of_several_sources_that_do_not_agree_are_torn(
    diamond: Diamond, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where each source of C follows barriers, but for itself. Otherwise it is refused (`NOT_ALIGNED`)."""
    for module in (planning, decision):
        monkeypatch.setattr(module, "check_schedule", lambda *_, **__: None)
    diamond.divide(agrees=False)
    feed_and_run(diamond)
    with pytest.raises(Anomaly, match=r"a cycle|another read has"):
        diamond.check_order()


@pytest.mark.matrix
def test_tracked_checkpoints_hold_at_least_what_their_barrier_had(diamond: Diamond) -> None:
    diamond.c.with_options(alignment="at-least-once")
    feed_and_run(diamond)
    for mark, rows in diamond.c.contents(exact=False):
        if any(name.startswith(diamond.s.topic) for name in mark["lineage"]):
            assert not bookings(diamond.s.before(mark)) - Counter(rows)
    for stage in (diamond.a, diamond.b, diamond.c):
        stage.run()
    *_, (mark, rows) = diamond.c.contents()
    assert (diamond.s.before(mark), Counter(rows)) == (diamond.s.rows, bookings(diamond.s.rows))


@pytest.mark.matrix
def test_unaligned_checkpoints_and_what_is_late_are_what_their_barrier_had(diamond: Diamond) -> None:
    diamond.c.with_options(alignment="unaligned")
    feed_and_run(diamond)
    for stage in (diamond.a, diamond.b, diamond.c):
        stage.run()
    *_, (mark, rows) = diamond.c.contents()
    assert (diamond.s.before(mark), Counter(rows)) == (diamond.s.rows, bookings(diamond.s.rows))
    diamond.check_order()  # of those that are exact


@pytest.mark.matrix
def test_a_mark_that_lies_too_early_is_found(diamond: Diamond, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_of = barrier_topic.stable_ends

    def too_early(topic: str, *more: Any) -> tuple[dict[str, str], dict[Partition, int]]:
        ids, ends = ends_of(topic, *more)
        if topic != diamond.b.topic:
            return ids, ends
        return ids, {partition: max(0, end - 2) for partition, end in ends.items()}  # a row, and the marker behind it

    monkeypatch.setattr(barrier_topic, "stable_ends", too_early)
    feed_and_run(diamond)
    with pytest.raises(Anomaly, match=r"a cycle|another read has"):
        diamond.check_order()


@pytest.mark.matrix
def test_a_channel_that_is_read_past_its_mark_is_found(diamond: Diamond, monkeypatch: pytest.MonkeyPatch) -> None:
    capped: Callable[..., Mapping[Partition, int]] = aim._capped

    def too_far(outlook: Outlook, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        ends = capped(outlook, targets)
        return {p: outlook.visible[p] if p.topic == diamond.a.topic else end for p, end in ends.items()}

    monkeypatch.setattr(aim, "_capped", too_far)
    feed_and_run(diamond)
    with pytest.raises(Anomaly, match=r"a cycle|another read has"):
        diamond.check_order()
