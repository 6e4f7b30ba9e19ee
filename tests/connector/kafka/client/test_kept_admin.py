"""Which admin of a worker is used again."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connector.kafka.client import kept_admin
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.kept_admin import LIFE_SECONDS, borrow_admin, give_back
from transactional.clock import Deadline
from transactional.testing.clock import FakeClock

HERE = ClientConfig("2pc-kafka", {"bootstrap.servers": "here:9092"})


class Admin:
    """Stands for a `KafkaAdmin`."""

    def __init__(self, config: ClientConfig, clock: Any = None) -> None:
        self.config, self.clock = config, clock
        self.intact = True
        self.life = Deadline(0)
        self.limit: Any = None
        self.closed = 0
        self.forgot = 0

    def forget_coordinators(self) -> None:
        self.forgot += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(kept_admin, "KafkaAdmin", Admin)
    monkeypatch.setattr(kept_admin, "Deadline", lambda seconds: Deadline(seconds, clock))
    monkeypatch.setattr(kept_admin, "_idle", {})
    return clock


@pytest.mark.usefixtures("clock")
def test_an_admin_that_came_back_is_lent_again_with_the_next_ones_clock_and_no_limit() -> None:
    first: Any = borrow_admin(HERE)
    first.limit = Deadline(1)
    give_back(first)
    assert first.closed == 0
    other = FakeClock()
    again: Any = borrow_admin(HERE, other)
    assert again is first
    assert (again.clock, again.limit) == (other, None)
    assert again.forgot == 1  # coordinators may have moved since


@pytest.mark.usefixtures("clock")
def test_two_that_are_in_use_at_once_are_two_and_one_of_them_is_kept() -> None:
    first: Any = borrow_admin(HERE)
    second: Any = borrow_admin(HERE)
    assert first is not second
    give_back(first)
    give_back(second)
    assert (first.closed, second.closed) == (1, 0)
    assert borrow_admin(HERE) is second


@pytest.mark.usefixtures("clock")
def test_one_that_no_one_borrows_is_closed_without_being_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_admin, "IDLE_SECONDS", 0.05)
    first: Any = borrow_admin(HERE)
    give_back(first)
    again: Any = borrow_admin(HERE)
    assert again is first
    give_back(first)
    deadline = time.monotonic() + 60
    while not first.closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert borrow_admin(HERE) is not first
    assert first.closed == 1


def test_one_that_is_never_idle_for_long_is_closed_in_the_end(clock: FakeClock) -> None:
    first: Any = borrow_admin(HERE)
    for _ in range(int(LIFE_SECONDS)):
        give_back(first)
        clock.sleep(1)
        if borrow_admin(HERE) is not first:
            break
    else:
        give_back(first)
    assert first.closed == 1
    assert clock.passed >= LIFE_SECONDS - 1


@pytest.mark.usefixtures("clock")
def test_one_that_is_given_back_twice_is_lent_once() -> None:
    first: Any = borrow_admin(HERE)
    give_back(first)
    give_back(first)
    assert first.closed == 0
    assert borrow_admin(HERE) is first
    assert borrow_admin(HERE) is not first


@pytest.mark.usefixtures("clock")
def test_one_with_an_unanswered_request_is_closed() -> None:
    first: Any = borrow_admin(HERE)
    first.intact = False
    give_back(first)
    assert first.closed == 1
    assert borrow_admin(HERE) is not first


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("settings", [{"bootstrap.servers": "there:9092"}, {**HERE.settings, "sasl.password": "new"}])
def test_other_settings_get_another_one(settings: dict[str, str]) -> None:
    first: Any = borrow_admin(HERE)
    give_back(first)
    other: Any = borrow_admin(ClientConfig("2pc-kafka", settings))
    assert other is not first
    give_back(other)
    assert first.closed == 1, "one is kept"


@pytest.mark.usefixtures("clock")
def test_a_forked_copy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    first: Any = borrow_admin(HERE)
    give_back(first)
    monkeypatch.setattr("os.getpid", lambda: 1)
    child: Any = borrow_admin(HERE)
    assert child is not first
    give_back(child)
    assert first.closed == 0, "the connection is the parent's"
