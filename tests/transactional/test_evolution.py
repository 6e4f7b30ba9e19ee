"""A query whose sources have names: it gets, loses and renames them, and each row is read once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.transactional.test_steps import Query
from transactional.barrier import SourceLine, by_name, closes_checkpoint, new_barriers, sources_digest
from transactional.errors import LocationError, OptionError
from transactional.journal import Journal
from transactional.ledger import Ledger
from transactional.recovery import QueryView, check_beginnings, check_running, ends_left


def line(name: str, start: int, end: int, *, topic: str = "t", identity: str = "id", barrier: int = 1) -> SourceLine:
    """A line of our source with one topic of two partitions."""
    offset: dict[str, Any] = {
        "source": "barrier-kafka",
        "barrier": {"number": barrier, "kind": "checkpoint", "timestamp": 7},
        "ids": {topic: identity},
        "start": {topic: {"0": start, "1": 5}},
        "topics": {topic: {"0": end, "1": 5}},
    }
    return SourceLine.parse(json.dumps(offset), name)


def foreign(name: str, text: str = "7") -> SourceLine:
    return SourceLine.parse(text, name)


def test_lines_are_compared_by_name_wherever_they_stand() -> None:
    a, b = line("a", 0, 1, barrier=1), line("b", 0, 1, barrier=2)
    assert new_barriers([b, a], [a, b]) == []
    assert not closes_checkpoint([line("b", 1, 2, barrier=2), line("a", 1, 2, barrier=1)], [a, b])
    assert [each.number for each in new_barriers([b, line("a", 1, 2, barrier=3)], [a, b])] == [3]
    assert sources_digest([a, b]) == sources_digest([b, a])
    assert sources_digest([line("a", 0, 1), line("b", 1, 2)]) != sources_digest([line("b", 0, 1), line("a", 1, 2)])
    assert [*by_name([line("", 0, 1), line("", 0, 1)])] == ["0", "1"]
    assert closes_checkpoint([a], [a, b]), "a change of the sources closes a checkpoint"


def test_a_micro_batch_with_rows_of_a_source_that_is_gone_is_refused() -> None:
    before = [line("a", 0, 1), foreign("f", "7")]
    now = [line("a", 1, 2), foreign("f", "8")]
    check_running(now, before, {"a", "f", "new"}, 3)
    with pytest.raises(LocationError, match=r"SOURCE_REMOVED.*these sources: f\..*micro-batch 3 .*Nothing was written"):
        check_running(now, before, {"a"}, 3)
    with pytest.raises(LocationError, match="SOURCE_REMOVED"):
        check_running(now, None, {"a"}, 0)
    same = [line("a", 1, 2), foreign("f", "7")]
    check_running(same, before, {"a"}, 3)  # it has no row of f
    for lines in (same, same[:1]):
        with pytest.raises(LocationError, match="SOURCE_REMOVED"):
            check_running(lines, before, {"a"}, 3, is_open=True)
    check_running(now, before, None, 3)  # a tool, which runs no task
    check_running([line("", 0, 1), foreign("")], None, set(), 3)  # the engine counts them


def begins(lines: Sequence[SourceLine], previous: Sequence[SourceLine], left: dict[str, Any] | None = None) -> str:
    """The error's text, or nothing."""
    try:
        check_beginnings(lines, previous, left or {})
    except LocationError as problem:
        return str(problem)
    return ""


def test_a_source_with_another_name_begins_where_the_lost_one_stopped() -> None:
    before = [line("a", 0, 10), line("b", 0, 1, topic="u")]
    assert not begins([line("a", 10, 20), line("b", 1, 1, topic="u")], before)
    assert not begins([line("c", 10, 20), line("b", 1, 1, topic="u")], before)
    for start in (0, 9, 11):
        said = begins([line("c", start, 20), line("b", 1, 1, topic="u")], before)
        assert (
            f"c begins to read t-0 at offset {start}, but the source a, which the query no longer has, stopped at offset 10"
            in said
        )
        assert '{"t":{"0":10,"1":5}}' in said
    assert not begins([line("c", 0, 20, identity="again"), line("b", 1, 1, topic="u")], before), "it was created again"
    assert not begins([line("a", 10, 11), line("b", 1, 1, topic="u"), line("c", 0, 3)], before), (
        "a second use of a topic"
    )
    assert "SOURCE" not in begins([line("c", 0, 1)], [])


