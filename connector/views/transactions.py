"""Describe open transactions in words and as JSON documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connector.kafka.client.topics import SHOWN, Partition
from connector.transactions.assessment import Assessment
from connector.transactions.on_brokers import HeldPartition
from connector.views.words import duration_text, time_text


def row(each: Assessment, now: float) -> tuple[str, ...]:
    """Return a transaction's row in the list: id, producer, state, age, time left, partitions, verdict, owner."""
    transaction = each.transaction
    left = None if transaction.ends_ms is None else max(0, round(transaction.ends_ms - now))
    return (
        transaction.shown_name,
        f"{transaction.producer_id}/{transaction.producer_epoch}",
        transaction.state or "unknown",
        _age(each, now),
        duration_text(left),
        str(len(transaction.partitions or transaction.opened)),
        each.verdict.value,
        _whose(each),
    )


def _age(each: Assessment, now: float) -> str:
    started = each.transaction.started_ms
    return duration_text(max(0, round(now - started)) if started else None)


def _whose(each: Assessment) -> str:
    if each.owner is None:
        return "-"
    if each.claim is None:
        return each.owner.location
    checkpoint = "" if each.claim.checkpoint is None else f", checkpoint {each.claim.checkpoint}"
    return f"{each.owner.location}, micro-batch {each.claim.batch}{checkpoint}"


def pairs_of(each: Assessment, now: float) -> list[tuple[str, str]]:
    """Return everything that is known about a transaction, as pairs of a name and a value."""
    transaction, claim = each.transaction, each.claim
    rows = [
        ("state", transaction.state or "its coordinator does not know it"),
        ("began", f"{time_text(transaction.started_ms)}, {_age(each, now)} ago" if transaction.started_ms else "-"),
        ("times out", time_text(transaction.ends_ms)),
        ("partitions", ", ".join(map(str, transaction.partitions or transaction.opened)) or "none"),
        ("verdict", each.verdict.value),
        ("why", each.reason),
        ("what to do", each.advice),
    ]
    if claim is not None:
        rows.insert(4, ("rows", f"{claim.rows}, of micro-batch {claim.batch}, task {claim.partition}"))
    return [*rows, ("command", each.command)] if each.command else rows


def held_sentences(held: Sequence[HeldPartition], groups: Mapping[Partition, Sequence[str]]) -> Iterator[str]:
    """Yield sentences about the first ten blocked partitions: the offset, the open transaction, and which groups seem stuck."""
    for each in held[:SHOWN]:
        line = f"{each.partition} can be read up to offset {each.stable} of {each.high}"
        if not each.holders:
            yield f"{line}; the transaction that blocked it has ended in the meantime."
            continue
        first, more = each.holders[0], len(each.holders) - 1
        behind = f", and {more} more after it" if more else ""
        yield f"{line}: {first} is open from offset {first.opened[each.partition].start}{behind}."
        if each.partition in groups:
            stuck = ", ".join(groups[each.partition])
            yield f"  Consumer groups that have read up to offset {each.stable}, and therefore seem to be stuck: {stuck}."
    if len(held) > SHOWN:
        yield f"{len(held) - SHOWN} more partitions are blocked."


def columns_of(each: Assessment, now: float) -> dict[str, str]:
    """Return, by column name, the facts that can differ between transactions with the same verdict."""
    known = dict(pairs_of(each, now))
    return {name: known.get(name, "-") for name in ("state", "began", "times out", "partitions", "rows")}


def alike_of(found: Sequence[Assessment]) -> list[list[Assessment]]:
    """Group transactions that have the same verdict, reason, advice and command."""
    alike: dict[tuple[str, ...], list[Assessment]] = {}
    for each in found:
        alike.setdefault((each.verdict.name, each.reason, each.advice, each.command), []).append(each)
    return list(alike.values())


def holder_sentences(holders: Sequence[Assessment], now: float) -> Iterator[str]:
    """Yield sentences about blocking transactions, grouped by verdict: what will happen, and what to do."""
    for of_one in alike_of(holders):
        first = of_one[0]
        count = "1 transaction" if len(of_one) == 1 else f"{len(of_one)} transactions"
        age = f", the oldest {_age(first, now)} old" if first.transaction.started_ms else ""
        yield f"{count}{age}: {first.verdict.value}."
        yield f"  {first.reason}"
        if first.transaction.ends_ms is not None:
            yield (
                "  The coordinator aborts each transaction that is still open at its timeout (the first at "
                f"{time_text(first.transaction.ends_ms)})."
            )
        yield f"  {first.advice}"
        if first.command:
            yield f"    {first.command}"


def document(each: Assessment) -> dict[str, Any]:
    """Return a transaction as a dict of JSON types."""
    transaction = each.transaction
    return {
        "transactionalId": transaction.name or None,
        "producerId": transaction.producer_id,
        "producerEpoch": transaction.producer_epoch,
        "state": transaction.state or None,
        "startedAt": transaction.started_ms or None,
        "timesOutAt": transaction.ends_ms,
        "partitions": [str(place) for place in transaction.partitions],
        "opened": {str(place): opened.start for place, opened in transaction.opened.items()},
        "verdict": each.verdict.name,
        "reason": each.reason,
        "advice": each.advice,
        "command": each.command or None,
        "location": each.owner.location if each.owner else None,
        "run": each.owner.run if each.owner else None,
        "driverAlive": each.owner.alive if each.owner else None,
        "checkpoint": each.claim.checkpoint if each.claim else None,
        "batch": each.claim.batch if each.claim else None,
        "partition": each.claim.partition if each.claim else None,
        "rows": each.claim.rows if each.claim else None,
    }


def held_document(held: HeldPartition) -> dict[str, Any]:
    """Return a blocked partition as a dict of JSON types."""
    return {
        "topic": held.partition.topic,
        "partition": held.partition.number,
        "stableOffset": held.stable,
        "highWatermark": held.high,
        "holders": [transaction.name or None for transaction in held.holders],
    }
