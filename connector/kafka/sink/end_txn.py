"""End prepared transactions with raw EndTxn requests, and interpret the answers.

Any process that knows a transaction's transactional id, producer id and epoch can end it. EndTxn version 5 raises the epoch
(KIP-890), so each transaction can be committed only once, and a late duplicate request changes nothing. Below version 5, a
duplicate request would commit the producer's next transaction, so the coordinator is asked first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from connector.kafka.client.admin import Description, KafkaAdmin
from connector.kafka.client.connection import backing_off
from connector.kafka.client.errors import error_name
from connector.kafka.client.partition_admin import PartitionAdmin
from connector.kafka.sink.errors import markers_pending, unknown_outcome
from connector.kafka.sink.fates import Whole, ended_fates, judge_ended, judge_open, open_fates, state_from, with_markers
from connector.kafka.sink.handles import FORMAT, KafkaHandle, Key, Prepared, parse_handle
from connector.kafka.sink.readable import ensure_readable
from connector.kafka.sink.second_look import LOOK_SECONDS, SecondLook
from transactional import faults
from transactional.clock import Deadline
from transactional.errors import StoreError, TwoPhaseCommitError
from transactional.sink import HandleState, Outcome

ENDED_BY_REQUEST: Final = "ended by this request"


class Answer(enum.Enum):
    """The meaning of a broker's answer to an EndTxn request: what happened to the transaction, or what to do next."""

    ENDED = "it ended as asked, now or earlier"
    RETRY = "nothing yet; ask again"
    FIND_COORDINATOR = "nothing yet; find its coordinator, which may have moved, and ask again"
    JUDGE = "this request did not end it; ask the coordinator and the partitions how it ended"
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
    -1: Answer.RETRY,  # UNKNOWN_SERVER_ERROR: the next answer shows whether it has ended
    15: Answer.FIND_COORDINATOR,  # COORDINATOR_NOT_AVAILABLE
    16: Answer.FIND_COORDINATOR,  # NOT_COORDINATOR
    48: Answer.JUDGE,  # INVALID_TXN_STATE: aborted, or committed by another version
    90: Answer.JUDGE,  # PRODUCER_FENCED: aborted, committed by version 5, or the id was initialized again
    47: Answer.JUDGE,  # INVALID_PRODUCER_EPOCH: the same, from older brokers
    49: Answer.JUDGE,  # INVALID_PRODUCER_ID_MAPPING: the id expired, or its producer id was used up
    53: Answer.REFUSED,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    35: Answer.REFUSED,  # UNSUPPORTED_VERSION
}
"""The meaning of each error code of EndTxn. Any other code means `REFUSED`; the error then names the code."""


def answer_for(answer: Any) -> Answer:
    """Classify an answer to EndTxn. If `answer` is an exception, no response arrived, and the coordinator may have moved."""
    if isinstance(answer, Exception):
        return Answer.FIND_COORDINATOR
    return ANSWERS.get(int(answer.error_code), Answer.REFUSED)


