"""``barrier transactions``: show why consumers are stuck and how each open transaction will end, or abort one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from connector.cli.arguments import Locations, Servers, Yes
from connector.cli.place import open_journal
from connector.cli.report import Report
from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import SHOWN, Partition
from connector.transactions.assessment import Assessment
from connector.transactions.clusters import Cluster, clusters_of
from connector.transactions.ending import abort, check_abort
from connector.transactions.in_journals import Owner, owners_of
from connector.transactions.on_brokers import HeldPartition
from connector.transactions.waiting import waiting_groups
from connector.views.transactions import document, held_document, held_sentences, holder_sentences, pairs_of, row
from transactional.clock import SystemClock
from transactional.errors import ProtocolError, StoreError

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", help="Also search this topic for hanging transactions. Can be repeated.", show_default=False
    ),
]


def list_transactions(
    report: Report,
    given: Mapping[str, str],
    location: Locations = None,
    identifier: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="TRANSACTIONAL_ID",
            help="Show everything that is known about the transaction with this transactional id.",
            show_default=False,
        ),
    ] = None,
    bootstrap_server: Servers = None,
    topic: Topics = None,
) -> None:
    """When consumers are stuck, or rows do not appear: list the open transactions, oldest first, and how each will end.

    With --id, the command also shows the evidence, and what to do. The command searches for hanging transactions in the topics
    that open transactions and the locations' queries write to, and in the topics of --topic.
    """
    with _connected(location, bootstrap_server, given, report) as clusters:
        if identifier is not None:
            _show([each for _, each in _named(identifier, clusters, topic)], report)
            return
        rows, documents, held, unseen = [], [], [], list[str]()
        for cluster in clusters:
            view, assessments = cluster.look(topic or [])
            now = cluster.admin.clock.now() * 1000
            rows += [row(each, now) for each in assessments]
            documents += [document(each) for each in assessments]
            held += [held_document(each) for each in view.held]
            unseen += [*map(str, view.silent), *view.denied]
        report.facts.update(transactions=documents, held=held, unseen=unseen)
        if rows:
            heads = ("TRANSACTIONAL ID", "PRODUCER", "STATE", "AGE", "LEFT", "PARTITIONS", "VERDICT", "OF")
            report.table(heads, rows, wraps=("TRANSACTIONAL ID", "VERDICT", "OF"))
        else:
            report.status = "nothing to do"
            report.say("no transaction is open")
        if unseen:
            report.say(f"not examined, because a leader or the right READ is missing: {', '.join(unseen[:SHOWN])}")
        if held:
            topics = ", ".join(sorted({each["topic"] for each in held}))
            report.say(
                f"consumers are stuck in {len(held)} partitions: run `barrier transactions explain TOPIC` ({topics})"
            )


def explain(
    report: Report,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic that the stuck consumers read.", show_default=False)
    ],
    given: Mapping[str, str],
    location: Locations = None,
    bootstrap_server: Servers = None,
) -> None:
    """When the consumers of a topic are stuck: show which partition is blocked, at which offset and by what, and what to do.

    Only read_committed consumers get stuck: they stop at the first open transaction of a partition.
    """
    with _connected(location, bootstrap_server, given, report) as clusters:
        documents: list[dict[str, Any]] = []
        exists = False
        for cluster in clusters:
            view, assessments = cluster.look([topic], only=True)
            exists = exists or topic in view.topics
            if topic in view.denied:
                raise missing_right("READ", f"topic {topic}")
            silent = [str(place) for place in view.silent]
            report.facts.setdefault("silent", []).extend(silent)
            if silent:
                report.say(
                    f"Nothing is known about these partitions, because no leader answers: {', '.join(silent[:SHOWN])}."
                )
            groups = _groups(cluster, view.held, report)
            documents += [{**held_document(each), "groups": groups.get(each.partition, [])} for each in view.held]
            places = {each.partition for each in view.held}
            holders = [each for each in assessments if not places.isdisjoint(each.transaction.opened)]
            report.facts.setdefault("transactions", []).extend(map(document, holders))
            report.say(*held_sentences(view.held, groups), *holder_sentences(holders, cluster.admin.clock.now() * 1000))
        if not exists:
            raise StoreError("UNKNOWN_TOPIC", option="TOPIC", topic=topic)
        report.facts.update(topic=topic, held=documents)
        if not documents and not report.facts.get("silent"):
            report.status = "nothing to do"
            report.say(f"No consumer of {topic} is stuck: each partition can be read to its end.")


def abort_transaction(
    report: Report,
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="TRANSACTIONAL_ID",
            help="The transactional id to abort, as `barrier transactions list` shows it.",
            show_default=False,
        ),
    ],
    given: Mapping[str, str],
    location: Locations = None,
    bootstrap_server: Servers = None,
    topic: Topics = None,
    yes: Yes = False,
) -> None:
    """When the open transaction of a dead program blocks consumers: abort the transaction. Its rows never become visible.

    The command fences the transaction's producer. It refuses a transaction that belongs, or may belong, to a query of
    barrier-kafka, unless that query was stopped and its journal has no open transaction. For a dead query, run `barrier stop
    LOCATION` instead.

    No command commits a transaction. For a query, only the journal can decide to commit. For another program, only the program
    knows whether its transaction is complete.
    """
    with _connected(location, bootstrap_server, given, report) as clusters:
        chosen = _named(identifier, clusters, topic)
        for _, each in chosen:
            check_abort(each)
        _show([each for _, each in chosen], report)
        report.confirm(yes)
        done = [abort(cluster.admin, each) for cluster, each in chosen]
        if all(done):
            report.say("aborted")
        else:
            report.status = "nothing to do"
            report.say(
                "nothing to abort: the transaction is no longer open, or its program is alive and has started a new transaction"
            )


def _show(found: Sequence[Assessment], report: Report) -> None:
    now = SystemClock().now() * 1000
    report.facts.update(transactions=[document(each) for each in found])
    for each in found:
        report.pairs(str(each.transaction), pairs_of(each, now))


@contextmanager
def _connected(
    locations: Sequence[str] | None, servers: str | None, given: Mapping[str, str], report: Report
) -> Iterator[list[Cluster]]:
    if not locations and servers is None:
        raise typer.BadParameter("pass a LOCATION, or --bootstrap-server, or both")
    owners = [owner for path in locations or () for owner in _owners(path, given)]
    for owner in owners:
        if owner.sink is None:
            report.say(f"{owner.location}: the query's sink has no Kafka transactions")
    report.facts.update(locations=[owner.location for owner in owners])
    with clusters_of(owners, servers, given) as clusters:
        known = {owner.location for cluster in clusters for owner in cluster.owners}
        for owner in owners:
            if owner.sink is not None and owner.location not in known:
                report.say(f"{owner.location}: the query writes to another cluster, {owner.cluster}")
        yield clusters


def _owners(path: str, given: Mapping[str, str]) -> list[Owner]:
    location, journal = open_journal(path, "no sink of barrier-kafka has run there")
    return owners_of(location, journal.ledger, given)


def _named(
    identifier: str, clusters: Sequence[Cluster], topics: Sequence[str] | None
) -> list[tuple[Cluster, Assessment]]:
    found = [
        (cluster, each)
        for cluster in clusters
        for each in cluster.look(topics or [])[1]
        if each.transaction.name == identifier
    ]
    if not found:
        raise ProtocolError("UNKNOWN_TRANSACTION", name=identifier)
    return found


def _groups(cluster: Cluster, held: Sequence[HeldPartition], report: Report) -> Mapping[Partition, list[str]]:
    try:
        return waiting_groups(cluster.config, held)
    except StoreError as problem:
        report.complain(f"it is unknown which consumer groups are waiting: {problem.message}")
        return {}
