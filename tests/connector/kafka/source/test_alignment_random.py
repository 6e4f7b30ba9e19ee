"""Random queries upstream, and one that follows them through restarts with other options: what it calls exact is the truth."""

from __future__ import annotations

import random
from typing import Any

import pytest

from connector.kafka.source.alignment import alignment
from tests.connector.kafka.source.fake_brokers import FakeBrokers
from tests.connector.kafka.source.fake_marks import FakeReaders, Upstream
from tests.connector.kafka.source.fake_query import Query

GRAPHS = [
    {"a": "s", "b": "s", "c": "t"},
    {"a": "s", "b": "st", "c": "t"},
    {"a": "s", "b": "t", "c": "st"},
    {"a": "st", "b": "st", "c": "u"},
    {"a": "s", "b": "s"},
]
"""Which origins the channels' queries follow."""


class World:
    """Channels whose queries go on at random, each row with the barriers that it belongs to."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.origins = chance, chance.choice(GRAPHS)
        brokers = FakeBrokers({})
        self.channels = {name: Upstream(brokers, name, chance.randint(1, 3)) for name in self.origins}
        self.now = dict.fromkeys("stu", 0)
        self.at = {name: dict.fromkeys(origins, 0) for name, origins in self.origins.items()}
        self.ends: dict[tuple[str, int], dict[str, dict[str, int]]] = {}
        subscribe, barriers = ",".join(self.channels), ",".join(each.barriers for each in self.channels.values())
        readers = FakeReaders(*self.channels.values())
        self.query = Query(brokers, readers, subscribe=subscribe, alignOn=barriers, **self.options())

    def options(self) -> dict[str, str]:
        """Other limits, and another interval."""
        limit = self.chance.choice([{"maxOffsetsPerTrigger": str(self.chance.choice([1, 4, 50]))}, {}])
        return {**limit, **self.chance.choice([{"barrierInterval": "15s"}, {}])}

    def go_on_upstream(self) -> None:
        """One of the queries has written rows, and perhaps a mark."""
        name = self.chance.choice([*self.channels])
        channel = self.channels[name]
        for origin in self.now:
            self.now[origin] += self.chance.random() < 0.2
        channel.rows(*[self.chance.randint(0, 3) for _ in range(3)])
        if self.chance.random() < 0.7:
            for origin, barrier in self.at[name].items():
                self.at[name][origin] = self.chance.randint(barrier, max(barrier, self.now[origin]))
            exact = self.chance.random() < 0.85
            channel.mark({f"{origin}/1": at for origin, at in self.at[name].items()}, exact=exact)
            where = {str(n): log.last for n, log in channel.brokers.topics[name].items()}
            self.ends[name, channel.checkpoint] = {name: where}
            if self.chance.random() < 0.1:
                channel.records.append(channel.records[-1])  # a recovery has published it again
                channel.brokers.topics[channel.barriers][0].last += 1

    def follow(self) -> int:
        """Run micro-batches, and check each end; returns how many were exact."""
        found = 0
        for _ in range(self.chance.randint(1, 4)):
            end = self.query.ask()
            if end is None:
                break
            self.query.ranges(end)
            self.query.start = end
            found += self.check(end)
        return found

    def check(self, end: dict[str, Any]) -> bool:
        """An exact end is where the marks are that it names, and these agree; a barrier stands at exact ends only."""
        cut = end["cut"]
        if not cut["exact"]:
            assert end["barrier"] == self.barrier, "no barrier between two cuts"
            return False
        self.barrier = end["barrier"]
        assert {topic.removesuffix("-marks") for topic in cut["marks"]} == {*self.channels}
        lineages = [mark["lineage"] for mark in cut["marks"].values()]
        for lineage in lineages:
            assert lineage.items() <= cut["lineage"].items(), "the channels agree"
        for topic, mark in cut["marks"].items():
            name = topic.removesuffix("-marks")
            assert {name: end["topics"][name]} == self.ends[name, mark["checkpoint"]]
        return True

    barrier: dict[str, Any] | None = None


@pytest.mark.parametrize("seed", range(25))
def test_what_is_called_exact_is_where_marks_agree(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(alignment, "MOST", chance.choice([3, 20_000]))
    monkeypatch.setattr(alignment, "AT_ONCE", chance.choice([2, 1000]))
    world, exact = World(chance), 0
    for _ in range(120):
        for _ in range(chance.choice([1, 1, 1, 20])):
            world.go_on_upstream()
        if chance.random() < 0.2:
            world.query.run(**{"maxOffsetsPerTrigger": "1000", "barrierInterval": "0", **world.options()})
        exact += world.follow()
        world.query.clock.advance(chance.choice([0, 1, 20]))
    assert exact > 5