class TransactionEnder:
    """Commits and aborts prepared transactions, and determines their states. All requests go through one `KafkaAdmin`."""

    def __init__(self, admin: KafkaAdmin, cluster_id: str, partitions: PartitionAdmin | None = None) -> None:
        self.admin = admin
        # The cluster that `admin` is connected to. Transactions of other clusters get the state UNKNOWN without a request.
        self._cluster_id = cluster_id
        self.partitions = partitions or PartitionAdmin(admin)
        self._open_together: frozenset[Key] = frozenset()
        self.answered: set[bool] = set()  # has True if a commit was answered, False if an abort was

    def commit(self, transactions: Sequence[Prepared], deadline: Deadline) -> list[Prepared]:
        """Commit all transactions, and return those that are lost. For the others, call `ensure_readable` next.

        Raise ``OUTCOME_UNKNOWN`` if the outcome of a transaction can't be determined, and ``KAFKA_TIMEOUT`` or
        ``MARKERS_PENDING`` if the deadline passes.
        """
        wholes = self._end_all(transactions, True, deadline)
        self._refuse_unknown(transactions, wholes)
        return _with_outcome(Outcome.LOST, transactions, wholes)

    def abort(self, transactions: Sequence[Prepared], deadline: Deadline) -> list[Prepared]:
        """Abort and fence all transactions, and return those that turn out to be committed. Raise the same errors as `commit`.

        An accepted abort does not prove that nothing was committed. A commit with another version of EndTxn, or another
        program's marker, may have come first. So the coordinator and the partitions are asked again after an abort.
        """
        wholes = self._end_all(transactions, False, deadline)
        ended = [index for index, whole in enumerate(wholes) if whole.state.evidence == ENDED_BY_REQUEST]
        for index, whole in zip(ended, self._wholes([transactions[i] for i in ended]), strict=True):
            silent = whole.state.outcome is Outcome.UNKNOWN and not whole.divided
            fenced_for_good = silent and transactions[index].end_version >= 5
            if not fenced_for_good:
                wholes[index] = whole
        self._refuse_unknown(transactions, wholes)
        return _with_outcome(Outcome.COMMITTED, transactions, wholes)

    def abort_open(self, described: Mapping[str, Description], version: int, deadline: Deadline) -> int:
        """Abort and fence open transactions that have no handle, and return how many of them are aborted.

        `described` has the description of each transaction, by transactional id. If a newer transaction has begun under an
        id since then, the newer transaction is not touched.
        """
        transactions = [
            parse_handle(
                KafkaHandle(
                    format=FORMAT,
                    transactionalId=name,
                    producerId=description.producer_id,
                    producerEpoch=description.producer_epoch,
                    endTxnVersion=version,
                    clusterId=self._cluster_id,
                    topics={},
                    written={},
                    startedAt=description.started_ms,
                    preparedAt=0,
                    timeoutMs=description.timeout_ms,
                )
            )
            for name, description in described.items()
        ]
        wholes = self._end_all(transactions, False, deadline)
        return sum(whole.state.outcome is Outcome.LOST for whole in wholes)

    def look(self, transactions: Sequence[Prepared]) -> list[HandleState]:
        """Return the state of each transaction, according to its coordinator and to the leaders of its partitions.

        The coordinator's answer is not enough. The coordinator reports a transaction as open even if another program's marker
        has aborted it in a partition, or if an unclean leader election has cut off rows. Such a transaction is LOST, and the
        evidence names topic, partition and offset. If some rows can be read, but others never will be, the state is UNKNOWN.
        """
        wholes = self._wholes(transactions)
        self._open_together = frozenset(
            transaction.key
            for transaction, whole in zip(transactions, wholes, strict=True)
            if whole.state.outcome is Outcome.PREPARED
        )
        return [whole.state for whole in wholes]

    def ensure_readable(self, transactions: Sequence[Prepared], deadline: Deadline) -> list[dict[str, Any]]:
        """Wait until every row of committed transactions can be read, and return a record of each marker written.

        If a coordinator has left out a marker, write the marker.

        See `connector.kafka.sink.readable`.
        """
        together = [transaction for transaction in transactions if transaction.key in self._open_together]
        alone = [transaction for transaction in transactions if transaction.key not in self._open_together]
        return ensure_readable(self.admin, self.partitions, together, alone, deadline)

    def _wholes(self, transactions: Sequence[Prepared]) -> list[Whole]:
        looking = _Looking(self, transactions)
        deadline = self.admin.limit or Deadline(LOOK_SECONDS, self.admin.clock)
        if transactions and backing_off(deadline, self.admin.clock)(looking.look) is None:
            left = [transactions[index] for index in looking.waiting]
            parts = [part for transaction in left for part in transaction.written]
            state = f"The outcome of transactions is not known yet: {next(iter(looking.waiting.values()))}"
            raise markers_pending(left, parts, state)
        return [looking.wholes[index] for index in range(len(transactions))]

    def look_once(self, transactions: Mapping[int, Prepared]) -> tuple[list[int], dict[int, Whole]]:
        """Check each transaction once. Return the indexes of those that are ending now, and the states of the others."""
        described = self.admin.describe([transaction.name for transaction in transactions.values()])
        states = {index: self._open_state(each, described) for index, each in transactions.items()}
        ongoing = {index: state for index, state in states.items() if state is not None}
        # Until the coordinator has written the markers, the partitions do not show the end.
        ending = [index for index, each in transactions.items() if self._is_ending(each, described)]
        ended = [index for index in transactions if index not in ongoing and index not in ending]
        fates = open_fates(self.partitions, [transactions[index] for index in ongoing])
        judged = {index: judge_open(ongoing[index], of) for index, of in zip(ongoing, fates, strict=True)}
        judged |= zip(ended, self._judge_ended([transactions[index] for index in ended], described), strict=True)
        return ending, judged

    def _judge_ended(self, transactions: Sequence[Prepared], described: Mapping[str, Description]) -> list[Whole]:
        now = self.admin.clock.now()
        wholes = []
        for transaction, fates in zip(transactions, ended_fates(self.partitions, transactions), strict=True):
            description = described.get(transaction.name)
            wholes.append(
                judge_ended(
                    transaction, description, with_markers(self.partitions, transaction, description, fates, now), now
                )
            )
        return wholes

    def _open_state(self, transaction: Prepared, described: Mapping[str, Description]) -> HandleState | None:
        state = state_from(transaction, described.get(transaction.name), self.admin.clock.now())
        return state if state is not None and state.outcome is Outcome.PREPARED else None

    @staticmethod
    def _is_ending(transaction: Prepared, described: Mapping[str, Description]) -> bool:
        description = described.get(transaction.name)
        if description is None or not description.ending:
            return False
        return state_from(transaction, description, 0.0) is None

    def of_other_clusters(self, transactions: Sequence[Prepared]) -> dict[int, Whole]:
        """Return the state UNKNOWN, by index, for each transaction that belongs to another cluster."""
        return {
            index: Whole(
                HandleState(
                    Outcome.UNKNOWN,
                    evidence=f"the handle is from cluster {transaction.cluster_id}, but this is cluster {self._cluster_id}",
                )
            )
            for index, transaction in enumerate(transactions)
            if transaction.cluster_id != self._cluster_id
        }

    # -- requests ---------------------------------------------------------------------------------------------------

    def _end_all(self, transactions: Sequence[Prepared], commit: bool, deadline: Deadline) -> list[Whole]:
        """Commit or abort all transactions that are still open. Return the state of each. All requests share the deadline."""
        self.admin.limit = deadline
        try:
            return self._settle(transactions, commit, deadline)
        finally:
            self.admin.limit = None

    def _settle(self, transactions: Sequence[Prepared], commit: bool, deadline: Deadline) -> list[Whole]:
        ending = _Ending(self, transactions, commit)
        if backing_off(deadline, self.admin.clock)(ending.send) is None:
            raise self._late(transactions, ending.unsettled, commit, ending.answers)
        return [ending.wholes[index] for index in range(len(transactions))]

    def ended(self, indexes: Sequence[int], transactions: Sequence[Prepared], commit: bool) -> dict[int, Whole]:
        """Check these transactions. Return the states, by index, of those that need no further request.

        If the coordinator still reports a transaction as open, an abort needs a request. A commit needs a request only if no
        rows are gone: a transaction that has lost rows is never committed.
        """
        wholes = dict(zip(indexes, self._wholes([transactions[index] for index in indexes]), strict=True))
        if commit:
            return {index: whole for index, whole in wholes.items() if whole.state.outcome is not Outcome.PREPARED}
        return {index: whole for index, whole in wholes.items() if not whole.ongoing}

    def send(self, transactions: Sequence[Prepared], commit: bool) -> list[Any]:
        """Send a commit or abort request for each transaction. Return each answer or error.

        EndTxn requests are sent without waiting in between. Below version 5, an abort initializes the transactional ids
        instead, one after the other. This also fences the producers.
        """
        from kafka.protocol.producer.transaction import EndTxnRequest

        nodes = self.admin.coordinators(transaction.name for transaction in transactions)
        answers: list[Any] = [None] * len(transactions)
        requests: list[tuple[int, Any]] = []
        sent: list[int] = []
        for index, transaction in enumerate(transactions):
            if not commit and transaction.end_version < 5:
                # EndTxn(abort) below version 5 leaves the epoch valid: a zombie's next row would open a transaction again.
                self.admin.init_producer_id(transaction.name, transaction.timeout_ms)
                answers[index] = _Ended()
                continue
            sent.append(index)
            requests.append(
                (
                    nodes[transaction.name],
                    EndTxnRequest(
                        version=transaction.end_version,
                        transactional_id=transaction.name,
                        producer_id=transaction.producer_id,
                        producer_epoch=transaction.producer_epoch,
                        committed=commit,
                    ),
                )
            )
        for index, answer in zip(sent, self.admin.send_all(requests), strict=True):
            answers[index] = answer
        return answers

    # -- errors -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _refuse_unknown(transactions: Sequence[Prepared], wholes: Iterable[Whole]) -> None:
        unknown = [
            (transaction, whole)
            for transaction, whole in zip(transactions, wholes, strict=True)
            if whole.state.outcome is Outcome.UNKNOWN
        ]
        if unknown:
            raise unknown_outcome(unknown)

    @staticmethod
    def refused(transaction: Prepared, answer: Any) -> StoreError:
        """Return the error for an answer that requires an operator to act."""
        name = error_name(int(answer.error_code))
        return StoreError(
            "KAFKA_REFUSED",
            reason=f"EndTxn version {transaction.end_version} of {transaction.name}: {name}. The request needs the right WRITE "
            "on the transactional ids of the prefix, and a cluster that was not downgraded",
            transactionalId=transaction.name,
            error=name,
        )

    @staticmethod
    def _late(
        transactions: Sequence[Prepared], unsettled: Sequence[int], commit: bool, answers: Sequence[Any]
    ) -> TwoPhaseCommitError:
        errors = {repr(a) if isinstance(a, Exception) else error_name(int(a.error_code)) for a in answers}
        verb = "committed" if commit else "aborted"
        return TwoPhaseCommitError(
            "KAFKA_TIMEOUT",
            reason=f"{len(unsettled)} of {len(transactions)} transactions could not be {verb} within "
            f"commitTimeoutMs; the first is {transactions[unsettled[0]].name}, the last answers were "
            f"{', '.join(sorted(errors))}",
            step="commit" if commit else "abort",
            transactionalIds=[transactions[index].name for index in unsettled],
        )


