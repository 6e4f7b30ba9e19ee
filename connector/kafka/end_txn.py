"""The end of prepared transactions: raw EndTxn requests, and a table of what their answers mean.

Whoever holds transactional id, producer id and epoch may end a transaction, in any process. Request version 5 raises
the epoch (KIP-890), so each can be committed once only and a late duplicate changes nothing; below 5 a duplicate would
commit the producer's next transaction, so the coordinator is asked first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from connector.kafka.admin import Description, KafkaAdmin
from connector.kafka.connection import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, error_name
from connector.kafka.partition_log import Ending, Witness, judge_by_log
from transactional import faults
from transactional.clock import Deadline
from transactional.errors import AmbiguousOutcomeError, RetriableError, StoreError, TwoPhaseCommitError
from transactional.sink import HandleState, Outcome

__all__ = ["ANSWERS", "Answer", "KafkaHandle", "TransactionEnder", "answer_for", "check_handle", "state_from"]

FORMAT: Final = 1
"""Version of `KafkaHandle`. Another one is refused by name."""

LONGEST_MARGIN_SECONDS: Final = 90.0
"""A decision needs min(this, a quarter of the timeout) left: time for the journal, the commit and a failover."""

MARKERS_SECONDS: Final = 15.0
"""How long a transaction may stay between its end and its markers before who asks for its state is told to come again."""


ENDED_BY_REQUEST: Final = "ended by this request"


class KafkaHandle(TypedDict):
    """What it takes to end a prepared transaction, and to find out later how it ended."""

    format: int
    transactionalId: str
    producerId: int
    producerEpoch: int
    endTxnVersion: int
    clusterId: str
    witnesses: list[Witness]
    preparedAt: int
    timeoutMs: int


class Answer(enum.Enum):
    """What an answer to EndTxn tells about the transaction."""

    ENDED = "it ended as asked, now or earlier"
    RETRY = "nothing yet; ask again"
    FIND_COORDINATOR = "nothing yet; ask again whoever coordinates it now"
    JUDGE = "not by this request; the coordinator's state or the partitions' logs say how it ended"
    REFUSED = "an operator has to act"


ANSWERS: Final[Mapping[int, Answer]] = {
    0: Answer.ENDED,  # NONE
    51: Answer.RETRY,  # CONCURRENT_TRANSACTIONS: markers are being written
    14: Answer.RETRY,  # COORDINATOR_LOAD_IN_PROGRESS
    7: Answer.RETRY,  # REQUEST_TIMED_OUT
    19: Answer.RETRY,  # NOT_ENOUGH_REPLICAS
    20: Answer.RETRY,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    13: Answer.RETRY,  # NETWORK_EXCEPTION
    56: Answer.RETRY,  # KAFKA_STORAGE_ERROR
    89: Answer.RETRY,  # THROTTLING_QUOTA_EXCEEDED
    -1: Answer.RETRY,  # UNKNOWN_SERVER_ERROR: whether it has ended, the next answer says
    15: Answer.FIND_COORDINATOR,  # COORDINATOR_NOT_AVAILABLE
    16: Answer.FIND_COORDINATOR,  # NOT_COORDINATOR
    48: Answer.JUDGE,  # INVALID_TXN_STATE: aborted, or committed by another version
    90: Answer.JUDGE,  # PRODUCER_FENCED: aborted, committed by version 5, or the id was initialised again
    47: Answer.JUDGE,  # INVALID_PRODUCER_EPOCH: the same, as older brokers say it
    49: Answer.JUDGE,  # INVALID_PRODUCER_ID_MAPPING: the id expired, or its producer id was used up
    53: Answer.REFUSED,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    35: Answer.REFUSED,  # UNSUPPORTED_VERSION
}
"""The outcome table, one row a code. What is not in it is refused and named."""


def answer_for(answer: Any) -> Answer:
    """Classify an answer: a broken connection says as little as a coordinator that has moved."""
    if isinstance(answer, Exception):
        return Answer.FIND_COORDINATOR
    return ANSWERS.get(int(answer.error_code), Answer.REFUSED)


def check_handle(handle: Mapping[str, Any]) -> None:
    """Refuse a handle of another format.

    Raises
    ------
    StoreError
        ``UNKNOWN_HANDLE_FORMAT``.
    """
    if handle.get("format") != FORMAT:
        raise StoreError(
            "UNKNOWN_HANDLE_FORMAT",
            f"The handle of {handle.get('transactionalId')} has format {handle.get('format')}; this release reads "
            f"{FORMAT}. Finish the query with the release that wrote it.",
            format=handle.get("format"),
        )


def margin_of(timeout_ms: int) -> float:
    """Seconds that must be left of a transaction for a decision."""
    return min(LONGEST_MARGIN_SECONDS, timeout_ms / 4000)


def state_from(handle: KafkaHandle, description: Description | None, now: float) -> HandleState | None:
    """Tell a handle's state from what its coordinator says; None where only the partitions' logs can tell.

    Only states at the handle's own epoch are trusted. At the next one `CompleteCommit` is ours as a rule, but also
    where somebody aborted ours by a version below 5 and the id's next owner committed.
    """
    if description is None:
        return None
    same = (description.producer_id, description.producer_epoch) == (handle["producerId"], handle["producerEpoch"])
    if not same:
        return None
    evidence = (
        f"coordinator: {description.state} at epoch {description.producer_epoch}, kafka.transaction.timeout.ms "
        f"{description.timeout_ms}"
    )
    if description.state == "Ongoing":
        left = (description.started_ms + description.timeout_ms) / 1000 - now
        return HandleState(Outcome.PREPARED, left, margin_of(description.timeout_ms), evidence)
    if description.state in ("PrepareCommit", "CompleteCommit"):
        return HandleState(Outcome.COMMITTED, evidence=evidence)
    if description.state in ("PrepareAbort", "CompleteAbort", "PrepareEpochFence"):
        return HandleState(Outcome.LOST, evidence=evidence)
    return None


class TransactionEnder:
    """Commits, aborts and judges prepared transactions over one `KafkaAdmin`.

    Parameters
    ----------
    admin : KafkaAdmin
    cluster_id : str
        Of the cluster that `admin` speaks with: handles of another one are never looked at.
    """

    def __init__(self, admin: KafkaAdmin, cluster_id: str) -> None:
        self._admin = admin
        self._cluster_id = cluster_id

    def commit(self, handles: Sequence[KafkaHandle], deadline: Deadline) -> list[KafkaHandle]:
        """Commit all, pipelined; returns those that are lost.

        Raises
        ------
        AmbiguousOutcomeError
            ``OUTCOME_UNKNOWN``: nobody can tell of these; all others are committed or lost.
        StoreError
            ``COMMIT_REFUSED``: rights or versions.
        TwoPhaseCommitError
            ``COMMIT_TIMEOUT``: some are not committed yet; call again.
        """
        judged = self._end_all(handles, True, deadline)
        self._refuse_unknown(handles, judged)
        return [handle for handle, state in zip(handles, judged, strict=True) if state.outcome is Outcome.LOST]

    def abort(self, handles: Sequence[KafkaHandle], deadline: Deadline) -> list[KafkaHandle]:
        """Abort and fence all; returns those found committed. Raises as `commit` does.

        That an abort was taken does not prove that nothing was committed: a commit by another version may have come
        first. So the coordinator and the logs are asked once more.
        """
        judged = self._end_all(handles, False, deadline)
        ended = [index for index, state in enumerate(judged) if state.evidence == ENDED_BY_REQUEST]
        for index, state in zip(ended, self.look([handles[i] for i in ended]), strict=True):
            fenced_for_good = state.outcome is Outcome.UNKNOWN and handles[index]["endTxnVersion"] >= 5
            if not fenced_for_good:
                judged[index] = state
        self._refuse_unknown(handles, judged)
        return [handle for handle, state in zip(handles, judged, strict=True) if state.outcome is Outcome.COMMITTED]

    def abort_open(self, described: Mapping[str, Description], version: int, deadline: Deadline) -> int:
        """Abort and fence open transactions that no handle names; how many. Those that moved on are let be."""
        handles = [
            KafkaHandle(
                format=FORMAT,
                transactionalId=name,
                producerId=found.producer_id,
                producerEpoch=found.producer_epoch,
                endTxnVersion=version,
                clusterId=self._cluster_id,
                witnesses=[],
                preparedAt=0,
                timeoutMs=found.timeout_ms,
            )
            for name, found in described.items()
        ]
        return sum(state.outcome is Outcome.LOST for state in self._end_all(handles, False, deadline))

    def look(self, handles: Sequence[KafkaHandle]) -> list[HandleState]:
        """State of each handle: one question to the coordinators for all, then the logs for what they don't know."""
        foreign = [handle["clusterId"] != self._cluster_id for handle in handles]
        deadline = Deadline(MARKERS_SECONDS, self._admin.clock)
        pause = FIRST_PAUSE_SECONDS
        while True:
            ids = [handle["transactionalId"] for handle, other in zip(handles, foreign, strict=True) if not other]
            described = self._admin.describe(ids)
            # Between an end and its markers the logs can't tell yet.
            ending = [h for h in handles if self._is_ending(h, described.get(h["transactionalId"]))]
            if not ending:
                break
            if deadline.passed():
                raise self._without_markers(ending)
            self._admin.clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        states = [
            self._other_cluster(handle) if other else self._judge(handle, described.get(handle["transactionalId"]))
            for handle, other in zip(handles, foreign, strict=True)
        ]
        return self._without_topic(handles, states)

    def _without_topic(self, handles: Sequence[KafkaHandle], states: Sequence[HandleState]) -> list[HandleState]:
        """A coordinator would commit a transaction whose topic was deleted, and nobody would ever see its rows."""
        alive = [h for h, state in zip(handles, states, strict=True) if state.outcome is Outcome.PREPARED]
        topics = self._admin.topics(witness["topic"] for handle in alive for witness in handle["witnesses"])

        def judged(handle: KafkaHandle, state: HandleState) -> HandleState:
            for witness in handle["witnesses"] if state.outcome is Outcome.PREPARED else ():
                found = topics.get(witness["topic"])
                if found is None or found.topic_id != witness["topicId"]:
                    became = "was deleted" if found is None else f"was created again as {found.topic_id}"
                    evidence = f"its topic {witness['topic']} ({witness['topicId']}) {became}"
                    return HandleState(Outcome.UNKNOWN, evidence=evidence)
            return state

        return [judged(handle, state) for handle, state in zip(handles, states, strict=True)]

    @staticmethod
    def _without_markers(handles: Sequence[KafkaHandle]) -> RetriableError:
        places = sorted({f"{w['topic']} [{w['partition']}]" for handle in handles for w in handle["witnesses"]})
        return RetriableError(
            "MARKERS_PENDING",
            f"{len(handles)} transactions have ended, and their markers are still not written after {MARKERS_SECONDS:.0f} s "
            f"in {', '.join(places[:10])}: has one of these partitions no leader, or fewer replicas in sync than "
            "min.insync.replicas? How the transactions ended can be told when the markers are there: start the query again "
            "then. There is nothing to resolve.",
            transactionalIds=[handle["transactionalId"] for handle in handles],
        )

    @staticmethod
    def _is_ending(handle: KafkaHandle, description: Description | None) -> bool:
        if description is None or not description.state.startswith("Prepare"):
            return False
        return state_from(handle, description, 0.0) is None

    def _judge(self, handle: KafkaHandle, description: Description | None) -> HandleState:
        known = state_from(handle, description, self._admin.clock.now())
        if known is not None:
            return known
        verdict = judge_by_log(self._admin, handle["producerId"], handle["producerEpoch"], handle["witnesses"])
        outcome = {Ending.COMMIT: Outcome.COMMITTED, Ending.ABORT: Outcome.LOST, Ending.UNKNOWN: Outcome.UNKNOWN}
        seen = "unknown id" if description is None else f"{description.state} at epoch {description.producer_epoch}"
        return HandleState(outcome[verdict.ending], evidence=f"{verdict.evidence}; coordinator: {seen}")

    def _other_cluster(self, handle: KafkaHandle) -> HandleState:
        return HandleState(
            Outcome.UNKNOWN, evidence=f"the handle is of cluster {handle['clusterId']}, this is {self._cluster_id}"
        )

    # -- requests ---------------------------------------------------------------------------------------------------

    def _end_all(self, handles: Sequence[KafkaHandle], commit: bool, deadline: Deadline) -> list[HandleState]:
        """End all handles, or find out how they ended; questions on the way have the same deadline."""
        self._admin.limit = deadline
        try:
            return self._settle(handles, commit, deadline)
        finally:
            self._admin.limit = None

    def _settle(self, handles: Sequence[KafkaHandle], commit: bool, deadline: Deadline) -> list[HandleState]:
        wanted = HandleState(Outcome.COMMITTED if commit else Outcome.LOST, evidence=ENDED_BY_REQUEST)
        states: dict[int, HandleState] = {}
        for index, handle in enumerate(handles):
            check_handle(handle)
            if handle["clusterId"] != self._cluster_id:
                states[index] = self._other_cluster(handle)
        left = [index for index in range(len(handles)) if index not in states]
        # The first goes alone: what concerns all of them (rights, versions) shows on one.
        cut = 1
        pause = FIRST_PAUSE_SECONDS
        while left:
            now, later = left[:cut], left[cut:]
            sendable = self._sendable([(index, handles[index]) for index in now], states)
            answers = self._send([handles[index] for index in sendable], commit)
            to_judge: list[int] = []
            for index, answer in zip(sendable, answers, strict=True):
                meaning = answer_for(answer)
                if meaning is Answer.ENDED:
                    states[index] = wanted
                    if commit:
                        faults.reach("commit.one")
                elif meaning is Answer.JUDGE:
                    to_judge.append(index)
                elif meaning is Answer.REFUSED:
                    raise self._refused(handles[index], answer)
                elif meaning is Answer.FIND_COORDINATOR:
                    self._admin.forget_coordinator(handles[index]["transactionalId"])
            # Still open at our epoch: the answer was about an earlier moment; it is asked again.
            states |= self._ended(to_judge, handles)
            unsettled = [index for index in now if index not in states]
            left = unsettled + later
            cut = len(left) if not unsettled else len(now)
            if unsettled:
                if deadline.passed():
                    raise self._late(handles, unsettled, commit, answers)
                self._admin.clock.sleep(min(pause, deadline.left()))
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        return [states[index] for index in range(len(handles))]

    def _sendable(self, indexed: Sequence[tuple[int, KafkaHandle]], states: dict[int, HandleState]) -> list[int]:
        """Sort out those that ended already: below version 5 each is looked at before each request."""
        states.update(self._ended([index for index, handle in indexed if handle["endTxnVersion"] < 5], dict(indexed)))
        return [index for index, _ in indexed if index not in states]

    def _ended(
        self, indexes: Sequence[int], handles: Sequence[KafkaHandle] | Mapping[int, KafkaHandle]
    ) -> dict[int, HandleState]:
        """Look at these, and return the states of those that are not open any more."""
        states = zip(indexes, self.look([handles[index] for index in indexes]), strict=True)
        return {index: state for index, state in states if state.outcome is not Outcome.PREPARED}

    def _send(self, handles: Sequence[KafkaHandle], commit: bool) -> list[Any]:
        from kafka.protocol.producer.transaction import EndTxnRequest

        nodes = self._admin.coordinators(handle["transactionalId"] for handle in handles)
        answers: list[Any] = [None] * len(handles)
        requests: list[tuple[int, Any]] = []
        sent: list[int] = []
        for index, handle in enumerate(handles):
            if not commit and handle["endTxnVersion"] < 5:
                # EndTxn(abort) below 5 leaves the epoch valid: a zombie's next record would open it again.
                self._admin.init_producer_id(handle["transactionalId"], handle["timeoutMs"])
                answers[index] = _Ended()
                continue
            sent.append(index)
            requests.append(
                (
                    nodes[handle["transactionalId"]],
                    EndTxnRequest(
                        version=handle["endTxnVersion"],
                        transactional_id=handle["transactionalId"],
                        producer_id=handle["producerId"],
                        producer_epoch=handle["producerEpoch"],
                        committed=commit,
                    ),
                )
            )
        for index, answer in zip(sent, self._admin.send_all(requests), strict=True):
            answers[index] = answer
        return answers

    # -- errors -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _refuse_unknown(handles: Sequence[KafkaHandle], states: Iterable[HandleState]) -> None:
        unknown = [
            (handle, state) for handle, state in zip(handles, states, strict=True) if state.outcome is Outcome.UNKNOWN
        ]
        if unknown:
            handle, state = unknown[0]
            raise AmbiguousOutcomeError(
                "OUTCOME_UNKNOWN",
                f"Nobody can tell whether {handle['transactionalId']} (producer {handle['producerId']}, epoch "
                f"{handle['producerEpoch']}) and {len(unknown) - 1} more were committed: {state.evidence}. Look at the "
                "topic, then say so: `barrier resolve LOCATION`.",
                handles=[dict(handle) for handle, _ in unknown],
                evidence=state.evidence,
            )

    @staticmethod
    def _refused(handle: KafkaHandle, answer: Any) -> StoreError:
        name = error_name(int(answer.error_code))
        return StoreError(
            "COMMIT_REFUSED",
            f"EndTxn version {handle['endTxnVersion']} of {handle['transactionalId']} was refused: {name}. Check "
            "WRITE on the transactional ids of the prefix, and that the cluster was not downgraded.",
            transactionalId=handle["transactionalId"],
            error=name,
        )

    @staticmethod
    def _late(
        handles: Sequence[KafkaHandle], unsettled: Sequence[int], commit: bool, answers: Sequence[Any]
    ) -> TwoPhaseCommitError:
        told = {repr(a) if isinstance(a, Exception) else error_name(int(a.error_code)) for a in answers}
        verb = "committed" if commit else "aborted"
        return TwoPhaseCommitError(
            "COMMIT_TIMEOUT" if commit else "ABORT_TIMEOUT",
            f"{len(unsettled)} of {len(handles)} transactions could not be {verb} in time (commitTimeoutMs); the first "
            f"is {handles[unsettled[0]]['transactionalId']}, the last answers were {', '.join(sorted(told))}. "
            "The next run goes on with them.",
            transactionalIds=[handles[index]["transactionalId"] for index in unsettled],
        )


class _Ended:
    """Stands for an answer that says: ended."""

    error_code = 0