def test_long_after_a_source_was_lost_its_topic_begins_where_it_stopped() -> None:
    first, second = [line("a", 0, 10), line("b", 0, 1, topic="u")], [line("b", 1, 2, topic="u")]
    left = ends_left(second, first, {})
    assert left == {"a": {"t": {"id": "id", "ends": {"0": 10, "1": 5}}}}
    third = [line("b", 2, 3, topic="u")]
    assert ends_left(third, second, left) == left
    assert begins([*third, line("a", 0, 5)], second, left)
    assert begins([*third, line("c", 0, 5)], second, left)
    joined = SourceLine.parse(
        json.dumps(
            {
                **(third[0].offset or {}),
                "topics": {"u": {"0": 3, "1": 5}, "t": {"0": 9}},
                "start": {"u": {"0": 2, "1": 5}, "t": {"0": 0, "1": 0}},
                "ids": {"u": "id", "t": "id"},
            }
        ),
        "b",
    )
    assert begins([joined], second, left), "a source that reads one more topic is asked as well"
    again = [*third, line("c", 10, 12)]
    assert not begins(again, second, left)
    assert ends_left(again, second, left) == {}, "c goes on with it"
    assert ends_left(third, again, {}) == {"c": {"t": {"id": "id", "ends": {"0": 12, "1": 5}}}}


def test_a_source_whose_positions_can_t_be_read_has_no_successor() -> None:
    before, now = [line("a", 0, 1), foreign("f")], [line("a", 1, 2)]
    left = ends_left(now, before, {})
    assert left == {"f": {}}
    for new in (foreign("f", "0"), foreign("g"), line("g", 0, 1, topic="u")):
        assert "SOURCE_END_UNKNOWN" in begins([line("a", 2, 3), new], now, left)
    assert "whether g begins where a stopped" in begins([foreign("g")], now[:1]), "of another format"
    assert ends_left([line("a", 2, 3)], now, left) == left
    assert not begins([*now, foreign("g")], [line("a", 0, 1)]), "nothing was lost yet"


def test_of_two_lost_sources_of_a_topic_each_is_continued_once() -> None:
    first = [line("l", 0, 100), line("r", 0, 120), line("z", 0, 1, topic="u")]
    second = [line("z", 1, 2, topic="u")]
    left = ends_left(second, first, {})
    assert sorted(left) == ["l", "r"]
    third = [*second, line("l2", 100, 110)]
    assert not begins(third, second, left)
    left = ends_left(third, second, left)
    assert sorted(left) == ["r"]
    assert begins([*third, line("r", 0, 5)], third, left)
    assert not begins([*third, line("r", 120, 125)], third, left)
    assert begins([*second, line("x", 110, 125)], second, ends_left(second, first, {})), "of neither"
    alike = ends_left(second, [line("l", 0, 100), line("r", 0, 100), *first[2:]], {})
    assert sorted(ends_left(third, second, alike)) == ["r"], "it continues one of two that stopped at the same offset"


def test_a_topic_that_moves_to_another_source_continues() -> None:
    before = [line("a", 0, 10), line("b", 0, 20, topic="u")]
    assert begins([line("a", 0, 5, topic="u"), line("b", 0, 5)], before)
    assert not begins([line("a", 20, 25, topic="u"), line("b", 10, 15)], before)
    again = ends_left([line("b", 20, 21, topic="u"), line("a", 0, 0, topic="w")], before, {})
    assert again == {"a": {"t": {"id": "id", "ends": {"0": 10, "1": 5}}}}
    back = [line("b", 21, 22, topic="u"), line("a", 12, 13)]
    now = [line("b", 20, 21, topic="u"), line("a", 0, 0, topic="w")]
    assert not begins(back, now, again), "its own: it skips what was lost"
    assert ends_left(back, now, again) == {"a": {"w": {"id": "id", "ends": {"0": 0, "1": 5}}}}