def _with_outcome(outcome: Outcome, transactions: Sequence[Prepared], wholes: Sequence[Whole]) -> list[Prepared]:
    pairs = zip(transactions, wholes, strict=True)
    return [transaction for transaction, whole in pairs if whole.state.outcome is outcome]


class _Ended:
    """A stand-in for a broker's answer that the transaction has ended."""

    error_code = 0


class _Looking:
    """Checks transactions until the state of each is known.

    `wholes` maps the index of a transaction to its known state. For the others, `waiting` has the evidence so far.
    """

    def __init__(self, ender: TransactionEnder, transactions: Sequence[Prepared]) -> None:
        self._ender, self._transactions = ender, transactions
        self._second = SecondLook(ender.admin.clock)
        self.wholes = ender.of_other_clusters(transactions)
        self.waiting: dict[int, str] = {}

    def look(self) -> bool | None:
        """Check the transactions whose state is not known yet. Return None if some states are still not known."""
        left = {index: each for index, each in enumerate(self._transactions) if index not in self.wholes}
        ending, judged = self._ender.look_once(left)
        self.waiting = dict.fromkeys(ending, "the markers are being written")
        for index, whole in judged.items():
            if whole.doubt is None or (not whole.pending and self._second.confirms(index, whole.doubt)):
                self.wholes[index] = whole
            else:
                self.waiting[index] = whole.state.evidence
                self._ender.admin.forget_coordinator(left[index].name)
        return None if self.waiting else True


