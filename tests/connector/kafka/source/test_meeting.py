"""Several sources of one query: wherever it dies, its checkpoints close where all of them are at one cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from connector.kafka.marks.channel import Passed
from connector.kafka.source.alignment.cut import Cut
from connector.kafka.source.alignment.meeting import FOLDER, Meeting, Situation
from connector.kafka.source.read_options import parse_read_options
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest, source_lines
from tests.connector.kafka.source.fake_query import Offset, Query, through_text
from tests.connector.kafka.source.test_alignment_random import World
from transactional.barrier import SourceLine, cut_of, is_between_cuts, new_barriers
from transactional.errors import LocationError, OptionError, StoreError
from transactional.recovery import check_schedule

DRIVER = "SPARK_LOCAL_DIRS"


class Joined:
    """A query of several sources, as Spark drives them: one after the other, then ``offsets/N`` with all their ends."""

    def __init__(
        self, world: World, place: Path, reads: list[list[str]], options: dict[str, str], together: bool = True
    ) -> None:
        self.world, self.place, self.reads = world, place, reads
        self.location = CheckpointLocation(str(place))
        self.options = {"startingOffsets": "earliest", **options}
        if together:
            self.options["checkpointLocation"] = str(place)
        place.mkdir()
        self.lines: list[list[SourceLine]] = []
        self.checkpoints: list[int] = []
        self.restart()

    def restart(self, **options: str) -> None:
        """Another driver: nothing but the files is left."""
        if newest(self.location, "offsets") < 0 and not (self.place / "metadata").exists():
            (self.place / "metadata").write_text(json.dumps({"id": "the-query"}))
        self.options.update(options)
        barriers = ",".join(each.barriers for each in self.world.channels.values())
        brokers, readers = self.world.query.brokers, self.world.query.readers
        self.sources = [
            Query(brokers, readers, subscribe=",".join(topics), alignOn=barriers, **self.options)
            for topics in self.reads
        ]
        for index, source in enumerate(self.sources):
            source.clock = self.world.query.clock
            source.run()
            if self.lines:
                source.start = dict(self.lines[-1][index].offset or {})

    def trigger(self, limit: Any = None, dies_after: int | None = None) -> bool:
        """Run a micro-batch; return whether there was one. The driver may die after it has asked so many sources."""
        ends: list[Offset] = []
        for index, source in enumerate(self.sources):
            if index == dies_after:
                self.restart()
                return True
            ends.append(
                through_text(source.reader.latestOffset(source.start, limit or source.reader.getDefaultReadLimit()))
            )
        if dies_after == len(self.sources):
            self.restart()
            return True
        if all(end == source.start for end, source in zip(ends, self.sources, strict=True)):
            return False
        batch = len(self.lines)
        (self.place / "offsets").mkdir(exist_ok=True)
        (self.place / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *map(json.dumps, ends)]))
        self.lines.append(list(source_lines(self.location, batch)))
        for source, end in zip(self.sources, ends, strict=True):
            source.ranges(end)
            source.start = end
        lines, previous = self.lines[-1], self.lines[-2] if batch else None
        check_schedule(lines, (), None, query="the-query", previous=previous)
        if new_barriers(lines, previous) and not is_between_cuts(lines):
            self.checkpoints.append(batch)
        elif previous is not None and is_between_cuts(previous) and not is_between_cuts(lines):
            assert not any(line.ends_with_barrier for line in lines), "one of them has a barrier at this cut"
        return True

    def run(self, most: int = 500) -> None:
        """Run micro-batches until there is nothing to read."""
        for _ in range(most):
            if not self.trigger():
                return
        raise AssertionError("it does not come to an end")

    def check(self, batch: int) -> None:
        """At a checkpoint, each source is exactly at the marks of one cut."""
        lines = self.lines[batch]
        cut = cut_of(lines)
        assert cut is not None
        assert cut["exact"], cut
        marks = {json.dumps((line.cut or {})["marks"], sort_keys=True) for line in lines}
        assert len(marks) == 1
        for topic, mark in json.loads(marks.pop()).items():
            name = topic.removesuffix("-marks")
            for line in lines:
                if name in line.topics:
                    assert {name: line.ends[name]} == self.world.ends[name, mark["checkpoint"]]

    @property
    def at(self) -> list[dict[str, int]]:
        """The cut of each source."""
        return [
            {name: mark["checkpoint"] for name, mark in source.start["cut"]["marks"].items()} for source in self.sources
        ]


def divided(chance: random.Random, topics: list[str]) -> list[list[str]]:
    """Give each topic to one of two or three sources, and perhaps a topic to a second one (a self-join)."""
    found: list[list[str]] = [[] for _ in range(min(len(topics), chance.choice([2, 3])))]
    for index, topic in enumerate(topics):
        found[index % len(found)].append(topic)
    if chance.random() < 0.3:
        found.append([chance.choice(topics)])
    return found


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER, "driver-1")


SEEDS = [seed if seed in (2, 8) else pytest.param(seed, marks=pytest.mark.matrix) for seed in range(40)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_checkpoint_closes_where_all_sources_are_at_one_cut(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    world = World(chance)
    joined = Joined(world, tmp_path / "q", divided(chance, [*world.channels]), world.options())
    for step in range(80):
        for _ in range(chance.choice([1, 1, 1, 20])):
            world.go_on_upstream()
        happens = chance.random()
        if happens < 0.1:
            monkeypatch.setenv(DRIVER, f"driver-{step}")
            joined.restart(**{"maxOffsetsPerTrigger": "1000", "barrierInterval": "0", **world.options()})
        elif happens < 0.2:
            joined.restart()
            for source in joined.sources:
                source.reader.prepareForTriggerAvailableNow()
                if chance.random() < 0.3:
                    world.go_on_upstream()
            joined.run()
            assert not is_between_cuts(joined.lines[-1]) if joined.lines else True
            joined.restart()
        for _ in range(chance.randint(1, 4)):
            joined.trigger(dies_after=chance.choice([None, None, None, 0, 1, 2]))
        world.query.clock.advance(chance.choice([0, 1, 20]))
    for batch in joined.checkpoints:
        joined.check(batch)
    assert len(joined.checkpoints) > 3
    joined.run()
    assert len({json.dumps(at, sort_keys=True) for at in joined.at}) == 1, "no source waits for ever"
    alone = Query(
        world.query.brokers, world.query.readers, **{**world.query.options, "maxOffsetsPerTrigger": "1000000"}
    )
    while (end := alone.ask()) is not None:
        alone.start = end
    marks = {name: mark["checkpoint"] for name, mark in alone.start["cut"]["marks"].items()}
    assert joined.at[0] == marks, "they come as far as one source of all topics does"
    assert len(list((tmp_path / "q" / FOLDER).iterdir())) <= 4, "what is over is deleted"


def test_a_source_names_its_query_before_it_has_reached_a_cut(tmp_path: Path) -> None:
    """Otherwise the first one to reach a cut is taken for one that does not agree with the others."""
    world = World(random.Random(1))
    joined = Joined(world, tmp_path / "q", [[name] for name in world.channels], {})
    assert len(joined.sources) > 1
    assert {source.start["cut"]["query"] for source in joined.sources} == {"the-query"}


def test_sources_that_do_not_agree_tear_a_checkpoint(tmp_path: Path) -> None:
    """What the meeting is for: the same worlds without it."""
    torn = 0
    for seed in range(3):
        chance = random.Random(seed)
        world = World(chance)
        every = [*world.channels]
        alone = [Joined(world, tmp_path / f"{seed}-{name}", [[name]], {}, together=False) for name in every]
        for each, name in zip(alone, every, strict=True):
            for source in each.sources:
                source.run(alignOn=world.channels[name].barriers)
        for _ in range(30):
            world.go_on_upstream()
            for each in alone:
                each.trigger()
            lineages = [(each.sources[0].start.get("cut") or {}).get("lineage", {}) for each in alone]
            for one in lineages:
                for other in lineages:
                    torn += any(one[origin] != other[origin] for origin in one.keys() & other.keys())
    assert torn > 20


def test_latest_begins_at_one_cut_which_the_first_source_of_a_driver_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(random.Random(3))
    for _ in range(20):
        world.go_on_upstream()
    place = tmp_path / "q"
    place.mkdir()
    (place / "metadata").write_text(json.dumps({"id": "q"}))
    barriers = ",".join(each.barriers for each in world.channels.values())
    given = {"startingOffsets": "latest", "alignOn": barriers, "checkpointLocation": str(place)}

    def begin(topic: str) -> dict[str, Any]:
        query = Query(world.query.brokers, world.query.readers, subscribe=topic, **given)
        return dict(query.start["cut"]["marks"])

    names = [*world.channels]
    first = begin(names[0])
    for _ in range(20):
        world.go_on_upstream()
    assert begin(names[1]) == first
    assert begin(names[0]) == first
    monkeypatch.setenv(DRIVER, "driver-2")
    assert begin(names[1]) != first


def at(**checkpoints: int) -> Cut:
    return Cut({name: Passed("q", number, number, {"q": number}) for name, number in checkpoints.items()})


def look(meeting: Meeting, own: Cut) -> Situation:
    return meeting.look(own, ("a", "b"))


def written(place: Path, batch: int, *cuts: Cut) -> Meeting:
    for folder in ("offsets", "barrier/cuts"):
        (place / folder).mkdir(exist_ok=True, parents=True)
    lines = [json.dumps({"source": "barrier-kafka", "topics": {}, "cut": cut.to_json()}) for cut in cuts]
    (place / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines]))
    return Meeting(CheckpointLocation(str(place)), lambda: "driver")


def test_a_source_leaves_a_cut_when_no_other_is_on_its_way_to_it(tmp_path: Path) -> None:
    one, two = at(a=1, b=1), at(a=2, b=1)
    between = Cut(one.marks, toward={"a": 2, "b": 1})
    meeting = written(tmp_path, 0, two, between)
    assert look(meeting, two).waits
    assert look(meeting, between).target == {"a": 2, "b": 1}
    assert look(meeting, one).target == {"a": 2, "b": 1}, "it follows who has left"
    meeting = written(tmp_path, 1, one, between)
    assert look(meeting, one).target == {"a": 2, "b": 1}
    meeting = written(tmp_path, 2, two, at())
    assert look(meeting, two).waits
    assert look(meeting, at()).target == {"a": 2, "b": 1}
    meeting = written(tmp_path, 3, at(a=3, b=3), two, at())
    assert look(meeting, at()).target == {"a": 2, "b": 1}, "a source that is new comes by all cuts"
    assert look(meeting, two).waits
    meeting = written(tmp_path, 4, two, two)
    situation = look(meeting, two)
    assert (situation.waits, situation.target) == (False, None)
    assert meeting.agree(situation, two, {"a": 3, "b": 4}) == {"a": 3, "b": 4}
    assert meeting.agree(situation, two, {"a": 9, "b": 9}) == {"a": 3, "b": 4}
    assert look(meeting, two).target == {"a": 3, "b": 4}
    assert look(meeting, one).target == {"a": 2, "b": 1}, "of another cut nothing was said"
    meeting = written(tmp_path, 5, two, two)
    assert meeting.look(at(a=2), ("a",)) == Situation(5), "a barrier topic that is no longer followed does not count"


def test_cuts_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    meeting = written(tmp_path, 0, at(a=1, b=2), at(a=2, b=1))
    with pytest.raises(StoreError, match=r"MARKS_DISAGREE.*neither is before"):
        look(meeting, at(a=1, b=2))


def test_a_file_that_can_t_be_read_is_named(tmp_path: Path) -> None:
    meeting = written(tmp_path, 0, at(a=1), at(a=1))
    meeting.agree(look(meeting, at(a=1)), at(a=1), {"a": 2})
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_text("{")
    with pytest.raises(LocationError, match=rf"LOGS_INCONSISTENT.*{path.name}.*delete it"):
        look(meeting, at(a=1))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"alignOn": None}, "needs alignOn"),
        ({"alignment": "unaligned"}, "requires alignment=exactly-once"),
        ({"alignment": "at-least-once"}, "requires alignment=exactly-once"),
    ],
)
def test_what_does_not_fit_a_meeting_is_refused(given: dict[str, str | None], said: str) -> None:
    options = {
        "kafka.bootstrap.servers": "b:9092",
        "subscribe": "t",
        "alignOn": "m",
        "checkpointLocation": "/q",
        **given,
    }
    with pytest.raises(OptionError, match=rf"FORBIDDEN_OPTION.*{said}"):
        parse_read_options({key: value for key, value in options.items() if value is not None}, "stream")


def test_a_source_that_reads_a_topic_without_marks_is_refused(tmp_path: Path) -> None:
    world = World(random.Random(1))
    while not all(channel.records for channel in world.channels.values()):
        world.go_on_upstream()
    first, *_ = world.channels
    world.query.brokers.topics["other"] = dict(world.query.brokers.topics[first])
    world.query.brokers.ids["other"] = "x"
    with pytest.raises((StoreError, LocationError), match="MARKS_DISAGREE"):
        Joined(world, tmp_path / "q", [[first], [first, "other"]], {}).run()
