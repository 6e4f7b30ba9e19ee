from __future__ import annotations

from types import SimpleNamespace

import pytest

from connector.kafka.client.admin import Description
from connector.kafka.client.partition_log import Ending, parse_control_key
from connector.kafka.client.topics import Partition
from connector.kafka.sink.end_txn import ANSWERS, Answer, answer_for
from connector.kafka.sink.fates import margin_of, state_from
from connector.kafka.sink.handles import FORMAT, KafkaHandle, parse_handle
from transactional.sink import Outcome

HANDLE = parse_handle(
    KafkaHandle(
        format=FORMAT,
        transactionalId="q.0.1",
        producerId=7,
        producerEpoch=3,
        endTxnVersion=5,
        clusterId="c",
        topics={},
        written={},
        startedAt=0,
        preparedAt=0,
        timeoutMs=60_000,
    )
)


def described(state: str, epoch: int = 3, producer: int = 7) -> Description:
    return Description(state, producer, epoch, 60_000, 1_000_000, (Partition("t", 0),))


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("NoError", Answer.ENDED),
        ("ConcurrentTransactionsError", Answer.RETRY),
        ("CoordinatorLoadInProgressError", Answer.RETRY),
        ("RequestTimedOutError", Answer.RETRY),
        ("NotEnoughReplicasError", Answer.RETRY),
        ("NotEnoughReplicasAfterAppendError", Answer.RETRY),
        ("NetworkExceptionError", Answer.RETRY),
        ("KafkaStorageError", Answer.RETRY),
        ("ThrottlingQuotaExceededError", Answer.RETRY),
        ("UnknownError", Answer.RETRY),
        ("NotCoordinatorError", Answer.FIND_COORDINATOR),
        ("CoordinatorNotAvailableError", Answer.FIND_COORDINATOR),
        ("InvalidTxnStateError", Answer.JUDGE),
        ("ProducerFencedError", Answer.JUDGE),
        ("InvalidProducerEpochError", Answer.JUDGE),
        ("InvalidProducerIdMappingError", Answer.JUDGE),
        ("TransactionalIdAuthorizationFailedError", Answer.REFUSED),
        ("UnsupportedVersionError", Answer.REFUSED),
    ],
)
def test_the_table_names_each_answer(name: str, meaning: Answer) -> None:
    from kafka import errors

    code = getattr(errors, name).errno
    assert ANSWERS[code] is meaning
    assert answer_for(SimpleNamespace(error_code=code)) is meaning


def test_an_answer_that_is_not_in_the_table_is_refused() -> None:
    assert answer_for(SimpleNamespace(error_code=42)) is Answer.REFUSED


def test_a_broken_connection_tells_nothing() -> None:
    assert answer_for(ConnectionError()) is Answer.FIND_COORDINATOR


def test_an_open_transaction_of_ours_has_the_time_left_that_its_coordinator_tells() -> None:
    found = state_from(HANDLE, described("Ongoing"), now=1020.0)
    assert found is not None
    assert (found.outcome, found.seconds_left, found.margin) == (Outcome.PREPARED, 40.0, 15.0)
    assert found.ready
    late = state_from(HANDLE, described("Ongoing"), now=1045.0)
    assert late is not None
    assert not late.ready


@pytest.mark.parametrize(("timeout", "margin"), [(1_000, 0.25), (60_000, 15.0), (900_000, 90.0), (2**31 - 1, 90.0)])
def test_the_margin_is_a_quarter_of_the_timeout_and_at_most_90_seconds(timeout: int, margin: float) -> None:
    assert margin_of(timeout) == margin


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("PrepareCommit", Outcome.COMMITTED),
        ("CompleteCommit", Outcome.COMMITTED),
        ("PrepareAbort", Outcome.LOST),
        ("CompleteAbort", Outcome.LOST),
        ("PrepareEpochFence", Outcome.LOST),
    ],
)
def test_the_coordinator_is_believed_at_our_own_epoch(state: str, outcome: Outcome) -> None:
    found = state_from(HANDLE, described(state), now=0)
    assert found is not None
    assert found.outcome is outcome


@pytest.mark.parametrize("state", ["Ongoing", "CompleteCommit", "CompleteAbort", "PrepareCommit", "Empty"])
@pytest.mark.parametrize(("epoch", "producer"), [(4, 7), (2, 7), (3, 8)])
def test_at_any_other_epoch_only_the_log_can_tell(state: str, epoch: int, producer: int) -> None:
    assert state_from(HANDLE, described(state, epoch, producer), now=0) is None


def test_an_id_without_a_transaction_or_unknown_is_left_to_the_log() -> None:
    assert state_from(HANDLE, described("Empty"), now=0) is None
    assert state_from(HANDLE, None, now=0) is None


@pytest.mark.parametrize(
    ("key", "ending"),
    [
        (b"\0\0\0\0", Ending.ABORT),
        (b"\0\0\0\1", Ending.COMMIT),
        (b"\0\0\0\2", Ending.UNKNOWN),
        (b"\0", Ending.UNKNOWN),
        (None, Ending.UNKNOWN),
    ],
)
def test_a_control_record_says_commit_or_abort(key: bytes | None, ending: Ending) -> None:
    assert parse_control_key(key) is ending
