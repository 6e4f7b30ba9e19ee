"""The demo's verdict: it must see every kind of wrong row, or its zeros mean nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from integration.demo.flights import Row, events, expected_rows, load_flights
from integration.demo.killer import RandomMoments
from integration.demo.micro_batches import MicroBatches
from integration.demo.report import Report, Tally, tally
from integration.demo.trial import TrialResult

EXPECTED: dict[int, Row] = {number: (b"UA", b'{"event":%d}' % number) for number in range(4)}
ROWS = list(EXPECTED.values())


def counts(found: list[Row]) -> tuple[int, int, int, int, int]:
    counted = tally(EXPECTED, found)
    return counted.found, counted.doubled, counted.missing, counted.doubled_content, counted.missing_content


def test_every_row_once_is_exact_in_any_order() -> None:
    assert counts(ROWS[::-1]) == (4, 0, 0, 0, 0)
    assert tally(EXPECTED, ROWS[::-1]).exact


@pytest.mark.parametrize(
    ("found", "counted"),
    [
        pytest.param([*ROWS, ROWS[1], ROWS[1]], (6, 2, 0, 2, 0), id="two rows too many"),
        pytest.param(ROWS[1:], (3, 0, 1, 0, 1), id="one missing"),
        pytest.param([*ROWS[1:], ROWS[1]], (4, 1, 1, 1, 1), id="one doubled and one missing"),
        pytest.param([*ROWS[1:], (b"UA", b'{"event":0,"x":1}')], (4, 0, 0, 1, 1), id="another value"),
        pytest.param([*ROWS[1:], (b"AA", ROWS[0][1])], (4, 0, 0, 1, 1), id="another key"),
        pytest.param([*ROWS, (b"UA", b'{"event":9}')], (5, 0, 0, 1, 0), id="an event that was never fed"),
        pytest.param([*ROWS, (None, None)], (5, 0, 0, 1, 0), id="a row that is no event"),
    ],
)
def test_whatever_is_wrong_is_counted(found: list[Row], counted: tuple[int, int, int, int, int]) -> None:
    assert counts(found) == counted
    assert not tally(EXPECTED, found).exact


@pytest.mark.parametrize(
    ("found", "compared", "passed"),
    [
        pytest.param(ROWS, [*ROWS, ROWS[0]], True, id="doubled where it may be"),
        pytest.param(ROWS, ROWS, False, id="doubled nowhere"),
        pytest.param([*ROWS, ROWS[0]], [*ROWS, ROWS[0]], False, id="doubled in both"),
        pytest.param(ROWS, [*ROWS[1:], ROWS[1]], False, id="at-least-once lost one"),
        pytest.param(ROWS, [*ROWS[1:], ROWS[1], (b"UA", b'{"event":0,"x":1}')], False, id="at-least-once changed one"),
        pytest.param(ROWS, [*ROWS, ROWS[0], (b"UA", b'{"event":9}')], False, id="at-least-once has a foreign one"),
    ],
)
def test_the_demo_passes_only_where_it_can_tell_the_difference(
    found: list[Row], compared: list[Row], passed: bool
) -> None:
    cost = TrialResult(kills=1, batches=3, seconds=1.0)
    report = Report(1, tally(EXPECTED, found), tally(EXPECTED, compared), cost, cost, "task.prepared")
    assert report.passed is passed
    assert ("Every row once" in report.verdict()) is passed
    assert report.table().row_count == 9


def test_an_empty_output_is_not_exact() -> None:
    assert tally(EXPECTED, []) == Tally(4, 0, 0, 4, 0, 4, 0, tuple(f"event {number} is missing" for number in range(4)))


def test_cancelled_flights_are_fed_and_not_expected() -> None:
    flights = load_flights(2000)
    cancelled = [flight["event"] for flight in flights if flight["dep_time"] is None]
    assert cancelled
    assert len(events(flights)) == 2000
    assert expected_rows(flights).keys() == set(range(2000)) - set(cancelled)


def test_a_running_micro_batch_has_offsets_and_no_commit(tmp_path: Path) -> None:
    seen = MicroBatches(tmp_path)
    assert seen.running() is None
    for name in ("offsets/0", "offsets/.1.crc", "offsets/1", "commits/0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert (seen.running(), seen.count()) == (1, 1)
    (tmp_path / "commits" / "1").touch()
    assert seen.running() is None


def test_the_same_seed_picks_the_same_micro_batches(tmp_path: Path) -> None:
    first, second = (RandomMoments(Random(7), 10, 14, MicroBatches(tmp_path)) for _ in range(2))
    assert vars(first)["_targets"] == vars(second)["_targets"] == list(range(1, 11))
