"""Three brokers, one of which stands still, dies or restarts while a checkpoint is committed: nobody is called, no row is lost.

`integration.faults.paused_brokers` has the stories; ``python -m integration.faults.paused_brokers --runs 500`` tells many.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.kafka.client.admin import KafkaAdmin
from connector.kafka.client.cluster_admin import metadata_request
from connector.kafka.client.config import ClientConfig
from integration.broker import Cluster
from integration.faults.paused_brokers import KAFKA_SESSION_MS, QUICK_SESSION_MS, Story, cluster_of_three, run_of
from transactional import faults

SHORT = [
    Story(0, "decision.written", "leader", "freeze", 3.0, 1),
    Story(0, "commit.one", "leader", "kill", 3.0, 1),
    Story(0, "task.written", "leader", "freeze", 3.0, 3),
    Story(0, "recovery.settling", "leader", "freeze", 2.5, 3),
]
"""A leader that is replaced, and wakes."""


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster_of_three() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def faults_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A story names the folder of its faults in the environment: it is gone with the test."""
    monkeypatch.setenv(faults.VARIABLE, "")


@pytest.mark.slow
@pytest.mark.parametrize("story", SHORT, ids=lambda story: f"{story.point}-{story.victims}-{story.deed}")
def test_a_broker_that_is_replaced_while_it_stands_still_calls_nobody_and_costs_no_row(
    three: Cluster, tmp_path: Path, story: Story
) -> None:
    run = run_of(three, tmp_path, story)
    assert (run.wrong, run.calls) == ("", []), run.failures


def test_a_paused_broker_does_not_hold_up_the_opinion_of_two_others(three: Cluster) -> None:
    admin = KafkaAdmin(ClientConfig("test", {"bootstrap.servers": three.bootstrap_servers}))
    three.pause(0)
    try:
        assert len(admin.ask_several(lambda: metadata_request([])) or ()) == 2
    finally:
        admin.close()
        three.resume()


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("session_ms", [QUICK_SESSION_MS, KAFKA_SESSION_MS])
def test_brokers_that_pause_die_or_restart_at_any_step_call_nobody_and_cost_no_row(
    tmp_path: Path, session_ms: str
) -> None:
    with cluster_of_three(session_ms) as cluster:
        for seed in range(44):
            run = run_of(cluster, tmp_path, Story.of(seed))
            assert (run.wrong, run.calls) == ("", []), (run.story, run.failures)