class _Ending:
    """Ends transactions, or finds out how they ended. `wholes` maps the index of a transaction to its known state."""

    def __init__(self, ender: TransactionEnder, transactions: Sequence[Prepared], commit: bool) -> None:
        self._ender, self._transactions, self._commit = ender, transactions, commit
        self.wholes = ender.of_other_clusters(transactions)
        self._left = [index for index in range(len(transactions)) if index not in self.wholes]
        # Send the very first request alone, so that an error of all requests (rights, versions) occurs only once.
        self._cut = len(self._left) if commit in ender.answered else 1
        self.unsettled: list[int] = []
        self.answers: list[Any] = []

    def send(self) -> bool | None:
        """Send requests for the transactions that have not ended yet. Return None if some of them are still open."""
        while self._left:
            now, later = self._left[: self._cut], self._left[self._cut :]
            # Below version 5, check each transaction before each request.
            self._look([index for index in now if self._transactions[index].end_version < 5])
            sendable = [index for index in now if index not in self.wholes]
            self.answers = self._ender.send([self._transactions[index] for index in sendable], self._commit)
            # If a transaction is still open at our epoch, the answer was outdated, and the request is sent again.
            self._look(self._read(sendable))
            self.unsettled = [index for index in now if index not in self.wholes]
            self._left = self.unsettled + later
            self._cut = len(self._left) if not self.unsettled else len(now)
            if self.unsettled:
                return None
        return True

    def _read(self, sendable: Sequence[int]) -> list[int]:
        """Process the answers for the transactions at these indexes. Return the indexes whose state must be checked."""
        wanted = Whole(HandleState(Outcome.COMMITTED if self._commit else Outcome.LOST, evidence=ENDED_BY_REQUEST))
        to_judge: list[int] = []
        for index, answer in zip(sendable, self.answers, strict=True):
            transaction, meaning = self._transactions[index], answer_for(answer)
            if meaning is Answer.ENDED:
                self.wholes[index] = wanted
                if self._commit:
                    faults.reach("commit.one")
            elif meaning is Answer.JUDGE:
                to_judge.append(index)
            elif meaning is Answer.REFUSED:
                raise self._ender.refused(transaction, answer)
            elif meaning is Answer.FIND_COORDINATOR:
                self._ender.admin.forget_coordinator(transaction.name)
        if sendable:
            self._ender.answered.add(self._commit)
        return to_judge

    def _look(self, indexes: Sequence[int]) -> None:
        self.wholes |= self._ender.ended(indexes, self._transactions, self._commit)
