"""What integration tests share: one broker for all of them, and topics of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from integration.broker import Cluster


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    """One node for all tests. A test that kills, pauses or restarts it makes a `Cluster` of its own instead."""
    # Expired transactions are looked for every 10 s by default: a test of a timeout would wait that long.
    with Cluster(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}) as cluster:
        yield cluster


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test uses; the topic itself is for the test to create."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{test[:80]}-{uuid.uuid4().hex[:8]}"
