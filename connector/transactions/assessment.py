"""How an open transaction stands: whose it is, what becomes of it, and what may be done about it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from connector.kafka.sink.transactional_ids import TransactionalId
from connector.spark.process import process_text
from connector.transactions.in_journals import Claim, Owner
from connector.transactions.on_brokers import OpenOnBrokers

__all__ = ["Assessment", "Verdict", "assess"]


class Verdict(enum.Enum):
    """What becomes of an open transaction."""

    ENDING = "is ending"
    DECIDED = "decided, will be committed"
    PREPARED = "prepared by a live run, leave it"
    WAITING = "prepared, waits for the query's next start"
    WRITING = "being written by a live run, leave it"
    LINGERING = "of a dead run, aborted at the next start"
    LOST = "judged lost, aborted at the next start"
    HANGING = "ended, but its marker is missing"
    STRANGER = "not of a query that was given"


@dataclass(frozen=True)
class Assessment:
    """A transaction and its verdict.

    Parameters
    ----------
    transaction : OpenOnBrokers
    verdict : Verdict
    reason : str
        Sentences: how that is known. The same for all transactions of a checkpoint.
    advice : str
        A sentence: what to do.
    command : str
        The one that is safe, if there is one.
    owner : Owner, optional
    claim : Claim, optional
    """

    transaction: OpenOnBrokers
    verdict: Verdict
    reason: str
    advice: str
    command: str = ""
    owner: Owner | None = None
    claim: Claim | None = None


def assess(transaction: OpenOnBrokers, owners: Sequence[Owner], servers: str = "") -> Assessment:
    """Assess a transaction by the journals.

    Parameters
    ----------
    transaction : OpenOnBrokers
    owners : Sequence[Owner]
        The queries whose journals were read.
    servers : str, optional
        The cluster's addresses, for commands.
    """
    owner, claim = _owner(transaction, owners)
    if transaction.hangs:
        return _hanging(transaction, owner, claim, servers)
    if transaction.state != "Ongoing":
        how = "a commit" if transaction.state == "PrepareCommit" else "an abort"
        return Assessment(
            transaction,
            Verdict.ENDING,
            f"Its coordinator has accepted {how}, and is writing the markers.",
            "Wait: that takes milliseconds, unless a partition has no leader.",
            owner=owner,
            claim=claim,
        )
    if owner is None:
        return _stranger(transaction, servers)
    return _ours(transaction, owner, claim)


def _owner(transaction: OpenOnBrokers, owners: Iterable[Owner]) -> tuple[Owner | None, Claim | None]:
    kafka = [owner for owner in owners if owner.sink is not None]
    for owner in kafka:
        if transaction.key in owner.claims:
            return owner, owner.claims[transaction.key]
    parsed = TransactionalId.parse(transaction.name)
    prefix = parsed.prefix if parsed else transaction.name.removesuffix(".run")
    return next((owner for owner in kafka if prefix in owner.prefixes), None), None


def _ours(transaction: OpenOnBrokers, owner: Owner, claim: Claim | None) -> Assessment:
    runs = _runs(owner)
    if claim is not None and claim.verdict == "lost":
        reason = f"{owner.location} has judged it lost, and writes its rows again. {runs}"
        return Assessment(transaction, Verdict.LOST, reason, *_start(owner), owner, claim)
    if claim is not None and claim.checkpoint is not None:
        reason = f"Checkpoint {claim.checkpoint} of {owner.location} has decided it. {runs}"
        return Assessment(transaction, Verdict.DECIDED, reason, *_start(owner), owner, claim)
    if claim is not None:
        verdict = Verdict.PREPARED if owner.may_run else Verdict.WAITING
        reason = f"{owner.location} has prepared it, and no checkpoint has decided it yet. {runs}"
        return Assessment(transaction, verdict, reason, *_start(owner), owner, claim)
    verdict = Verdict.WRITING if owner.may_run else Verdict.LINGERING
    reason = f"Its transactional id is of {owner.location}, whose journal does not name it. {runs}"
    return Assessment(transaction, verdict, reason, *_start(owner), owner)


def _runs(owner: Owner) -> str:
    if owner.ended is not None:
        return f"Its run {owner.run} has ended ({owner.ended})."
    state = {True: "runs", False: "is gone", None: "can't be seen from here"}[owner.alive]
    return f"The driver of its run {owner.run} ({process_text(owner.process)}) {state}."


def _start(owner: Owner) -> tuple[str, str]:
    """Return what to do about a transaction of a query: advice, and the command."""
    if owner.ended is None and owner.alive:
        return "Leave it: the query ends it. If it does not, its driver's log says why.", ""
    command = f"barrier stop {owner.location}"
    if owner.may_run:
        return (
            "If the driver is dead, start the query, or end what it has left from here.",
            f"{command} --query-stopped",
        )
    return "Start the query, which ends it; or end what it has left from here.", command


def _stranger(transaction: OpenOnBrokers, servers: str) -> Assessment:
    reason = "No journal that was given names it."
    if TransactionalId.parse(transaction.name) is not None:
        return Assessment(
            transaction,
            Verdict.STRANGER,
            f"{reason} It has the form of a task's of 2pc-kafka, so its rows may belong to a decided checkpoint.",
            "Name the checkpointLocation of its query. If that is lost, wait until the transaction's timeout ends it.",
        )
    return Assessment(
        transaction,
        Verdict.STRANGER,
        reason,
        "Only its program knows whether it is complete. Wait until its timeout ends it; or, if that program is dead, abort "
        "it: its producer is fenced, and its rows are never seen.",
        _verb("abort", transaction, servers),
    )


def _hanging(transaction: OpenOnBrokers, owner: Owner | None, claim: Claim | None, servers: str) -> Assessment:
    where = ", ".join(f"{place} from offset {each.start}" for place, each in transaction.opened.items())
    how = {"CompleteCommit": "committed", "CompleteAbort": "aborted"}.get(transaction.state)
    if how is None:
        return Assessment(
            transaction,
            Verdict.HANGING,
            f"It is open in {where}, and no coordinator knows any more how it ended.",
            "Nothing ends it by itself. An administrator who knows how it ended can write its marker: "
            "kafka-transactions.sh abort makes its rows invisible.",
            owner=owner,
            claim=claim,
        )
    reason = f"Its coordinator calls it {how}, and left its marker out: it is open in {where} (KAFKA-20734)."
    if owner is not None:
        return Assessment(transaction, Verdict.HANGING, f"{reason} {_runs(owner)}", *_start(owner), owner, claim)
    verb = "commit" if how == "committed" else "abort"
    advice = f"Nothing ends it by itself. The missing marker is that of its {verb}."
    return Assessment(transaction, Verdict.HANGING, reason, advice, _verb(verb, transaction, servers))


def _verb(verb: str, transaction: OpenOnBrokers, servers: str) -> str:
    return f"barrier transactions {verb} {transaction.name} --bootstrap-server {servers or 'HOST:PORT'}"
