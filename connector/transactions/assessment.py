"""Assess an open transaction: which query owns it, what will happen to it, and what the user can do."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from connector.kafka.sink.transactional_ids import TransactionalId, run_id
from connector.spark.process import process_text
from connector.transactions.in_journals import Claim, Owner
from connector.transactions.on_brokers import OpenOnBrokers


class Verdict(enum.Enum):
    """The verdict on an open transaction: its state, and how it will end."""

    ENDING = "is ending"
    DECIDED = "decided, will be committed"
    PREPARED = "prepared by a live run, leave it"
    WAITING = "prepared, waits for the query's next start"
    WRITING = "being written by a live run, leave it"
    LINGERING = "left by a dead run, aborted at the next start"
    LOST = "declared lost, aborted at the next start"
    HANGING = "has ended, but its marker is missing"
    STRANGER = "belongs to no query that you named"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Assessment:
    """An open transaction, the verdict on it, and advice for the user."""

    transaction: OpenOnBrokers
    verdict: Verdict
    # Sentences with the evidence for the verdict. All transactions of a checkpoint have the same sentences.
    reason: str
    advice: str  # Sentences that say what the user can do.
    command: str = ""  # The shell command that ends the transaction safely; empty if there is none.
    owner: Owner | None = None  # The query to which the transaction belongs; None if it is unknown.
    claim: Claim | None = None  # The record of the transaction in the query's journal; None if there is none.


def assess(transaction: OpenOnBrokers, owners: Sequence[Owner], servers: str = "") -> Assessment:
    """Return a transaction's owner, the verdict on the transaction, and advice, according to the owners' journals.

    `servers` is the bootstrap address in the command that the advice suggests.
    """
    owner, claim = _owner(transaction, owners)
    if transaction.hangs:
        return _not_open(transaction, owner, claim)
    if transaction.state != "Ongoing":
        how = "a commit" if transaction.state == "PrepareCommit" else "an abort"
        return Assessment(
            transaction,
            Verdict.ENDING,
            f"The transaction's coordinator has accepted {how}, and is writing the markers.",
            "Wait: the coordinator needs only milliseconds, unless a partition has no leader.",
            owner=owner,
            claim=claim,
        )
    if owner is None:
        return _stranger(transaction, servers)
    return _ours(transaction, owner, claim, servers)


def _owner(transaction: OpenOnBrokers, owners: Sequence[Owner]) -> tuple[Owner | None, Claim | None]:
    kafka = [owner for owner in owners if owner.sink is not None]
    producer = (transaction.producer_id, transaction.producer_epoch)
    for owner in kafka:
        # Even a user who may not see the transactional id sees the producer, which identifies the transaction.
        claims = [(key, claim) for key, claim in owner.claims.items() if key[1:] == producer]
        found = next((claim for key, claim in claims if transaction.name in ("", key[0])), None)
        if found is not None:
            return owner, found
    parsed = TransactionalId.parse(transaction.name)
    for owner in kafka:
        runs = {run_id(prefix) for prefix in owner.prefixes}
        if (parsed.prefix in owner.prefixes) if parsed else transaction.name in runs:
            return owner, None
    return None, None


def _ours(transaction: OpenOnBrokers, owner: Owner, claim: Claim | None, servers: str) -> Assessment:
    runs = _runs(owner)
    way = _way(owner)
    if claim is not None and claim.verdict == "lost":
        reason = f"The query at {owner.location} has declared this transaction lost, and writes its rows again. {runs}"
        return Assessment(transaction, Verdict.LOST, reason, *way, owner, claim)
    if claim is not None and claim.checkpoint is not None:
        reason = (
            f"The query at {owner.location} has decided to commit checkpoint {claim.checkpoint}, which contains this "
            f"transaction. {runs}"
        )
        return Assessment(transaction, Verdict.DECIDED, reason, *way, owner, claim)
    if claim is not None:
        verdict = Verdict.PREPARED if owner.may_run else Verdict.WAITING
        reason = (
            f"The query at {owner.location} has prepared this transaction, but has not decided yet to commit it. {runs}"
        )
        return Assessment(transaction, verdict, reason, *way, owner, claim)
    reason = (
        f"This transactional id belongs to the query at {owner.location}, but the query's journal does not name this "
        f"transaction. {runs}"
    )
    if owner.may_run:
        return Assessment(transaction, Verdict.WRITING, reason, *way, owner)
    if owner.is_done:
        way = (
            (
                "A task that outlived the query left this transaction open. The transaction is aborted by its timeout, by the "
                "query's next start, or by this command:"
            ),
            _abort(transaction, servers, owner.location),
        )
    return Assessment(transaction, Verdict.LINGERING, reason, *way, owner)


def _runs(owner: Owner) -> str:
    state = {True: "is running", False: "has ended", None: "can't be seen from here"}[owner.alive]
    ended = f" The run has ended ({owner.ended})." if owner.ended is not None else ""
    return f"The driver process of the query's run {owner.run} ({process_text(owner.process)}) {state}.{ended}"


def _way(owner: Owner) -> tuple[str, str]:
    """Return the advice for a transaction that belongs to a query, and the command that ends the transaction safely."""
    if owner.is_batch:
        return (
            "Repeat the df.write with the same txnAppId and txnVersion: this ends the transactions of the failed write.",
            "",
        )
    stop = f"barrier stop {shlex.quote(owner.location)}"
    if owner.alive:
        first = (
            "Start the query in that process again"
            if owner.ended
            else "Leave the transaction alone while the query runs. If the query has ended, start it in that process again"
        )
        return f"{first}; or end the process, and then run `{stop}`.", ""
    if owner.alive is None:
        return (
            "Start the query, which ends the transaction. Or, only if you know that the query's driver is dead:",
            f"{stop} --query-stopped",
        )
    return (
        "Start the query, which ends the transaction. Or end all unfinished transactions of the query from here:",
        stop,
    )


def _stranger(transaction: OpenOnBrokers, servers: str) -> Assessment:
    reason = "None of the given journals names the transaction."
    if TransactionalId.parse(transaction.name) is not None:
        return Assessment(
            transaction,
            Verdict.STRANGER,
            f"{reason} The transactional id has the form that 2pc-kafka uses, so the transaction's rows may belong to a "
            "decided checkpoint.",
            "Pass the checkpointLocation of the transaction's query. If the location is lost, wait until the transaction times "
            "out.",
        )
    return Assessment(
        transaction,
        Verdict.STRANGER,
        reason,
        "Only the program that wrote this transaction knows whether the transaction is complete. If you do nothing, the "
        "transaction is aborted after its timeout. If the program commits at its next start, as Flink's sinks do, start the "
        "program. If the program will never run again, abort the transaction: this fences its producer, and its rows never "
        "become visible.",
        _abort(transaction, servers),
    )


def _not_open(transaction: OpenOnBrokers, owner: Owner | None, claim: Claim | None) -> Assessment:
    where = ", ".join(f"{place} from offset {each.start}" for place, each in transaction.opened.items())
    if not transaction.name and owner is None:
        return Assessment(
            transaction,
            Verdict.UNKNOWN,
            f"The transaction is open in {where}. No coordinator knows its producer, or this user is not allowed to DESCRIBE "
            "its transactional id.",
            "Run the command again as a user who is allowed to DESCRIBE all transactional ids. Pass the locations of all "
            "queries that write to these partitions.",
        )
    how = {"CompleteCommit": "committed", "CompleteAbort": "aborted"}.get(transaction.state)
    said = (
        f"The coordinator reports the producer's last transaction as {how}"
        if how
        else "The coordinator does not know how the transaction ended"
    )
    reason = f"{said}, but the transaction is open in {where}: the brokers did not write a marker there (KAFKA-20734)."
    if owner is not None:
        journal = f"In the journal of {owner.location}, this transaction is {_word(claim)}. {_runs(owner)}"
        advice, command = _way(owner)
        if owner.is_done:
            advice, command = "Start the query, which writes the marker. Nothing else ends the transaction.", ""
        return Assessment(transaction, Verdict.HANGING, f"{reason} {journal}", advice, command, owner, claim)
    return Assessment(
        transaction,
        Verdict.HANGING,
        reason,
        "This transaction does not end by itself. Only the program that wrote the transaction knows which marker is right, "
        'because a producer may have written several transactions with this epoch. See the section "Markers that a broker '
        'leaves out" in docs/transactions.md.',
    )


def _word(claim: Claim | None) -> str:
    if claim is None:
        return "not prepared"
    if claim.checkpoint is None:
        return "prepared, but not decided"
    return f"decided in checkpoint {claim.checkpoint}"


def _abort(transaction: OpenOnBrokers, servers: str, *locations: str) -> str:
    end = [f"--bootstrap-server {servers or 'HOST:PORT'}", *(["--"] if transaction.name.startswith("-") else [])]
    return " ".join(
        ["barrier transactions abort", *end, shlex.quote(transaction.name), *(shlex.quote(each) for each in locations)]
    )
