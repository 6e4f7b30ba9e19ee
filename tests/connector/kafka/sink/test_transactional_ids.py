from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.kafka.client.admin import Description
from connector.kafka.sink.transactional_ids import IDS, TransactionalId, choose_id, run_id
from transactional.errors import RetriableError


def describing(states: Mapping[str, str], asked: list[int] | None = None):  # type: ignore[no-untyped-def]
    def describe(ids: list[str]) -> dict[str, Description]:
        if asked is not None:
            asked.append(len(ids))
        return {name: Description(states[name], 1, 1, 60_000, 0, ()) for name in ids if name in states}

    return describe


def test_the_number_starts_at_the_task_attempt_modulo_64() -> None:
    assert choose_id("q", 3, 130, "n", describing({})) == "q.3.2"


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"])
def test_an_id_in_use_is_passed_over_with_one_more_question(state: str) -> None:
    asked: list[int] = []
    assert choose_id("q", 0, 63, "n", describing({"q.0.63": state, "q.0.0": state}, asked)) not in ("q.0.63", "q.0.0")
    assert asked == [1, 63]


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort", "Dead"])
def test_an_id_whose_transaction_has_ended_is_free(state: str) -> None:
    assert choose_id("q", 0, 5, "n", describing({"q.0.5": state})) == "q.0.5"


def test_a_task_without_a_free_id_fails_by_name() -> None:
    full = {f"q.0.{number}": "Ongoing" for number in range(IDS)}
    with pytest.raises(RetriableError, match=r"NO_FREE_LANE.*q\.0"):
        choose_id("q", 0, 1, "n", describing(full))


def test_the_only_free_id_is_found_by_every_nonce() -> None:
    states = {f"q.0.{number}": "Ongoing" for number in range(IDS) if number != 7}
    assert {choose_id("q", 0, 0, f"n{turn}", describing(states)) for turn in range(200)} == {"q.0.7"}


def test_attempts_that_begin_within_a_block_of_prepared_ids_choose_different_ones() -> None:
    states = {f"q.0.{number}": "Ongoing" for number in range(40)}
    chosen = [choose_id("q", 0, attempt, f"nonce {attempt}", describing(states)) for attempt in range(40)]
    assert len(set(chosen)) > 12


@given(st.text(min_size=1), st.integers(0, 100_000), st.integers(0, IDS - 1))
def test_names_are_read_back_whole(prefix: str, partition: int, number: int) -> None:
    name = TransactionalId(prefix, partition, number)
    assert TransactionalId.parse(str(name)) == name


@pytest.mark.parametrize(
    "text", ["orders", "orders.1", "orders.run", ".1.2", "orders.1.64", "orders.01.2", "orders.1.-2", "orders.1.²", ""]
)
def test_what_is_no_name_of_a_task_is_not_read(text: str) -> None:
    assert TransactionalId.parse(text) is None


def test_a_longer_prefix_is_another_one() -> None:
    parsed = TransactionalId.parse("orders.x.1.2")
    assert parsed is not None
    assert parsed.prefix == "orders.x"
    assert TransactionalId.parse(run_id("orders")) is None