def test_a_partition_that_came_later_is_read_from_its_first_row() -> None:
    offset = {**(line("c", 0, 9).offset or {}), "start": {"t": {"0": 9, "1": 5, "2": 777}}}
    said = begins([SourceLine.parse(json.dumps(offset), "c")], [line("a", 0, 10)])
    assert '{"t":{"0":10,"1":5,"2":-2}}' in said


def test_a_query_that_follows_barriers_keeps_its_sources() -> None:
    cut = {"cut": {"lineage": {}, "exact": True, "marks": {}}}
    follows = [SourceLine.parse(json.dumps({**(line(n, 0, 1).offset or {}), **cut}), n) for n in ("a", "b")]
    check_beginnings(follows, follows[::-1], {})
    for now in (follows[:1], [*follows, line("c", 0, 1, topic="u")], [follows[0], line("c", 1, 1)]):
        with pytest.raises(OptionError, match=r"INVALID_OPTION.*alignOn.*must keep its sources"):
            check_beginnings(now, follows, {})


class Evolving(Query):
    """A query whose micro-batches have these lines."""

    def __init__(self, *batches: Sequence[SourceLine]) -> None:
        super().__init__()
        self.batches = batches

    def view(self, batch: int) -> QueryView:
        previous = self.batches[batch - 1] if batch else None
        running = {each.name for each in self.batches[batch]}
        return QueryView("q", "/place", batch, self.committed, self.batches[batch], previous, running=running)


def test_the_journal_keeps_where_a_lost_source_stopped() -> None:
    one, other = line("a", 0, 10), line("b", 0, 1, topic="u")
    stay = [line("b", number, number + 1, topic="u", barrier=number + 1) for number in (1, 2)]
    query = Evolving([one, other], [stay[0]], [stay[1], line("c", 0, 3)], [stay[1], line("c", 10, 12)])
    for batch in (0, 1):
        query.run(batch)
    left = {"a": {"t": {"id": "id", "ends": {"0": 10, "1": 5}}}}
    assert query.ledger().left_after(0) == {}
    assert query.ledger().left_after(1) == left
    assert Ledger.from_json(json.loads(json.dumps(query.ledger().to_json()))).left_after(1) == left
    with pytest.raises(LocationError, match="SOURCE_BEGINS_ELSEWHERE"):
        query.plan(2)
    assert query.ledger().newest_run == query.ledger().runs[1], "nothing was journaled"
    query.batches = (*query.batches[:2], query.batches[3])
    query.run(2)
    assert query.ledger().left_after(2) == {}


@pytest.mark.parametrize("how", ["prepared", "rewound"])
def test_a_source_is_removed_only_when_its_rows_are_committed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(number: int) -> list[SourceLine]:
        return [line("a", number, number + 1), line("b", number, number + 1, topic="u")]

    query = Evolving(lines(0), lines(1), lines(2), [line("a", 3, 4)])
    query.run(0)
    ledger = query.ledger()
    if how == "rewound":
        ledger.reached = 3
    view = query.view(3)
    query.committed = 2
    monkeypatch.setattr(Journal, "load", lambda journal: ledger)
    if how == "prepared":
        ledger.batches[1] = replace(ledger.batches[0], batch=1, checkpoint=None)
    monkeypatch.setattr(query, "view", lambda batch: replace(view, previous=lines(2)))
    with pytest.raises(LocationError, match=r"SOURCE_REMOVED.*these sources: b\."):
        query.plan(3)
